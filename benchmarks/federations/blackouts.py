"""Blackouts of many minutes, and a coordinator that moves: the same bits, and what ledgers pay."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.federations.network import NAMES, start
from benchmarks.report import Report, Target, table
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.errors import SettingsError
from secure_fl.pilot.progress import progress
from secure_fl.settings import DPSettings
from tests.support.local_pilot import plan_of
from tests.support.network import HUB_NAME, Network, missing
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import kill, killed_after

ROUNDS, SIZE = 6, 48
INCIDENTS = ("north is dark", "west is dark", "the coordinator has moved")
LONGEST = 900.0  # seconds for what comes after the last blackout


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that went to its end."""

    network: str
    privacy: bool
    seconds: float
    model: str  # digest, the same at all
    paid: int  # times that the hospital which paid most paid for a round


def measure(*, short: float = 6.0, long: float = 20.0) -> Report:
    """Cut two hospitals off for so many minutes, one after the other; then move the coordinator.

    Once without noise, for the bits, and once with DP-SGD, whose noise is fresh, for the ledgers.
    """
    if why := missing():
        raise SettingsError(why, fix="run it as root, where iproute2 is installed")
    started = time.perf_counter()
    with TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        plain, private = (_made(Path(place) / kind, kind) for kind in ("plain", "private"))
        calm = _over(plain, "calm", ())
        dark = pool.submit(_over, plain, "dark", (short, long))
        paid = pool.submit(_over, private, "dark", (short, long))
        runs = [calm, dark.result(), paid.result()]
    rows = [
        (
            run.network,
            "DP-SGD" if run.privacy else "none",
            f"{run.seconds:.0f}",
            run.model[:12],
            f"{run.paid}" if run.privacy else "-",
        )
        for run in runs
    ]
    more = runs[2].paid - ROUNDS
    columns = ("lines", "noise", "seconds", "model", f"payments for {ROUNDS} rounds, at most")
    return Report(
        "blackouts",
        {"short": short, "long": long, "rounds": ROUNDS, "size": SIZE},
        0,
        {"runs": [asdict(run) for run in runs], "incidents": INCIDENTS},
        [table(f"{short:g} and {long:g} minutes of darkness, and a move", columns, rows)],
        [
            Target("models that differ from the calm run's", 0, runs[1].model != calm.model),
            Target("rounds paid twice, for each incident", 1, more / len(INCIDENTS)),
        ],
        seconds=time.perf_counter() - started,
    )


def _made(folder: Path, kind: str) -> PilotFolders:
    plan = plan_of(FedAvg(rounds=ROUNDS, epochs=1))
    if kind == "private":
        dp = DPSettings(epsilon=100.0, noise_multiplier=1.0, delta=1e-3, accountant="rdp")
        plan = plan.model_copy(update={"training": plan.training.model_copy(update={"dp": dp})})
    made = make_pilot_folders(folder, NAMES, plan, port=443, size=SIZE, hosts=[HUB_NAME])
    for name in made.names:
        rules, limits = made.of(name) / "site.toml", "max_epsilon = 100.0\nmax_delta = 0.01\n"
        text = rules.read_text().replace("[site.dp]\n", f'[site.dp]\n{limits}unit = "record"\n')
        rules.write_text(text)
    return made


def _over(made: PilotFolders, kind: str, minutes: tuple[float, ...]) -> Ended:
    started = time.perf_counter()
    folder = made.folder.with_name(f"{made.folder.name}-{kind}")
    shutil.copytree(made.folder, folder)
    trial = PilotFolders(folder, made.names)
    with (
        Network(NAMES) as network,
        killed_after({name: start(trial, network, name) for name in (HUB, *NAMES)}) as processes,
    ):
        if minutes:
            _disturb(trial, network, processes, minutes)
        if processes[HUB].wait(LONGEST):
            raise SettingsError("the pilot failed", fix="see what it printed")
        for name in NAMES:
            processes[name].wait(LONGEST)
    models = {_digest(trial, name) for name in NAMES}
    if len(models) > 1:
        raise SettingsError("hospitals hold different models", fix="see what they printed")
    paid = max(_payments(trial, name) for name in NAMES)
    return Ended(kind, paid > 0, time.perf_counter() - started, models.pop(), paid)


def _disturb(
    trial: PilotFolders,
    network: Network,
    processes: dict[str, subprocess.Popen[bytes]],
    minutes: tuple[float, ...],
) -> None:
    for after, (site, dark) in enumerate(zip(("north", "west"), minutes, strict=True), 1):
        _begun(trial, after)
        network.lines[site].down = True
        time.sleep(60 * dark)
        network.lines[site].down = False
    _begun(trial, 3)
    kill(processes[HUB])
    network.move_hub()
    processes[HUB] = start(trial, network, HUB)


def _begun(trial: PilotFolders, number: int) -> None:
    run, until = trial.of(HUB) / "run", time.monotonic() + LONGEST
    while not (run / "events.jsonl").exists() or progress(run)["round"] < number:
        if time.monotonic() > until:
            raise SettingsError(f"round {number} never came", fix="see what it printed")
        time.sleep(0.05)


def _digest(trial: PilotFolders, name: str) -> str:
    model = trial.of(name) / "runs" / "run" / "model" / "model.safetensors"
    return hashlib.sha256(model.read_bytes()).hexdigest()


def _payments(trial: PilotFolders, name: str) -> int:
    file = trial.of(name) / "ledger" / name / "ledger.sqlite"
    entries = load_chain(file).entries if file.exists() else ()
    return sum(entry.state == "reserved" for entry in entries)
