"""Runs with shared noise that end in the middle: what is sent again, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl import TrainingSettings
from secure_fl.algorithms.probe import Probe
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.errors import TooFewParties
from secure_fl.events import PrivacySpent
from secure_fl.settings import DPSettings, ProtectionSettings
from secure_fl.testing.harness import LossyEngine
from secure_fl.testing.hospitals import silos, small
from tests.support.event_documents import into
from tests.support.killing import Killed, kill_when, within
from tests.support.local_pilot import plan_of, repeats_round_two

NAMES = [f"hospital-{i}" for i in (1, 2, 3, 4)]
DP = DPSettings(
    epsilon=1e4, noise_multiplier=1.0, noise="shared", dropouts=0, accountant="rdp", delta=1e-3
)
TRAINING = TrainingSettings(device="cpu", dp=DP)


def run(folder: Path, listener: Any = None, engine: Any = None, **options: Any) -> Any:
    federation = small(
        Probe(fit="logistic", rounds=5),
        "secagg",
        silos=silos(4, 16),
        training=TRAINING,
        folder=folder,
        listener=listener,
        **options,
    )
    return federation.run(engine) if engine else federation.run()


def reserved(ledger: Path) -> list[int]:
    """The steps of each reservation."""
    entries = load_chain(ledger).entries
    return [entry.round or 0 for entry in entries if entry.state == "reserved"]


def of_run(folder: Path, name: str) -> list[int]:
    return reserved(folder / "parties" / name / "ledger.sqlite")


def test_a_run_that_is_killed_in_a_step_resends_it_and_to_nobody_else(tmp_path: Path) -> None:
    """The sum of round 3 was opened at two hospitals, and no hospital has saved the round."""
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run(folder, kill_when(within(3, "hospital-2")))
    stored = {n: list((folder / "parties" / n / "trainings").glob("round-00003-*")) for n in NAMES}
    assert all(len(found) == 1 for found in stored.values())
    before = {n: found[0].read_bytes() for n, found in stored.items()}
    assert all(of_run(folder, name) == [1, 2, 3] for name in NAMES)

    def lose(sessions: Any) -> LossyEngine:
        return LossyEngine(sessions, lose={"hospital-4": 3})

    with pytest.raises(TooFewParties, match="only with all who were in it"):
        run(folder, engine=lose, resume=True)
    after = {n: found[0].read_bytes() for n, found in stored.items()}
    assert after == before and all(of_run(folder, name) == [1, 2, 3] for name in NAMES)
    events: list[dict[str, Any]] = []
    result = run(folder, into(events), resume=True)
    resent = {(e["party"], e["round"]) for e in events if e["event"] == "update_resent"}
    assert resent == {(name, 3) for name in NAMES}
    assert all(of_run(folder, name) == [1, 2, 3, 4, 5] for name in NAMES)
    assert result.document["privacy"]["shared"]["hospitals"] == 4
    assert set(result.document["privacy"]["steps"].values()) == {5}


def test_a_kill_between_reserving_and_computing_spends_a_step_once(tmp_path: Path) -> None:
    folder, killed = tmp_path / "run", {"hospital-2": 2}

    def moment(event: Any) -> bool:
        spent = isinstance(event, PrivacySpent)
        return spent and killed.get(event.party) == event.round

    with pytest.raises(Killed):
        run(folder, kill_when(moment))
    events: list[Any] = []
    run(folder, into(events), resume=True)
    spent = {name: of_run(folder, name) for name in NAMES}
    assert spent["hospital-2"] == [1, 2, 3, 4, 5]  # nothing of it was sent, so it is made again
    resent = [e["party"] for e in events if e["event"] == "update_resent"]
    assert "hospital-2" not in resent
    assert all(spent[name] == [1, 2, 3, 4, 5] for name in resent)


def test_hospitals_of_a_pilot_repeat_a_step_alike(tmp_path: Path) -> None:
    """Processes that live on and one that restarts send the same integers again.

    Other noise of one hospital in a second sum would take away its share from the others.
    """
    plan = plan_of(
        Probe(fit="logistic", rounds=3),
        training=TRAINING,
        protection=ProtectionSettings(mode="secagg", min_cohort=3),
    )
    made = repeats_round_two(tmp_path, plan)
    assert {e["party"] for e in made.seen("update_resent")} == set(made.members)
    warned = {e["party"]: e["text"] for e in made.seen("warning") if e["code"] == "noise"}
    assert warned.keys() == set(made.members)
    assert all("for 48 records of 3 hospitals" in text for text in warned.values())
    for name in made.members:
        assert reserved(tmp_path / name / "ledger" / name / "ledger.sqlite") == [1, 2, 3]
