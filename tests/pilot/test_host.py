"""A host in a pilot: what only it may open is under masks that it shares with each hospital."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secure_fl.algorithms.fedid import FedID
from secure_fl.settings import ProtectionSettings, TrainingSettings
from tests.support.clinic import HUB, Clinic
from tests.support.local_pilot import plan_of
from tests.support.processes import PROGRAM, free_port, killed_after, this_code

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


@pytest.mark.slow
def test_fedid_in_processes_over_flare(opened):
    clinic = opened({}, port=free_port())
    processes = {}
    for name in (HUB, *clinic.roster.names):
        kit = ["--kit", f"../kits/{name}", "--passphrase-file", "passphrase"]
        arguments = ["join", "site.toml", *kit]
        if name == HUB:
            arguments = ["coordinate", "plan.toml", *kit, "--out", "run"]
        processes[name] = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=clinic.folder / name,
            env=os.environ | this_code(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    with killed_after(processes):
        for process in processes.values():
            said, _ = process.communicate(timeout=200)
            assert process.returncode == 0, said
    for name in clinic.roster.names:
        result = json.loads((clinic.folder / name / "runs" / "run" / "result.json").read_text())
        assert result["status"] == "finished"
