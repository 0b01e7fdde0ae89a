"""Whatever a member sends, it costs the coordinator little; who sends nonsense is alone with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator import run_steps
from secure_fl.coordinator.blame import Inquest, SentSum
from secure_fl.coordinator.run_steps import STEPS, DeclareStep
from secure_fl.coordinator.sum_steps import CoordinatorRules, StepContext, SumStep
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.errors import SecureFLError, WireError
from secure_fl.federation.assembly import PartyContext, join_run, make_keys
from secure_fl.party import context
from secure_fl.protocol import frames as wire
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Bulk, Link, Received
from secure_fl.protocol.messages import Audience, Declare, Offer, Ready, Segment, SumInput
from secure_fl.protocol.ports import OfferedKeys
from secure_fl.settings import ProtectionSettings
from secure_fl.testing.harness import federate
from tests.support.attacker import NAMES, summing
from tests.support.raising import raises

MANY = 100_000
FROM_PARTY: Any = msgspec.msgpack.Decoder(messages.FromParty)
KEY, DIGEST = b"k" * 32, b"d" * 32


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def read(message: messages.Message) -> Any:
    """What arrives of it: decoded, as a frame is."""
    return FROM_PARTY.decode(msgspec.msgpack.encode(message))


TOO_LONG = {
    "segments": SumInput(Audience.PARTIES, tuple(Segment(KEY, 0) for _ in range(20_000))),
    "salts": SumInput(
        Audience.PARTIES, (Segment(KEY, 0, salts=(messages.Salt(DIGEST, ("a",)),) * 20_000),)
    ),
    "checkpoints": Ready(tuple(range(MANY))),
    "notes": Ready(opened=tuple((k, 1, ("a", "b")) for k in range(MANY))),
    "shares": Ready(offer=Offer(KEY, {"a": bytes(2**20)}, DIGEST)),
}


@pytest.mark.parametrize("sent", TOO_LONG.values(), ids=TOO_LONG)
def test_lists_that_no_honest_party_sends_are_refused_before_they_are_looked_at(
    sent: messages.Message,
) -> None:
    def refused() -> None:
        with pytest.raises(msgspec.ValidationError):
            FROM_PARTY.decode(data)

    data = msgspec.msgpack.encode(sent)
    assert len(data) > 200_000 and seconds(refused) < 0.05


def declared(message: Declare, party: str = "west") -> None:
    """The step in which all declare their names, up to its answer."""
    step = DeclareStep(StepContext(None, NAMES, None, OfferedKeys(), None))  # type: ignore[arg-type]
    step.receive(party, message, b"")


def test_a_name_that_is_declared_often_would_keep_a_coordinator_busy() -> None:
    """Quadratic in how often: 16,000 times are 80 KB and seconds, a megabyte is minutes."""
    some, more = ({"west": ("x",) * count} for count in (4_000, 16_000))
    assert seconds(lambda: run_steps._by_name(more)) > 6 * seconds(lambda: run_steps._by_name(some))


def test_who_declares_a_name_twice_is_refused_at_once() -> None:
    sent = read(Declare(("x",) * MANY))

    def refused() -> None:
        for message in (sent, Declare(("x", "y"), ("x",))):
            with raises(WireError, party="west", field="names"):
                declared(message)

    assert seconds(refused) < 0.05
    declared(Declare(("x", "y"), ("z",)))


def test_the_others_go_on_without_who_declares_a_name_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order, honest = iter(NAMES), context.ask  # parties come to it in this order

    async def ask(message: Any, expect: Any) -> Any:
        if next(order, None) == "west":
            message = structs.replace(message, names=message.names * 2)
        return await honest(message, expect)

    monkeypatch.setattr("secure_fl.party.summing.ask", ask)
    values = {"x": np.ones(20, np.float32)}
    programs = {name: summing(values, partial=True, bound=2.0) for name in NAMES}
    out = federate(programs, mode="he+secagg", catch=True)
    assert out.error is None and set(out.results) == set(NAMES) - {"west"}


# --- a megabyte of the worst that decodes ---------------------------------------------------------

LONG = tuple(f"{k:030}" for k in range(30_000))
SEEDS = {name: bytes(16) for name in LONG[:20_000]}
DEALS = {name: messages.Deal(DIGEST, DIGEST, DIGEST) for name in LONG[:5_000]}
WORST: dict[str, tuple[Any, bytes]] = {
    "names": (Declare(LONG), b""),
    "deals": (Ready(offer=Offer(KEY, {}, DIGEST, DEALS)), b""),
    "owners": (
        SumInput(
            Audience.PARTIES,
            tuple(Segment(k.to_bytes(32, "big"), 0, 9, LONG[:110]) for k in range(256)),
        ),
        b"",
    ),
    "parts": (
        SumInput(Audience.PARTIES, (Segment(KEY, 1_000_000, 2**30),)),
        b"\0\0\0\1x" * 200_000,
    ),
    "shares": (messages.UnmaskShares(SEEDS, {}, sum=1), b""),
    "complaint": (messages.Complaint(bytes(2**20)), b""),
    "finding": (messages.Finding("x" * 200), bytes(2**20)),
}


def inquest_of(west: Link) -> Inquest:
    """An inquiry that waits for the upload of one party."""
    me = Identity.generate("coordinator")
    coordinator = Link(west.run, me, west.me.public, asks=True)
    upload = west.pack(SumInput(Audience.PARTIES, (Segment(KEY, 0, 9),), sum=1)).head
    total = coordinator.pack(messages.Total(NAMES, NAMES, (0,), sum=1)).head
    complaint = west.pack(messages.Complaint(total))
    sent = SentSum({"west": upload}, {}, {"west": wire.digest(upload)}, {}, 1, None)
    return Inquest(sent, "west", complaint, "coordinator", asked="west")


@pytest.mark.parametrize("worst", WORST.values(), ids=WORST)
def test_a_megabyte_of_anything_costs_a_coordinator_little(worst: tuple[Any, bytes]) -> None:
    message, bulk = worst
    me, run = Identity.generate("west"), bytes(16)
    link = Link(run, me, Identity.generate("coordinator").public, asks=False, exchange=1)
    frame = link.pack(message, Bulk.of(bulk))
    assert 400_000 < frame.size < 1_200_000
    totals = blind_totals(ProtectionSettings(), NAMES, host=None, threshold=3, run=run)
    offered = OfferedKeys(NAMES, dict.fromkeys(NAMES, Offer(KEY, {}, DIGEST)), 1)
    rules = CoordinatorRules(None, 3, 3)
    sums = SumStep(StepContext(rules, NAMES, totals, offered, None))
    sums.total, sums.survivors = totals(Audience.PARTIES, offered), NAMES
    inquest = inquest_of(link)

    def taken() -> None:
        received = Received.of(frame, me.public)
        kind = type(received.envelope.message)
        if kind is messages.Complaint:
            return
        finds = kind is messages.Finding
        context = StepContext(rules, NAMES, totals, offered, sums, inquest if finds else None)
        with suppress(SecureFLError):
            step: Any = STEPS[kind](context)
            step.receive("west", received.envelope.message, frame.bulk)

    assert min(seconds(taken) for _ in range(3)) < 0.05


@pytest.mark.parametrize(
    "message",
    [
        messages.Owners(dict.fromkeys(LONG[:14_000], ("west",))),
        messages.Begin(0, NAMES, {name: Offer(KEY, {}, DIGEST) for name in LONG[:9_000]}),
        messages.Total(NAMES, NAMES, (), lost={n: messages.Lost(bytes(16), ()) for n in SEEDS}),
        messages.Relayed(LONG, (0,) * 30_000),
        messages.Agreed(dict.fromkeys(LONG[:15_000], DIGEST)),
        messages.Confirmed(dict.fromkeys(LONG[:10_000], bytes(64))),
        messages.Unmask(LONG[:15_000], LONG[15_000:]),
        messages.Continue(LONG),
        messages.Examine("west", bytes(2**20), b"", b"x"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_megabyte_of_anything_costs_a_party_little(message: Any) -> None:
    """At any point of a sum: it is answered, or refused, without much work."""
    run, hub = bytes(16), Identity.generate("coordinator")
    keys = make_keys("he+secagg", NAMES, None)
    rules, protection = CoordinatorRules(None, 3, 3), ProtectionSettings()

    def answered() -> float:
        own = Link(run, keys["west"].identity, hub.public, asks=False)
        session = join_run(
            summing({"x": np.ones(9)}), PartyContext(keys["west"], own, rules, protection)
        )
        to = Link(run, hub, keys["west"].identity.public, asks=True)
        session.step(to.pack(messages.Start(NAMES)))
        frame = to.pack(message)
        assert 400_000 < frame.size < 1_200_000

        def step() -> None:
            with suppress(WireError):  # what is too long is refused before it is looked at
                session.step(frame)

        return seconds(step)

    assert min(answered() for _ in range(3)) < 0.05  # other tests' threads may be at work, too
