"""A pilot as people run it: a process each, TLS between them, and kill -9 at the wrong moment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.crypto.keys.vault import Cost
from secure_fl.pilot.progress import progress
from secure_fl.settings import ModelSettings
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import (
    free_port,
    kill,
    killed_after,
    start_party,
    this_code,
    wait_for_round,
)

pytestmark = pytest.mark.slow
NAMES = ("east", "north", "west")
LONGEST = 200.0  # seconds
Processes = dict[str, subprocess.Popen[bytes]]


@pytest.fixture
def trial(tmp_path) -> PilotFolders:
    plan = plan_of(FedAvg(rounds=4, epochs=2))
    return make_pilot_folders(tmp_path, NAMES, plan, port=free_port(), size=48, cost=Cost(log_n=10))


@contextmanager
def running(
    trial: PilotFolders, machines: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Processes]:
    machines = machines or {}
    started = {n: start_party(trial, n, **machines.get(n, {})) for n in (HUB, *trial.names)}
    with killed_after(started) as processes:
        yield processes


def ended(trial: PilotFolders, processes: Processes) -> dict[str, str]:
    """Require that all processes ended well, and return the output of each."""
    said = {}
    for name, process in processes.items():
        status = process.wait(LONGEST)
        said[name] = (trial.of(name) / "log").read_text()
        assert status == 0, said[name]
    return said


def finished(trial: PilotFolders) -> None:
    found = progress(trial.of(HUB) / "run")
    assert found["state"] == "finished" and found["round"] == 4
    models = set()
    for name in trial.names:
        run = trial.of(name) / "runs" / "run"
        result = json.loads((run / "result.json").read_text())
        assert result["status"] == "finished" and result["parties"] == [name]
        models.add((run / "model" / "model.safetensors").read_bytes())
    assert len(models) == 1  # bit for bit the same at all


REFUSING = """
import importlib.abc, sys

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "opacus", "scipy", "pandas", "datasets"):
            raise ImportError(name)

sys.meta_path.insert(0, Refusing())
"""


def test_three_hospitals_and_a_coordinator_that_cannot_train(trial, tmp_path):
    """The coordinator needs none of the libraries that read records or compute models."""
    place = tmp_path / "refusing"
    place.mkdir()
    (place / "sitecustomize.py").write_text(REFUSING)
    path = os.pathsep.join((str(place), this_code()["PYTHONPATH"]))
    with running(trial, {HUB: {"PYTHONPATH": path}}) as processes:
        said = ended(trial, processes)
    assert all("this site's rules allow it" in said[name] for name in trial.names)
    finished(trial)
    events = (trial.of(HUB) / "run" / "events.jsonl").read_text()
    assert "accuracy" not in events and "loss" not in events  # nothing of what was learned


@pytest.mark.parametrize("who", ["north", HUB])
def test_a_party_that_is_killed_comes_back(trial, who):
    with running(trial) as processes:
        wait_for_round(trial.of(HUB) / "run", 2)
        kill(processes[who])
        processes[who] = start_party(trial, who)
        said = ended(trial, processes)
    assert ("the previous process ended unexpectedly" in said[HUB]) == (who == HUB)
    finished(trial)


def test_hospitals_whose_machines_round_otherwise_share_one_student(tmp_path):
    """Threads, vector instructions and BLAS paths differ; `agree` holds the student's bits."""
    machines = {
        "east": {"OMP_NUM_THREADS": "2"},
        "north": {"MKL_CBWR": "COMPATIBLE"},
        "west": {"ATEN_CPU_CAPABILITY": "default"},
    }
    plan = plan_of(FedKD(rounds=2, student_layers=1), model=ModelSettings(layers=2))
    cheap = Cost(log_n=10)
    trial = make_pilot_folders(tmp_path, NAMES, plan, port=free_port(), size=48, cost=cheap)
    with running(trial, machines) as processes:
        ended(trial, processes)
    for name in trial.names:
        told = (trial.of(name) / "runs" / "run" / "events.jsonl").read_text()
        widths = [json.loads(line) for line in told.splitlines() if '"factor_widths"' in line]
        assert len(widths) == 2 and any(w for e in widths for w in e["widths"].values())
