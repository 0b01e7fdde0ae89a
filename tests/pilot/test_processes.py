"""A pilot as people run it: a process each, TLS between them, and kill -9 at the wrong moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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
from tests.support.processes import PROGRAM, free_port, kill, killed_after, this_code

pytestmark = pytest.mark.slow
NAMES = ("east", "north", "west")
COMMON = ("--kit", "kit", "--passphrase-file", "passphrase")
LONGEST = 200.0  # seconds


@pytest.fixture
def trial(tmp_path) -> PilotFolders:
    plan = plan_of(FedAvg(rounds=4, epochs=2))
    return make_pilot_folders(tmp_path, NAMES, plan, port=free_port(), size=48, cost=Cost(log_n=10))


def start(trial: PilotFolders, name: str, **machine: str) -> subprocess.Popen[str]:
    arguments = (
        ["coordinate", "plan.toml", *COMMON, "--out", "run", "--grace", "5"]
        if name == HUB
        else ["join", "site.toml", *COMMON]
    )
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=trial.of(name),
        env=os.environ | {"OMP_NUM_THREADS": "1"} | this_code() | machine,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def running(
    trial: PilotFolders, machines: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    machines = machines or {}
    started = {n: start(trial, n, **machines.get(n, {})) for n in (HUB, *trial.names)}
    with killed_after(started) as processes:
        yield processes


def wait_for_round(trial: PilotFolders, number: int) -> None:
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        if (trial.of(HUB) / "run" / "events.jsonl").exists():
            if progress(trial.of(HUB) / "run")["round"] >= number:
                return
        time.sleep(0.1)
    raise AssertionError(f"round {number} never came")


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


def test_three_hospitals_and_a_coordinator(trial):
    with running(trial) as processes:
        out, _ = processes[HUB].communicate(timeout=LONGEST)
        assert processes[HUB].returncode == 0, out
        for name in trial.names:
            said, _ = processes[name].communicate(timeout=30)
            assert processes[name].returncode == 0, said
            assert "this site's rules allow it" in said
    finished(trial)
    events = (trial.of(HUB) / "run" / "events.jsonl").read_text()
    assert "accuracy" not in events and "loss" not in events  # nothing of what was learned


def test_a_hospital_that_is_killed_comes_back(trial):
    with running(trial) as processes:
        wait_for_round(trial, 2)
        kill(processes["north"])
        processes["north"] = start(trial, "north")
        out, _ = processes[HUB].communicate(timeout=LONGEST)
        assert processes[HUB].returncode == 0, out
        for name in trial.names:
            processes[name].communicate(timeout=30)
    finished(trial)


def test_a_coordinator_that_is_killed_comes_back(trial):
    with running(trial) as processes:
        wait_for_round(trial, 2)
        kill(processes[HUB])
        processes[HUB] = start(trial, HUB)
        out, _ = processes[HUB].communicate(timeout=LONGEST)
        assert processes[HUB].returncode == 0, out
        assert "the previous process ended unexpectedly" in out
        for name in trial.names:
            processes[name].communicate(timeout=30)
    finished(trial)


def ended(trial: PilotFolders) -> None:
    with running(trial) as processes:
        out, _ = processes[HUB].communicate(timeout=LONGEST)
        assert processes[HUB].returncode == 0, out
        for name in trial.names:
            said, _ = processes[name].communicate(timeout=30)
            assert processes[name].returncode == 0, said


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
        out, _ = processes[HUB].communicate(timeout=LONGEST)
        assert processes[HUB].returncode == 0, out
    for name in trial.names:
        told = (trial.of(name) / "runs" / "run" / "events.jsonl").read_text()
        widths = [json.loads(line) for line in told.splitlines() if '"factors"' in line]
        assert len(widths) == 2 and any(w for e in widths for w in e["widths"].values())
