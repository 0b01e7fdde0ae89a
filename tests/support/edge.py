"""What tests of a pilot's edge share: a coordinator that says what it is told to, and samples."""

from __future__ import annotations

import os
import re
import tracemalloc
from typing import Any

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import SecureFLError
from secure_fl.pilot.plan import run_id, write_plan
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Bulk, Frame, Link, peek
from secure_fl.protocol.messages import Failed, Gather, Gathered, Hello, Invite, Start, Stop
from tests.support.local_pilot import LocalPilot, plan_of
from tests.support.raising import error_codes

PLAN = plan_of(FedAvg(rounds=1))


def peak(take: Any, frame: Any) -> int:
    """The most bytes that were held while this was looked at."""
    tracemalloc.start()
    try:
        with pytest.raises(SecureFLError):
            take(frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def envelope_of(message: Any, **fields: Any) -> list[Any]:
    """An envelope, as lists."""
    given = {"run": b"r" * 16, "exchange": 1, "round": 0, "sender": "coordinator"}
    given |= {"receiver": "hospital-1", "size": 0, "digest": frames.digest(b"")} | fields
    return [*given.values(), message]


class Asker:
    """Speaks for the coordinator to one hospital, and says whatever it is told to."""

    def __init__(self, made: LocalPilot, party: str = "hospital-1") -> None:
        self.made, self.party, self.seat = made, party, made.processes[party]
        self.link = self.fresh()
        self.nonce = b""

    def fresh(self) -> Link:
        return self.made.link(os.urandom(16), self.party)

    def say(self, message: Any, bulk: bytes = b"") -> Any:
        return self.link.unpack(self.seat.step(self.link.pack(message, Bulk.of(bulk))))

    def invite(self, text: str | None = None) -> Any:
        self.link = self.fresh()
        return self.say(Invite(write_plan(self.made.plan) if text is None else text))

    def seated(self, without: str = "") -> Gathered:
        """Invite, gather all or all but one, and speak in the run from here on."""
        hello = self.invite()
        others = {name: os.urandom(16) for name in self.made.members if name != without}
        nonces = others | {self.party: hello.nonce}
        answer = self.say(Gather(nonces))
        assert isinstance(answer, Gathered)
        assert answer.run == run_id(self.made.roster, write_plan(self.made.plan), nonces)
        self.link.run, self.link.exchange = answer.run, 0
        return answer

    def throw(self, head: bytes, bulk: bytes = b"") -> Frame | None:
        """Let the seat have any bytes; an answer says a code, or what a program says."""
        try:
            answer = self.seat.step(Frame(head, bulk))
        except SecureFLError:
            return None
        message = peek(answer.head).message
        assert isinstance(message, messages.FromParty)
        if isinstance(message, Failed):
            assert message.code in error_codes() and re.fullmatch("[a-z-]+", message.code)
            assert not answer.bulk
        return answer


SAMPLES: list[Any] = [
    Start(("hospital-1", "hospital-2", "hospital-3")),
    messages.Begin(0, ("hospital-1",)),
    messages.Owners({"x": ("hospital-1",)}),
    messages.Unmask(("hospital-1",), ("hospital-2",)),
    messages.Confirmed({"hospital-2": b"s" * 64}),
    messages.Total(("hospital-1",), ("hospital-1",), (9,)),
    messages.Relayed(("hospital-2",), (2**31,)),
    messages.Agreed({"hospital-2": b"p" * 32}),
    messages.HandedOver(("hospital-1",), {}),
    messages.Continue(("hospital-1",)),
    Stop("cohort"),
    Gather({"hospital-1": b"n" * 16}),
    messages.Ready(),
    messages.SumInput(messages.Audience.HOST, (messages.Segment(b"k" * 32, 8),)),
    messages.Declare(("x",)),
    messages.UnmaskShares({}, {"hospital-2": b"k" * 16}),
    Failed("policy"),
    Hello(b"n" * 16),
    Gathered(b"r" * 16),
    messages.Done(),
]
