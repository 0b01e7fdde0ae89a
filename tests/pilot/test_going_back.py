"""Somebody says that all must go back: nobody loses a round, or budget, by that alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator import run_steps as steps
from secure_fl.coordinator.resume import Continuation
from secure_fl.errors import PartyFailed, SecureFLError, TooFewParties
from secure_fl.files import remove_file
from secure_fl.pilot.member_faults import MOST_FAILURES
from secure_fl.pilot.progress import EarlierEvents
from secure_fl.protocol.messages import Ready
from secure_fl.runs import checkpoint
from tests.support.event_documents import event_of
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
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
                round.unlink()
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
    rounds = [told["round"] for told in made.seen("round_saved", "hospital-1")]
    assert rounds == [1, 2, 3, 1, 2, 3, 4]


def test_one_members_empty_disk_costs_the_others_no_round(tmp_path: Path) -> None:
    made = four_rounds(tmp_path, goes_back=False)
    with raises(TooFewParties, "(cohort)"):
        made.lead(patience=0).run()
    (told, *_) = made.seen("refused")
    assert "--go-back" in told["why"] and "after_round" in told["why"]
    assert made.seen("rounds_repeated")[-1]["parties"] == [LIAR]  # whom operators have to ask
    assert all(kept(made, name) == ["round-00002", "round-00003"] for name in OTHERS)
    made.goes_back = True  # it is true, and they say so
    for name in made.members:
        made.restart(name)
    made.lead(patience=0).run()
    assert all(process.done for process in made.processes.values())


def say_empty(made: LocalPilot) -> None:
    """Let the liar say at each gathering that it has saved nothing."""

    def empty(honest: Ready, bulk: bytes) -> tuple[Ready, bytes]:
        return structs.replace(honest, checkpoints=(), opened=()), bulk

    made.faults[LIAR] = {Ready: empty}


def test_an_empty_disk_each_time_does_not_repeat_a_round_for_ever(tmp_path: Path) -> None:
    """One is lost in the first round, and comes back after it: all gather, and begin it again."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=3)), count=5)
    kills = {10: "hospital-3", 14: "hospital-2", 21: "hospital-3"}

    def after(town: LocalPilot, party: str) -> None:
        assert town.exchanges < 200, "it goes on for ever"
        if kills.get(town.exchanges) == party:
            del kills[town.exchanges]
            town.kill(party)

    say_empty(made)
    made.after = after
    with raises(PartyFailed, party=LIAR):
        made.lead(patience=20).run()
    made.close()
    ended = [told["round"] for told in made.seen("round_saved", "hospital-1")]
    assert ended == [1, 1] and kept(made, "hospital-1") == ["round-00001", "round-00002"]
    assert [told["parties"] for told in made.seen("rounds_missing")] == [[LIAR]] * 2


def test_who_lacks_what_it_had_too_often_is_left_out(tmp_path: Path) -> None:
    """The others have the state, and need nobody's word for it."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=MOST_FAILURES + 3)), count=4)

    def empty(honest: Ready, bulk: bytes) -> tuple[Ready, bytes]:
        for round in (made.folder / LIAR).rglob("checkpoints/round-*"):
            round.unlink()
        return structs.replace(honest, checkpoints=()), bulk

    def after(town: LocalPilot, party: str) -> None:
        round = len([told for told in town.seen("round_saved") if told["party"] == OTHERS[0]])
        if party == OTHERS[0] and len(begun) < round <= MOST_FAILURES + 1:
            begun.append(round)
            town.restart(party)

    begun = list[int]()
    made.faults[LIAR] = {Ready: empty}
    made.after = after
    made.lead(patience=20).run()
    made.kill(LIAR)
    assert all(made.processes[name].done for name in OTHERS)
    assert [told["parties"] for told in made.seen("rounds_missing")] == [[LIAR]] * (
        MOST_FAILURES + 1
    )
    assert [LIAR] in [told["parties"] for told in made.seen("excluded")]


def test_who_lacks_what_it_had_is_left_out_where_the_others_can_go_on(tmp_path: Path) -> None:
    """Storm 189: by its word and another's absence too few held the last round; nobody was named.

    The coordinator that hears it is another process than the one that it told it had saved.
    """
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=3)), count=5)
    kills = {13: LIAR, 18: "hospital-2", 28: "hospital-5"}

    def after(town: LocalPilot, party: str) -> None:
        if kills.get(town.exchanges) == party:
            del kills[town.exchanges]
            town.kill(party)

    say_empty(made)
    made.after = after
    made.lead(patience=20).run()
    assert not kills and made.down == {"hospital-5"}
    made.start("hospital-5")
    told = [event for event in made.events if event["party"] == "coordinator"]
    made.lead(patience=0, earlier=EarlierEvents.read(map(event_of, told))).run()
    made.kill(LIAR)
    assert all(made.processes[name].done for name in (*OTHERS, "hospital-5"))
    assert [told["parties"] for told in made.seen("rounds_missing")] == [[LIAR]] * 2


def rewound(made: LocalPilot, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two rounds: a coordinator gathers three of four, and says that all begin anew."""
    lead = made.lead(patience=0)

    def stop_in_the_third(town: LocalPilot, _: str) -> None:
        lead.stopping = any(told["round"] == 2 for told in town.seen("round_saved"))

    made.before = stop_in_the_third
    with pytest.raises(SecureFLError):
        lead.run()
    made.before = lambda town, party: None
    for name in made.members:
        made.restart(name)
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
        monkeypatch.setattr(checkpoint, "set_aside", remove_file)
    rewound(made, monkeypatch)
    for name in made.members:
        made.restart(name)
    made.lead(patience=0).run()
    rounds = [told["round"] for told in made.seen("round_saved", "hospital-1")]
    assert rounds.count(1) == (2 if dropped else 1), rounds
