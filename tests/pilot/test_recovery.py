"""Faults that once ended a run, or would have never let it end, each by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.coordinator.resume import Unfinished
from secure_fl.errors import CohortError, RunError
from secure_fl.runs.folder import RunFolder
from secure_fl.runs.party_checkpoints import OpenedSumsLog
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal_nested
from tests.support.faults import CoordinatorKilled, Storm
from tests.support.killing import Killed, after, kill_when
from tests.support.limits import files_of_at_most
from tests.support.raising import raises
from tests.support.storm_checks import done, gatherings, newest, require_no_second_sum, undisturbed
from tests.support.storms import storm

Plot = Sequence[tuple[str, str, str]]


def plotted(folder: Path, plot: Plot, way: str = "fedavg", mode: Any = "secagg") -> Storm:
    """A town in which this happens, and nothing else."""
    return storm(folder, way, 0, mode=mode, most=0, plot=list(plot))


def require_one_model(town: Storm) -> None:
    ended = town.finished()
    models = [newest(town, name)["keep"]["model"] for name in ended]
    assert models and all(equal_nested(models[0], model) for model in models)
    require_no_second_sum(town)


def test_a_round_that_some_began_is_ended_by_them_before_others_join(tmp_path: Path) -> None:
    """Sums of round 1 were opened without hospital-2; then the coordinator died; all are back."""
    town = plotted(
        tmp_path,
        [("Agreed", "hospital-2", "stalled"), ("Total", "hospital-1", "coordinator killed")],
    )
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    town.lead(patience=0).run()
    assert gatherings(town) == ["1234", "1234", "134", "1234"]
    assert done(town) == "1234"
    require_one_model(town)


def test_who_began_a_round_and_is_away_is_waited_for(tmp_path: Path) -> None:
    """Sums of round 1 were opened over all; hospital-2 is gone when the others are gathered."""
    town = plotted(tmp_path, [("Total", "hospital-1", "coordinator killed")])
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    town.kill("hospital-2")
    with raises(Unfinished, round=1):
        town.lead(patience=0).run()
    town.lead(patience=300).run()  # it comes back while the coordinator waits
    assert gatherings(town)[-1] == "1234" and town.seen("waiting")
    assert done(town) == "1234"
    for name, keep in undisturbed("fedavg", "secagg").items():
        assert equal_nested(newest(town, name)["keep"], keep)


def test_a_repeated_round_waits_for_who_is_lost_in_it(tmp_path: Path) -> None:
    """Going on without, some would agree to a sum that others refuse, and nobody could go on."""
    town = plotted(
        tmp_path,
        [("Total", "hospital-1", "coordinator killed"), ("Agreed", "hospital-3", "stalled")],
    )
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    town.lead(patience=300).run()
    assert not town.plot and town.seen("waiting")
    assert gatherings(town) == ["1234"] * 3 and done(town) == "1234"
    for name, keep in undisturbed("fedavg", "secagg").items():
        assert equal_nested(newest(town, name)["keep"], keep)


def test_who_is_connected_and_does_not_answer_does_not_keep_the_others(tmp_path: Path) -> None:
    town = plotted(tmp_path, [("Invite", "hospital-2", "stalled")] * 50)
    town.lead(patience=0).run()
    assert gatherings(town) == ["134"] * 3  # at the start, and once after each round
    assert done(town) == "134"
    require_one_model(town)


@pytest.mark.parametrize("mode", ["none", "secagg"])
def test_an_answer_that_arrives_twice_counts_once(tmp_path: Path, mode: Any) -> None:
    town = plotted(tmp_path, [("Agreed", "hospital-2", "answered twice")], mode=mode)
    town.lead(patience=0).run()
    assert not town.plot
    for name, keep in undisturbed("fedavg", mode).items():
        assert equal_nested(newest(town, name)["keep"], keep)


@pytest.mark.parametrize("lost", ["hospital-1", "hospital-3"])  # who gives the state; who vouches
def test_a_holder_lost_while_somebody_joins_only_delays_it(tmp_path: Path, lost: str) -> None:
    town = plotted(
        tmp_path,
        [
            ("Agreed", "hospital-4", "stalled"),
            ("Gather", lost, ""),
            ("Gather", lost, ""),
            ("Agreed", lost, "stalled"),
        ],
    )
    town.plot.pop(1)  # the first gathering was before
    town.lead(patience=300).run()
    assert not town.plot and town.seen("waiting")
    assert done(town) == "1234"
    require_one_model(town)


@pytest.mark.parametrize("fault", ["killed before", "killed once answered"])
def test_a_newcomer_lost_before_it_has_the_state_costs_nothing(tmp_path: Path, fault: str) -> None:
    """Storms 144 and 159: all that had the round refused to go on from it."""
    town = plotted(
        tmp_path, [("Agreed", "hospital-2", "killed before"), ("Begin", "hospital-2", fault)]
    )
    town.lead(patience=20).run()
    assert not town.plot and town.seen("joined")[0]["parties"] == ["hospital-2"]
    refused = [told for told in town.seen("refused") if told["party"] != "coordinator"]
    assert not refused and set(done(town)) >= set("134")
    require_one_model(town)


def test_who_comes_after_the_last_round_of_a_private_run_ends_well_too(tmp_path: Path) -> None:
    """Storm 186: no DP-SGD ran on its records, so there is no ε that its model's card could say."""
    town = storm(tmp_path, "fedavg-dp", 0, mode="secagg", most=0)
    town.kill("hospital-4")
    town.nap = lambda seconds: None  # type: ignore[method-assign]
    town.lead(patience=0).run()
    town.start("hospital-4")
    town.lead(patience=0).run()
    assert done(town) == "1234"
    (card,) = (tmp_path / "hospital-4").rglob("model/README.md")
    assert "ε without a bound" in card.read_text()


def test_where_nobody_can_join_the_others_go_on_without(tmp_path: Path) -> None:
    town = plotted(
        tmp_path,
        [("Agreed", "hospital-2", "stalled"), ("Continue", "hospital-1", "coordinator killed")],
        way="heterofl",
    )
    with pytest.raises(CoordinatorKilled):
        town.lead().run()
    town.lead(patience=0).run()
    assert [event["parties"] for event in town.seen("excluded")] == [["hospital-2"]]
    assert gatherings(town) == ["123456", "123456", "13456"]
    assert done(town) == "13456"


def test_heterofl_refuses_who_comes_late(tmp_path: Path) -> None:
    """Its untrained model would go into the next sum."""
    four = silos(4, size=16)
    cfg = HeteroFL(rounds=2, widths={"weak": 0.5})

    with pytest.raises(Killed):
        small(cfg, folder=tmp_path, silos=four[:3], listener=kill_when(after(1))).run()
    with pytest.raises(CohortError, match="joined late"):
        small(cfg, folder=tmp_path, silos=four, resume=True).run()


def test_a_note_that_was_cut_short_is_not_there(tmp_path: Path) -> None:
    """The disk was full in the middle of a line: nothing was revealed, and it can go on."""
    notes = OpenedSumsLog(tmp_path / "opened.jsonl")
    notes.admit(1, 1, ("a", "b", "c"), "x")
    whole = (tmp_path / "opened.jsonl").stat().st_size
    with files_of_at_most(whole + 20), raises(RunError, reason="unwritable"):
        notes.admit(1, 2, ("a", "b"), "x")
    assert (tmp_path / "opened.jsonl").stat().st_size == whole + 20
    assert notes.rounds() == ((1, 1, ("a", "b", "c")),)
    notes.admit(1, 2, ("a", "b", "c"), "x")
    assert len((tmp_path / "opened.jsonl").read_text().splitlines()) == 2
    with raises(CohortError, "a, b, c", round=1, field="survivors"):
        notes.admit(1, 2, ("a", "b"), "x")


def test_of_sums_in_a_row_over_the_same_parties_the_last_is_told(tmp_path: Path) -> None:
    notes = OpenedSumsLog(tmp_path / "opened.jsonl")
    for number, who in enumerate(("abcd", "abcd", "abc", "ab"), 1):
        notes.admit(1, number, tuple(who), "x")
    notes.note_handover(1, ("a", "b"))
    notes.admit(2, 1, ("a", "b"), "x")
    told = [(round, number, "".join(who)) for round, number, who in notes.rounds()]
    assert told == [(1, 0, "ab"), (1, 2, "abcd"), (1, 3, "abc"), (1, 4, "ab"), (2, 1, "ab")]


def test_a_run_that_could_not_begin_on_a_full_disk_begins_later(tmp_path: Path) -> None:
    with files_of_at_most(4), raises(RunError, reason="unwritable"):
        RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=False)
    assert not (tmp_path / "settings.toml").exists()
    RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=False).close()
