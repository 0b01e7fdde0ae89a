"""A hospital in two halves: a courier that talks, and a trainer without network; real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.vault import Cost
from tests.support.local_pilot import plan_of
from tests.support.network import alone, not_alone
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import (
    KEYS,
    free_port,
    kill,
    killed_after,
    start_party,
    start_program,
    wait_for_round,
)

pytestmark = pytest.mark.slow
NAMES = ("east", "north", "west")
LETTERS = "letters"
LONGEST = 240.0  # seconds
ROUNDS = 4
HALVES = {
    "trainer": ("join", "site.toml", *KEYS, "--through", LETTERS),
    "courier": ("courier", LETTERS, "--kit", "kit"),
}
Processes = dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PilotFolders:
    folder = tmp_path_factory.mktemp("trial") / "made"
    plan = plan_of(FedAvg(rounds=ROUNDS, epochs=2))
    return make_pilot_folders(folder, NAMES, plan, port=free_port(), size=48, cost=Cost(log_n=10))


@pytest.fixture(scope="module")
def plain(made: PilotFolders, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a run in which every hospital dials itself."""
    return run(made, tmp_path_factory.mktemp("plain") / "trial", halves=False)[0]


def start_half(trial: PilotFolders, what: str, *prefix: str) -> subprocess.Popen[bytes]:
    here = trial.of("north")
    return start_program(here, *HALVES[what], prefix=prefix, log=f"{what}.log")


@contextmanager
def running(trial: PilotFolders, *, halves: bool, prefix: tuple[str, ...]) -> Iterator[Processes]:
    """North is in two halves, the others are whole."""
    whole = (HUB, "east", "west", *([] if halves else ["north"]))
    processes = {name: start_party(trial, name) for name in whole}
    if halves:
        processes["courier"] = start_half(trial, "courier")
        processes["trainer"] = start_half(trial, "trainer", *prefix)
    with killed_after(processes):
        yield processes


def run(
    made: PilotFolders,
    folder: Path,
    disturb: Callable[[PilotFolders, Processes], None] = lambda trial, processes: None,
    *,
    halves: bool = True,
    prefix: tuple[str, ...] = (),
) -> tuple[bytes, PilotFolders]:
    """The model that a run ends with, bit for bit the same at all."""
    shutil.copytree(made.folder, folder)
    trial = PilotFolders(folder, made.names)
    with running(trial, halves=halves, prefix=prefix) as processes:
        disturb(trial, processes)
        status = processes[HUB].wait(LONGEST)
        assert status == 0, "\n".join(log.read_text() for log in folder.rglob("*log"))
        for process in processes.values():
            assert process.wait(30) == 0
    runs = [trial.of(name) / "runs" / "run" for name in NAMES]
    assert all(json.loads((r / "result.json").read_text())["status"] == "finished" for r in runs)
    (model,) = {(r / "model" / "model.safetensors").read_bytes() for r in runs}
    return model, trial


def restart(trial: PilotFolders, processes: Processes, what: str) -> None:
    kill(processes[what])
    processes[what] = start_half(trial, what)


def test_killed_in_turn_they_end_with_the_same_bits(
    made: PilotFolders, plain: bytes, tmp_path
) -> None:
    def disturb(trial: PilotFolders, processes: Processes) -> None:
        for round, what in ((2, "courier"), (3, "trainer"), (4, "courier")):
            wait_for_round(trial.of(HUB) / "run", round)
            restart(trial, processes, what)

    model, trial = run(made, tmp_path / "trial", disturb)
    assert model == plain
    log = (trial.of("north") / "courier.log").read_text()
    assert "waits for a trainer" in log and "the trainer is running" in log
    assert os.listdir(trial.of("north") / LETTERS / "to-trainer") == ["beat"]


@pytest.mark.skipif(bool(why := not_alone()), reason=why)
def test_a_trainer_without_any_network(made: PilotFolders, plain: bytes, tmp_path) -> None:
    model, trial = run(made, tmp_path / "trial", prefix=alone())
    assert model == plain
    said = (trial.of("north") / "trainer.log").read_text()
    assert "connected to the coordinator" in said
