"""A host in a pilot: what only it may open is under masks that it shares with each hospital."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secure_fl.algorithms.fedid import FedID
from secure_fl.settings import Protection, ProtectionSettings, TrainingSettings
from tests.support.clinic import Clinic
from tests.support.local_pilot import plan_of


@pytest.mark.parametrize("mode", ["he+secagg", "secagg"])
def test_fedid_runs_with_what_is_in_the_kits(tmp_path: Path, mode: Protection) -> None:
    training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
    protection = ProtectionSettings(mode=mode)
    clinic = Clinic(tmp_path, plan_of(FedID(rounds=1), protection=protection, training=training))
    clinic.run()
    assert all(process.done for process in clinic.processes.values())
    clinic.close()
    for name in clinic.roster.names:
        result = json.loads((tmp_path / name / "runs" / "run" / "result.json").read_text())
        assert result["status"] == "finished"
