"""Ctrl-C and SIGTERM are heard at every moment, and end a process in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from secure_fl.cli.main import STATUSES
from secure_fl.cli.service import STOP_SIGNALS, StopSignals
from secure_fl.crypto.keys.vault import Cost
from secure_fl.pilot.progress import progress
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import KEYS, PROGRAM, free_port, this_code

STOPPED = 130
HUBS = ["coordinate", "plan.toml", *KEYS, "--out", "run"]
LONGEST = 120.0


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_at_first_it_ends_and_then_it_is_asked(number: int) -> None:
    before = signal.getsignal(number)
    asked: list[int] = []
    with StopSignals() as signals:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            time.sleep(1)
        signals.ask(lambda: asked.append(number))
        os.kill(os.getpid(), number)
    assert asked == [number] and signal.getsignal(number) is before


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> PilotFolders:
    folder, names = tmp_path_factory.mktemp("trial") / "made", ("east", "north", "west")
    port, cheap = free_port(), Cost(log_n=10)
    return make_pilot_folders(folder, names, plan_of(), port=port, size=8, cost=cheap)


def start(trial: PilotFolders, who: str, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        cwd=trial.of(who),
        env=os.environ | this_code(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def told_to_stop(process: subprocess.Popen[str]) -> str:
    process.terminate()
    said, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == STOPPED and STOPPED in STATUSES, said
    return said


@pytest.mark.slow
def test_a_coordinator_is_stopped_while_it_waits_for_hospitals(trial: PilotFolders) -> None:
    run, until = trial.of(HUB) / "run", time.monotonic() + LONGEST
    for _ in range(2):  # it can be started again
        process = start(trial, HUB, *HUBS)
        while not (run / "events.jsonl").exists() or progress(run)["state"] != "waiting":
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        assert {one["state"] for one in progress(run)["members"].values()} == {"away"}
        said = told_to_stop(process)
        assert "stopped by the operator" in said and "error" not in said
        assert progress(run)["state"] == "stopped (operator)"


@pytest.mark.slow
def test_a_hospital_is_stopped_before_it_has_read_its_files(trial: PilotFolders) -> None:
    """It opens a pipe in the place of its rules, and waits for whoever writes them."""
    pipe = trial.of("east") / "rules"
    os.mkfifo(pipe)
    process = start(trial, "east", "join", pipe.name, *KEYS)
    with pipe.open("w"):  # it has begun to read
        assert "interrupted" in told_to_stop(process)
