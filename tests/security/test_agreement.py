"""Agreement: a coordinator that says "all equal" is not believed, in the modes that have keys."""

from __future__ import annotations

from typing import Any

import pytest

from secure_fl.coordinator.machine import Coordinator
from secure_fl.coordinator.run_steps import AgreeStep
from secure_fl.coordinator.sum_steps import Reply, Step
from secure_fl.errors import Disagreement
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate
from tests.support.attacker import NAMES, lying

MODES: tuple[Protection, ...] = ("secagg", "he+secagg")


class Appeasing(Coordinator):
    """Tells everybody that all agree, whatever the parties' fingerprints are."""

    def _exchange(self, reply: Reply) -> Step:
        step = super()._exchange(reply)
        if isinstance(step, AgreeStep):
            step.fingerprints = {b"": list(step.proofs)}
        return step


def program(name: str, times: int = 1) -> Program:
    async def run(cohort: Cohort) -> Any:
        for number in range(times):
            await cohort.agree(b"drifted" if name == "west" and number else b"same", "model")

    return run


@pytest.mark.parametrize("mode", MODES)
def test_a_false_agreement_is_found_by_every_party(mode: Protection) -> None:
    out = federate({n: program(n, 2) for n in NAMES}, mode=mode, lead=Appeasing, catch=True)
    assert isinstance(out.sessions["east"].error, Disagreement)
    assert out.sessions["east"].error.where["party"] == "west"


@pytest.mark.parametrize("mode", MODES)
def test_proofs_of_an_earlier_agreement_prove_nothing(mode: Protection) -> None:
    earlier: list[messages.Agreed] = []

    def again(party: str, message: Any) -> Any:
        if isinstance(message, messages.Agreed):
            earlier.append(message)
            return earlier[0]
        return message

    out = federate({n: program(n, 2) for n in ("east", "north", "south")}, mode=mode)
    assert out.error is None
    names = ("east", "north", "south")
    out = federate({n: program(n, 2) for n in names}, mode=mode, lead=lying(again), catch=True)
    assert out.results == {}
    assert all(isinstance(out.sessions[n].error, Disagreement) for n in names[:1])
