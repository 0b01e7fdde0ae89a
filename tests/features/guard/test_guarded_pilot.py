"""A guarded pilot: hospitals undo a round that one of them spoils, and what sites' rules say."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import SecureFLError
from secure_fl.features.guard import guard
from secure_fl.features.guard.feature import section_of
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.federation.run_feature import SiteLimits
from secure_fl.pilot.plan import read_plan, write_plan
from secure_fl.pilot.progress import progress
from secure_fl.runs import checkpoint
from tests.support.equality import equal_nested
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of

GUARD = GuardSettings(most=1)


def spoilt(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """All three hospitals find the state worse after this round."""
    asked = count()
    monkeypatch.setattr(guard, "harm", lambda *_: 1.0 if next(asked) // 3 + 1 == round else -1.0)


def test_a_plan_with_a_guard_is_read_as_it_was_written() -> None:
    plan = plan_of(guard=GuardSettings(share=0.6, search=True, max_growth=None))
    assert read_plan(write_plan(plan)) == plan
    assert section_of(read_plan(write_plan(plan_of()))) is None


def test_hospitals_undo_a_round_and_tell_their_own_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=2), guard=GUARD))
    spoilt(monkeypatch, 2)
    models: dict[tuple[str, int], dict[str, Any]] = {}  # by hospital and round

    def remember(town: LocalPilot, party: str) -> None:
        for file in (town.folder / party).rglob("checkpoints/round-*"):
            if (party, round := int(file.name[-5:])) not in models:
                models[party, round] = checkpoint.load(file)["keep"]["model"]

    made.after = remember
    made.lead().run()
    told = [(e["party"], e["round"], e["refused"]) for e in made.seen("guard")]
    assert {(round, refused) for _, round, refused in told} == {(1, False), (2, True), (3, False)}
    assert len(told) == 9 and len(models) == 9
    for name in made.members:
        assert equal_nested(models[name, 1], models[name, 2])  # undone
        assert not equal_nested(models[name, 2], models[name, 3])
        assert equal_nested(models[name, 3], models["hospital-1", 3])
    folder = tmp_path / "hospital-1" / "run"
    assert any("refused" in note for note in progress(folder)["notes"])


def test_a_pilot_that_is_refused_too_often_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=2), guard=GUARD))
    monkeypatch.setattr(guard, "harm", lambda *rest: 1.0)
    with pytest.raises(SecureFLError):
        made.lead().run()
    assert {e["code"] for e in made.seen("refused")} == {"refused-rounds"}


def test_a_site_s_own_cap_is_what_it_votes_by(tmp_path: Path) -> None:
    """Between the rounds of a run norms change by more than this site allows: it is against all."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=2), guard=GUARD))
    strict = made.processes["hospital-2"]
    strict._context = replace(strict._context, limits=SiteLimits(options={"max_growth": 1e-9}))
    made.lead().run()
    votes = {(e["party"], e["own_vote"]) for e in made.seen("guard")}
    assert ("hospital-2", True) in votes and ("hospital-1", True) not in votes


def test_votes_that_one_party_decides_are_refused_at_the_site(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), guard=GuardSettings(share=0.95)))
    with pytest.raises(SecureFLError):
        made.lead().run()
    assert {e["code"] for e in made.seen("refused")} == {"settings"}
