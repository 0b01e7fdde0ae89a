"""A party of the harness can misbehave at a named step, and the others react as in a real run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import Misconduct, PartyFailed
from secure_fl.federation.assembly import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import LocalEngine, Session
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Failed, SumInput
from secure_fl.testing.harness import Faults, LossyEngine, federate, require_carries
from tests.support.spoiling import Spoiler

NAMES = ("east", "north", "south")


async def program(cohort: Cohort) -> Any:
    return await cohort.sum({"x": np.ones(3, np.float32)})


def test_a_party_that_spoils_a_sum_is_convicted() -> None:
    keys = make_keys("he+secagg", list(NAMES), None)
    programs = dict.fromkeys(NAMES, program)
    faults = {"north": Spoiler(keys["north"]).faults}
    out = federate(programs, mode="he+secagg", keys=keys, faults=faults, catch=True)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == "north"
    assert {out.sessions[name].convicted for name in ("east", "south")} == {"north"}


def test_a_party_that_answers_with_a_failure_is_named() -> None:
    faults: Faults = {SumInput: lambda honest, bulk: (Failed("training"), b"")}
    out = federate(dict.fromkeys(NAMES, program), faults={"north": faults}, catch=True)
    assert isinstance(out.error, PartyFailed) and out.error.where["party"] == "north"
    assert not out.results


# --- the check for engines passes those that carry, and says what is wrong with others ----------


class Swapping(LocalEngine):
    """Says of every answer that it is another party's."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        names = sorted(frames)
        for party, answer in super().exchange(frames, deadline):
            yield names[names.index(party) - 1], answer


class Inventing(LocalEngine):
    """Yields an answer of somebody who was not asked."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        yield "west", Frame(b"")
        yield from super().exchange(frames, deadline)


class Doubling(LocalEngine):
    """Yields every answer twice, which an engine may do."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for answer in super().exchange(frames, deadline):
            yield from (answer, answer)


@pytest.mark.parametrize("engine", [LocalEngine, LossyEngine, Doubling])
def test_engines_that_carry_pass(engine: type[LocalEngine]) -> None:
    require_carries(engine)


def losing(sessions: Mapping[str, Session]) -> LossyEngine:
    return LossyEngine(sessions, lose={"east": 3})


@pytest.mark.parametrize(
    ("engine", "kind", "said"),
    [
        (losing, AssertionError, "did not yield east"),
        (Inventing, AssertionError, "yielded west"),
        (Swapping, Exception, "signature"),
    ],
)
def test_engines_that_do_not_carry_are_told_why(engine: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        require_carries(engine)
