"""One hospital that cannot go on, or contradicts all others, does not end their run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms import updates
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import PartyFailed
from secure_fl.learning.site import Site
from secure_fl.pilot.member_faults import FAILED, MOST_FAILURES
from secure_fl.protocol import messages
from secure_fl.protocol.messages import Boundary, Failed, SumInput
from secure_fl.settings import Protection, ProtectionSettings
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

SICK = "hospital-2"


def four(folder: Path, rounds: int = 3) -> LocalPilot:
    return local_pilot(folder, plan_of(FedAvg(rounds=rounds)), 4)


def answering(
    made: LocalPilot,
    other: messages.FromParty | None,
    times: int = 99,
    after: int = 0,
    sick: Collection[str] = (SICK,),
) -> list[int]:
    """Let some hospitals answer so in place of their contributions, after so many honest ones.

    `None`: a contribution whose last byte is missing.
    """
    said = list[int]()

    def answer(honest: SumInput, bulk: bytes) -> tuple[messages.FromParty, bytes]:
        if len(said) < times + after:
            said.append(1)
            if len(said) > after:
                return (honest, bulk[:-1]) if other is None else (other, b"")
        return honest, bulk

    made.faults |= {name: {SumInput: answer} for name in sick}
    return said


@pytest.mark.parametrize("other", [Failed("training"), Boundary(1), SumInput("host", ())])  # type: ignore[arg-type]
def test_who_fails_or_contradicts_comes_back(tmp_path: Path, other: messages.FromParty) -> None:
    made = four(tmp_path)
    answering(made, other, 1)
    made.lead(patience=0).run()
    assert all(made.processes[name].done for name in made.members)


def test_who_fails_each_time_is_asked_no_more(tmp_path: Path) -> None:
    made = four(tmp_path, rounds=6)
    answering(made, Failed("training"))
    made.lead(patience=0).run()
    made.kill(SICK)  # it was left where it was
    assert made.finished() == {*made.members} - {SICK}
    assert len(made.seen("failed")) == MOST_FAILURES + 1


def test_where_too_few_are_left_its_failure_ends_the_run(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    answering(made, Failed("training"))
    with raises(PartyFailed, reason="training"):
        made.lead(patience=0).run()
    made.kill(SICK)


@pytest.mark.parametrize("others", [0, 1])
def test_what_most_fail_by_alike_names_none_of_them(tmp_path: Path, others: int) -> None:
    """One gave what none can use, and may say that it can: the first to refuse is honest."""
    made = four(tmp_path)
    answering(made, Failed("training"), sick=[*made.members][others:])
    with raises(PartyFailed, "all for the same reason") as caught:
        made.lead(patience=0).run()
    made.close()
    assert "party" not in caught.value.where and caught.value.reason == "training"


@pytest.mark.parametrize(
    "other", [Failed("training"), Boundary(9), None], ids=["fails", "contradicts", "cuts"]
)
def test_who_stays_away_from_a_needed_round_is_named(
    tmp_path: Path, other: messages.FromParty | None
) -> None:
    """It was in the first sum of a round, and fails since; then another is lost for a while.

    By its failures alone the run would wait for it in vain, and stop without a name.
    """
    made = four(tmp_path)
    said, killed = answering(made, other, after=1), list[str]()

    def after(town: LocalPilot, party: str) -> None:
        if len(said) > 1 and not killed and party == "hospital-1":
            killed.append(party)
            town.kill(party)

    made.after = after
    with pytest.raises(PartyFailed) as caught:
        made.lead(patience=50).run()
    made.close()
    assert killed and caught.value.where["party"] == SICK and caught.value.reason == FAILED


@pytest.mark.parametrize("mode", ["he+secagg", "none"])
def test_another_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Protection
) -> None:
    """Each of two kinds of sums would be over too few: the others would wait without end."""
    plan = plan_of(FedAvg(rounds=4), protection=ProtectionSettings(mode=mode))
    made = local_pilot(tmp_path, plan, 4)
    train = updates.local_update

    def wider(site: Site, *args: Any, **options: Any) -> updates.Update:
        Δ = train(site, *args, **options)
        if site.name != SICK:
            return Δ
        return {name: torch.cat([move, move[..., -1:]], dim=-1) for name, move in Δ.items()}

    monkeypatch.setattr("secure_fl.algorithms.fedavg.local_update", wider)
    made.lead(patience=0).run()
    made.kill(SICK)
    assert made.finished() == {*made.members} - {SICK}
    apart = made.seen("refused")
    assert {*apart[0]["parties"]} == {SICK} and apart[0]["code"] == "disagreement"
    assert len(apart) == MOST_FAILURES + 1  # then it is asked no more
