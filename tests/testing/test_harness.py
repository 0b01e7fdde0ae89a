"""A party of the harness can misbehave at a named step, and the others react as in a real run."""

from __future__ import annotations

from typing import Any

import numpy as np

from secure_fl.errors import Misconduct, PartyFailed
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Failed, SumInput
from secure_fl.testing.harness import Faults, federate
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
    assert {name: out.sessions[name].convicted for name in ("east", "south")} == {
        "east": "north",
        "south": "north",
    }


def test_a_party_that_answers_with_a_failure_is_named() -> None:
    faults: dict[str, Faults] = {
        "north": {SumInput: lambda honest, bulk: (Failed("training"), b"")}
    }
    out = federate(dict.fromkeys(NAMES, program), faults=faults, catch=True)
    assert isinstance(out.error, PartyFailed) and out.error.where["party"] == "north"
    assert not out.results
