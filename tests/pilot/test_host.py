"""A host in a pilot: what only it may open is under masks that it shares with each hospital."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secure_fl.algorithms.fedid import FedID
from secure_fl.settings import ProtectionSettings, TrainingSettings
from tests.support.clinic import Clinic
from tests.support.local_pilot import plan_of

MODES: list[dict[str, Any]] = [{}, {"mode": "secagg"}]  # {}: as it comes


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Clinic]]:
    made: list[Clinic] = []

    def make(protection: dict[str, Any], **options: Any) -> Clinic:
        training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
        plan = plan_of(
            FedID(rounds=1), protection=ProtectionSettings(**protection), training=training
        )
        made.append(Clinic(tmp_path, plan, **options))
        return made[-1]

    yield make
    for clinic in made:
        clinic.close()


@pytest.mark.parametrize("protection", MODES, ids=["default", "secagg"])
def test_fedid_runs_with_what_is_in_the_kits(opened, protection):
    clinic = opened(protection)
    clinic.run()
    assert all(seat.done for seat in clinic.processes.values())
    for name in clinic.roster.names:
        result = json.loads((clinic.folder / name / "runs" / "run" / "result.json").read_text())
        assert result["status"] == "finished"
