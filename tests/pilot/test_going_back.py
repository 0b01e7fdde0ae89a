"""Somebody says that all must go back: nobody loses a round, or budget, by that alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator import steps
from secure_fl.coordinator.resume import Continuation
from secure_fl.errors import SecureFLError, TooFewParties
from secure_fl.runs import checkpoint
from secure_fl.testing.pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

LIAR, OTHERS = "hospital-4", ("hospital-1", "hospital-2", "hospital-3")


def kept(made: LocalPilot, name: str) -> list[str]:
    folder = made.folder / name / "run" / "parties" / name / "checkpoints"
    return sorted(path.name for path in folder.glob("round-*"))


def wiping(made: LocalPilot) -> Callable[[LocalPilot, str], None]:
    """The liar's disk is empty, it says, once a sum of the fourth round was opened."""
    own, done = made.folder / LIAR / "run" / "parties" / LIAR / "checkpoints", list[str]()

    def after(town: LocalPilot, party: str) -> None:
        notes = (made.folder / LIAR).rglob("opened/*/*.jsonl")
        begun = any('"round": 4' in file.read_text() for file in notes)
        if party == LIAR and begun and not done:
            done.append(party)
            town.kill(party)
            for round in own.glob("round-*"):
                shutil.rmtree(round)
            town.start(party)

    return after


def four_rounds(folder: Path, *, goes_back: bool) -> LocalPilot:
    made = local_pilot(folder, plan_of(FedAvg(rounds=4)), count=4, goes_back=goes_back)
    made.after = wiping(made)
    return made


def test_one_members_empty_disk_sends_all_back_where_operators_allow_it(tmp_path: Path) -> None:
    made = four_rounds(tmp_path, goes_back=True)
    made.lead(patience=0).run()
    assert len([told for told in made.seen("gathered")]) == 2
    rounds = [told["round"] for told in made.seen("round") if told["party"] == "hospital-1"]
    assert rounds == [1, 2, 3, 1, 2, 3, 4]


def test_one_members_empty_disk_costs_the_others_no_round(tmp_path: Path) -> None:
    made = four_rounds(tmp_path, goes_back=False)
    with raises(TooFewParties, "(cohort)"):
        made.lead(patience=0).run()
    (told, *_) = made.seen("refused")
    assert "--go-back" in told["why"] and "after_round" in told["why"]
    assert made.seen("goes back")[-1]["parties"] == [LIAR]  # whom operators have to ask
    assert all(kept(made, name) == ["round-00002", "round-00003"] for name in OTHERS)
    made.goes_back = True  # it is true, and they say so
    for name in made.members:
        made.kill(name)
        made.start(name)
    made.lead(patience=0).run()
    assert all(process.done for process in made.processes.values())


def rewound(made: LocalPilot, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two rounds: a coordinator gathers three of four, and says that all begin anew."""
    lead = made.lead(patience=0)

    def stop_in_the_third(town: LocalPilot, _: str) -> None:
        lead.stopping = any(told["round"] == 2 for told in town.seen("round"))

    made.before = stop_in_the_third
    with pytest.raises(SecureFLError):
        lead.run()
    made.before = lambda town, party: None
    for name in made.members:
        made.kill(name)
        made.start(name)
    made.kill(LIAR)
    monkeypatch.setattr(steps, "continuation", lambda *_: Continuation(0))
    with pytest.raises(SecureFLError):
        made.lead(patience=0).run()
    monkeypatch.undo()


@pytest.mark.parametrize("dropped", [False, True])
def test_what_a_coordinator_says_deletes_nothing_before_a_sum_was_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    """Its first sum is refused, over others than before; until then nothing may be gone."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=4)), count=4, goes_back=True)
    if dropped:
        monkeypatch.setattr(checkpoint, "set_aside", checkpoint.remove)
    rewound(made, monkeypatch)
    for name in made.members:
        made.kill(name)
        made.start(name)
    made.lead(patience=0).run()
    rounds = [told["round"] for told in made.seen("round") if told["party"] == "hospital-1"]
    assert rounds.count(1) == (2 if dropped else 1), rounds
