"""Faults in storms: a party that is lost between two sums, and random schedules of faults."""

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
from tests.support.sampling import mostly_slow
from tests.support.storm_checks import (
    done,
    gatherings,
    notes_of,
    require_equal,
    require_no_second_sum,
    require_untouched,
    spent,
)
from tests.support.storms import MODES, WAYS, play, storm

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
    """Return the notes of each party about a sum."""
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


# --- random schedules of faults over every algorithm ----------------------------------------------


def ride(folder: Path, way: str, seed: int, **options: Any) -> tuple[Storm, str]:
    """One schedule from the first invitation to the end, with everything that must hold."""
    town = storm(folder, way, seed, **options)
    patience = (0.0, 3600.0)[seed % 2]
    before: dict[str, list[str]] = {}
    original = town.exchange

    def exchange(frames: Any, deadline: float) -> Any:
        yield from original(frames, deadline)
        now = spent(town)
        assert all(now[name][: len(was)] == was for name, was in before.items()), "ε was lost"
        before.update(now)

    if way == "fedavg-dp":
        town.exchange = exchange  # type: ignore[method-assign]
    try:
        stops = play(town, patience)
        town.calm()
        if not all(seat.done for seat in town.processes.values()):
            stops += play(town, 0)
        require_no_second_sum(town)
        assert any(seat.done for seat in town.processes.values()), f"it cannot go on: {stops[-1]}"
        if way not in ("inclusivefl", "heterofl"):
            assert all(seat.done for seat in town.processes.values()), "somebody was left behind"
        require_equal(town, way)
        return town, "untouched" if require_untouched(town, way) else "ended"
    except BaseException as error:
        again = f"ride(folder, {way!r}, {seed}, **{options})"
        error.add_note(f"to see it again: {again}; faults: {town.log}")
        raise


FEW = (("fedavg", 0, "secagg"), ("heterofl", 14, "he+secagg"), ("fedid", 17, "none"))
TWICE = [  # two schedules of each; noise takes long to account for
    (way, seed, MODES[at % 3])
    for at, way in enumerate(way for way in WAYS if way != "fedavg-dp")
    for seed in (2 * at, 2 * at + 1)
]


@pytest.mark.parametrize(("way", "seed", "mode"), mostly_slow(TWICE, *FEW))
def test_whatever_goes_wrong(tmp_path: Path, way: str, seed: int, mode: str) -> None:
    ride(tmp_path, way, seed, mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1100, 1400))
def test_whatever_goes_wrong_often(tmp_path: Path, seed: int) -> None:
    way = list(WAYS)[seed % len(WAYS)]
    ride(tmp_path, way, seed, most=8, chance=0.1)


def test_a_round_that_is_repeated_is_paid_for_once(tmp_path: Path) -> None:
    """The coordinator dies when all have trained in round 1; they send again what they sent."""
    town = storm(tmp_path, "fedavg-dp", 0, mode="none", most=0)
    town.plot.append(("Total", "hospital-1", "coordinator killed"))
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    once = spent(town)
    assert {len(entries) for entries in once.values()} == {1}
    town.lead(patience=0).run()
    paid = spent(town)
    assert {len(entries) for entries in paid.values()} == {2}
    assert all(paid[name][:1] == entries for name, entries in once.items())
    require_equal(town, "fedavg-dp")
