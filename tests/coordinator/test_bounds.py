"""Whatever a member sends, it costs the coordinator little; who sends nonsense is alone with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator import steps
from secure_fl.coordinator.step import StepContext
from secure_fl.coordinator.steps import DeclareStep
from secure_fl.errors import WireError
from secure_fl.party import session
from secure_fl.protocol import messages
from secure_fl.protocol.messages import Audience, Declare, Offer, Ready, Segment, SumInput
from secure_fl.protocol.ports import Offered
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
    step = DeclareStep(StepContext(None, NAMES, None, Offered(), None))  # type: ignore[arg-type]
    step.take(party, message, b"")


def test_a_name_that_is_declared_often_would_keep_a_coordinator_busy() -> None:
    """Quadratic in how often: 16,000 times are 80 KB and seconds, a megabyte is minutes."""
    some, more = ({"west": ("x",) * count} for count in (4_000, 16_000))
    assert seconds(lambda: steps._by_name(more)) > 6 * seconds(lambda: steps._by_name(some))


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
    order, honest = iter(NAMES), session.ask  # parties come to it in this order

    async def ask(message: Any, expect: Any) -> Any:
        if next(order, None) == "west":
            message = structs.replace(message, names=message.names * 2)
        return await honest(message, expect)

    monkeypatch.setattr("secure_fl.party.groups.ask", ask)
    values = {"x": np.ones(20, np.float32)}
    programs = {name: summing(values, partial=True, bound=2.0) for name in NAMES}
    out = federate(programs, mode="he+secagg", catch=True)
    assert out.error is None and set(out.results) == set(NAMES) - {"west"}
