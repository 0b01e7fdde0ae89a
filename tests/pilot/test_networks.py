"""A pilot over lines as hospitals have them ends with the same bits, and says its waits."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.vault import Cost
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.policy.plan import Plan
from secure_fl.settings import DPSettings
from tests.support.local_pilot import plan_of
from tests.support.network import HUB_NAME, Network, missing
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import kill, killed_after, start_party, wait_for_round

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := missing()), reason=why)]
NAMES = ("east", "north", "west")
LONGEST = 240.0  # seconds
ROUNDS = 5
Processes = dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PilotFolders:
    """A trial behind port 443."""
    return make(tmp_path_factory.mktemp("trial") / "made", plan_of(FedAvg(rounds=ROUNDS, epochs=2)))


def make(folder: Path, plan: Plan) -> PilotFolders:
    cheap = Cost(log_n=10)
    return make_pilot_folders(folder, NAMES, plan, port=443, size=48, cost=cheap, hosts=[HUB_NAME])


@pytest.fixture(scope="module")
def calm(made: PilotFolders, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return over(made, tmp_path_factory.mktemp("calm") / "trial", lambda network, run: None)[0]


@contextmanager
def running(trial: PilotFolders, network: Network) -> Iterator[Processes]:
    started = {n: start_party(trial, n, network.within(n)) for n in (HUB, *NAMES)}
    with killed_after(started) as processes:
        yield processes


def over(
    made: PilotFolders,
    folder: Path,
    disturb: Callable[[Network, Path], None],
    *,
    moves: bool = False,
) -> tuple[bytes, dict[str, str]]:
    """The model that a run over some network ends with, and everybody's log.

    `moves`: when it was disturbed, the coordinator is killed, and begins again at another address.
    """
    shutil.copytree(made.folder, folder)
    trial = PilotFolders(folder, made.names)
    with Network(NAMES) as network, running(trial, network) as processes:
        disturb(network, trial.of(HUB) / "run")
        if moves:
            kill(processes[HUB])
            network.move_hub()
            processes[HUB] = start_party(trial, HUB, network.within(HUB))
        assert processes[HUB].wait(LONGEST) == 0, (trial.of(HUB) / "log").read_text()
    logs = {name: (trial.of(name) / "log").read_text() for name in (HUB, *NAMES)}
    models = {
        (trial.of(name) / "runs" / "run" / "model" / "model.safetensors").read_bytes()
        for name in NAMES
        if (trial.of(name) / "runs" / "run" / "result.json").exists()
    }
    (model,) = models
    return model, logs


def test_a_slow_line_behind_a_firewall(made: PilotFolders, calm: bytes, tmp_path: Path) -> None:
    def bad(network: Network, run: Path) -> None:
        for line in network.lines.values():
            line.delay, line.loss, line.rate = 0.04, 0.01, 20e6 / 8
            line.ports, line.forgets = frozenset({443}), 20.0

    model, _ = over(made, tmp_path / "trial", bad)
    assert model == calm


def test_a_blackout_and_another_address(made: PilotFolders, calm: bytes, tmp_path: Path) -> None:
    """Longer than a broken line is noticed, than the grace, and than TCP's first tries."""

    def dark(network: Network, run: Path) -> None:
        wait_for_round(run, 2)
        network.lines["north"].down = True
        time.sleep(45)
        network.lines["north"].down = False
        wait_for_round(run, 3)
        network.move("west")

    model, logs = over(made, tmp_path / "trial", dark)
    assert model == calm
    assert "lost: north" in logs[HUB] and "waits for north" in logs[HUB]
    assert "waits for north" in logs["east"] and logs["east"].count("waits for north") < 4
    for name in NAMES:
        opened = [
            json.loads(line)
            for file in (tmp_path / "trial" / name).rglob("opened/*/*.jsonl")
            for line in file.read_text().splitlines()
        ]
        assert opened


def test_a_coordinator_that_moved(made: PilotFolders, calm: bytes, tmp_path: Path) -> None:
    model, logs = over(made, tmp_path / "trial", lambda _, run: wait_for_round(run, 2), moves=True)
    assert model == calm
    assert logs[HUB].count("listening on") == 2


def test_nobodys_ledger_pays_for_more_than_one_round_that_is_repeated(tmp_path: Path) -> None:
    """One hospital is dark for longer than the grace; later the coordinator moves."""
    plan = plan_of(FedAvg(rounds=ROUNDS, epochs=1))
    dp = DPSettings(epsilon=100.0, noise_multiplier=1.0, delta=1e-3, accountant="rdp")
    private = plan.training.model_copy(update={"dp": dp})
    trial = make(tmp_path / "made", plan.model_copy(update={"training": private}))
    for name in NAMES:
        rules, limits = trial.of(name) / "site.toml", "max_epsilon = 100.0\nmax_delta = 0.01\n"
        text = rules.read_text().replace("[site.dp]\n", f'[site.dp]\n{limits}unit = "record"\n')
        rules.write_text(text)

    def dark(network: Network, run: Path) -> None:
        wait_for_round(run, 2)
        network.lines["north"].down = True
        time.sleep(30)
        network.lines["north"].down = False
        wait_for_round(run, 3)

    over(trial, tmp_path / "trial", dark, moves=True)
    for name in NAMES:
        entries = load_chain(tmp_path / "trial" / name / "ledger" / name / "ledger.sqlite").entries
        paid = sum(entry.state == "reserved" for entry in entries)
        assert ROUNDS <= paid <= ROUNDS + 1
