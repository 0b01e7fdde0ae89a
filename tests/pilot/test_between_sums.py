"""A party lost between two sums of a round that is then cut short: the round is repeated so."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.machine import Coordinator
from secure_fl.errors import CohortError, TooFewParties
from secure_fl.protocol.messages import FromParty
from secure_fl.runs.party_checkpoints import OpenedSumsLog
from tests.support.faults import CoordinatorKilled, Storm, opened
from tests.support.raising import raises
from tests.support.storm_checks import (
    done,
    gatherings,
    notes_of,
    require_equal,
    require_no_second_sum,
)
from tests.support.storms import storm

FOUR = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
# In round 2, hospital-4 is not heard from any more once the first sum was opened.
LOST = [("Continue", "hospital-4", ""), ("Total", "hospital-4", "stalled")]
CUT = {  # where the coordinator dies: when nobody, somebody, everybody has noted the second sum
    **{f"telling {name}": [("Unmask", name, "coordinator killed")] for name in FOUR[:3]},
    "opening it": [("Confirmed", "hospital-1", ""), ("Total", "hospital-1", "coordinator killed")],
}


def cut_short(folder: Path, cut: str = "opening it", mode: Any = "secagg", seed: int = 0) -> Storm:
    """FedKD; round 2's first sum was opened over four, and its second over three at most."""
    town = storm(folder, "fedkd", seed, mode=mode, most=0, plot=[*LOST, *CUT[cut]])
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    assert not town.plot
    return town


def over(town: Storm, round: int, number: int) -> dict[str, tuple[str, ...]]:
    """Who noted what of a sum."""
    return {
        party: tuple(note["survivors"])
        for party, notes in notes_of(town).items()
        for note in notes
        if (note["round"], note["sum"]) == (round, number)
    }


@pytest.mark.parametrize(
    ("cut", "mode"), [*zip(CUT, ["secagg", "he+secagg", "secagg", "he+secagg"], strict=True)]
)
def test_who_was_lost_is_left_out_of_the_second_sum_again(
    tmp_path: Path, cut: str, mode: Any
) -> None:
    town = cut_short(tmp_path, cut, mode, seed=len(cut))
    assert set(over(town, 2, 1).values()) == {FOUR}
    before = over(town, 2, 2)
    assert set(before.values()) <= {FOUR[:3]} and len(before) < 4
    town.lead(patience=0).run()
    require_no_second_sum(town)
    assert done(town) == "1234"
    require_equal(town, "fedkd")
    left = [(event["round"], event["parties"]) for event in town.seen("excluded")]
    assert left == ([(2, ["hospital-4"])] if before else [])
    assert gatherings(town) == ["1234"] * (3 if before else 2)  # it joins after the round
    assert set(over(town, 2, 2).values()) == {FOUR[:3] if before else FOUR}


def test_who_is_needed_in_a_later_sum_is_waited_for(tmp_path: Path) -> None:
    """Without hospital-2 some would note a second sum that the others refuse."""
    town = cut_short(tmp_path)
    town.plot += [("Begin", "hospital-2", ""), ("Total", "hospital-2", "stalled")]
    town.lead(patience=300).run()
    assert not town.plot and town.seen("waiting")
    assert done(town) == "1234"
    require_no_second_sum(town)
    assert set(over(town, 2, 2).values()) == {FOUR[:3]}


class Forgetful(Coordinator):
    """Asks for every sum over all who are there, whatever they had noted."""

    def _left_out(self, party: str, message: FromParty) -> bool:
        return False


@pytest.mark.parametrize("notes", ["lost", "kept"])
def test_no_second_sum_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: str
) -> None:
    """The difference of the two would be hospital-4's input; notes are what hinders it."""
    town = cut_short(tmp_path)
    if notes == "lost":
        for file in opened(tmp_path):
            file.unlink()
    monkeypatch.setattr(
        "secure_fl.pilot.coordinator_process.lead_run", partial(lead_run, make=Forgetful)
    )
    if notes == "lost":
        town.lead(patience=0).run()
        assert set(over(town, 2, 2).values()) == {FOUR}
        return
    with raises(TooFewParties, "(cohort)"):
        town.lead(patience=0).run()
    whys = [event["why"] for event in town.seen("refused") if "why" in event]
    assert whys and all("opened over hospital-1, hospital-2, hospital-3;" in why for why in whys)
    for file in opened(tmp_path)[:3]:  # the others would have refused, too
        (what,) = [
            note["what"]
            for note in map(json.loads, file.read_text().splitlines())
            if (note["round"], note["sum"]) == (2, 2)
        ]
        with raises(CohortError, round=2, field="survivors"):
            OpenedSumsLog(file).admit(2, 2, FOUR, what)
    by_all = {party for party, who in over(town, 2, 2).items() if who == FOUR}
    assert by_all <= {"hospital-4"}  # which was not told of the other; alone it opens nothing
