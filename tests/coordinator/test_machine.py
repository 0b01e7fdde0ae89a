"""The coordinator's decisions about parties that differ, that leave, and that come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator.machine import RETURNING, Coordinator
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.errors import Disagreement, PartyFailed
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Failed, SumInput, UnmaskShares
from secure_fl.testing.harness import Federated, LossyEngine, federate
from tests.support.attacker import NAMES, summing

ALONE = NAMES[0]  # it answers first


def run(change: Any, *, spares: bool) -> Federated:
    """Two sums, to the first of which one party sends another answer."""

    def sparing(links: Any, engine: Any, rules: CoordinatorRules, *rest: Any) -> Coordinator:
        return Coordinator(links, engine, replace(rules, spares=spares), *rest)

    programs = dict.fromkeys(NAMES, summing({"x": np.ones(20, np.float32)}, 2, bound=2.0))
    faults = {ALONE: {SumInput: change}}
    return federate(programs, mode="secagg", min_cohort=3, catch=True, faults=faults, lead=sparing)


def test_a_party_that_differs_from_all_others_is_named_although_it_answers_first() -> None:
    """The others are compared with the first answer, but most parties decide."""

    def elsewhere(message: SumInput, bulk: bytes) -> Any:
        return structs.replace(message, at=(7, 7)), bulk

    out = run(elsewhere, spares=True)
    assert isinstance(out.error, Disagreement) and out.error.where["party"] == ALONE


@pytest.mark.parametrize(
    "change",
    [
        lambda message, bulk: (message, bulk[:-1]),
        lambda message, bulk: (UnmaskShares({}, {}), b""),
        lambda message, bulk: (Failed("data"), b""),
    ],
    ids=["cuts", "mistakes the step", "fails"],
)
def test_a_party_that_answers_wrongly_is_lost_and_has_failed_once(change: Any) -> None:
    leaders = list[Coordinator]()

    def sparing(links: Any, engine: Any, rules: CoordinatorRules, *rest: Any) -> Coordinator:
        leaders.append(Coordinator(links, engine, replace(rules, spares=True), *rest))
        return leaders[0]

    programs = dict.fromkeys(NAMES, summing({"x": np.ones(20, np.float32)}, 2, bound=2.0))
    faults = {ALONE: {SumInput: change}}
    out = federate(programs, mode="secagg", min_cohort=3, faults=faults, lead=sparing)
    assert set(out.results) == set(NAMES) - {ALONE}
    assert leaders[0].take_failed() == [ALONE]


def test_a_silent_party_and_frames_of_others_are_no_failure() -> None:
    """The hub may receive frames that the party did not sign: they are not its fault."""
    leaders = list[Coordinator]()

    def sparing(links: Any, engine: Any, rules: CoordinatorRules, *rest: Any) -> Coordinator:
        leaders.append(Coordinator(links, engine, replace(rules, spares=True), *rest))
        return leaders[0]

    def forging(party: str, direction: str, frame: Frame) -> Frame:
        forged = party == ALONE and direction == "out" and frame.bulk != b""
        return frame._replace(bulk=b"forged") if forged else frame

    programs = dict.fromkeys(NAMES, summing({"x": np.ones(20, np.float32)}, 2, bound=2.0))
    out = federate(
        programs,
        mode="secagg",
        min_cohort=3,
        lead=sparing,
        engine=lambda sessions: LossyEngine(sessions, tap=forging),
    )
    assert set(out.results) == set(NAMES) - {ALONE}
    assert leaders[0].take_failed() == []


@pytest.mark.parametrize("code", RETURNING)
def test_no_run_continues_without_a_party_that_can_return(code: str) -> None:
    """It comes back to the same round; one that cannot go on for another reason is spared."""
    out = run(lambda *_: (Failed(code), b""), spares=True)
    assert isinstance(out.error, PartyFailed) and out.error.reason == code
    assert out.error.where["party"] == ALONE and out.results == {}
    out = run(lambda *_: (Failed("data"), b""), spares=True)
    assert out.error is None and set(out.results) == set(NAMES) - {ALONE}
