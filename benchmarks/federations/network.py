"""What a hospital's line costs pilots of FedKD and FedID: at 80 ms, 1 % loss and 20 Mbit/s."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.checkpoint import BUILT_IN, Checkpoint, find
from benchmarks.report import Report, Target, table
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.engines.flare import diagnosis
from secure_fl.errors import SettingsError
from secure_fl.policy.rules import Plan
from secure_fl.settings import ModelSettings
from tests.support.local_pilot import plan_of
from tests.support.network import ADDRESS, Network, NetworkLine, missing
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import PROGRAM, killed_after, this_code

NAMES = ("east", "north", "west")
HOST = "south"  # of FedID
COMMON = ("--kit", "kit", "--passphrase-file", "passphrase")
DELAY, LOSS, RATE = 0.04, 0.01, 20e6 / 8  # seconds one way, share of packets, bytes a second
LIMIT = 1.3  # of bytes over bandwidth, round trips, and training
LONGEST = 600.0
KINDS = ("calm", "bad")


@dataclass(frozen=True, slots=True)
class Rounds:
    """A run over one network: medians over its rounds but the first, at one hospital."""

    network: str
    seconds: float
    bytes: float  # both ways
    trips: float  # exchanges


def measure(
    *,
    rounds: int = 8,
    size: int = 48,
    loss: float = LOSS,
    model: str = BUILT_IN,
    congestion: str | None = None,
) -> Report:
    """Run the same pilots over calm lines and over bad ones.

    `congestion`: TCP's control of it, by the kernel's name; `None`: this machine's own.
    """
    if why := missing():
        raise SettingsError(why, fix="run it as root, where iproute2 is installed")
    started, checkpoint = time.perf_counter(), find(model)
    control = congestion or diagnosis.congestion()
    rows, results, targets = [], {}, []
    for name, plan in _plans(checkpoint, rounds).items():
        host = HOST if name == "FedID" else None
        calm, bad = _both(plan, size, NetworkLine(DELAY, loss, RATE), control, host)
        expected = bad.bytes / RATE + bad.trips * 2 * DELAY + calm.seconds
        results[name] = {"rows": [asdict(calm), asdict(bad)], "expected": expected}
        rows += [
            (name, r.network, f"{r.seconds:.2f}", f"{r.bytes / 1000:.0f}", f"{r.trips:.0f}")
            for r in (calm, bad)
        ]
        what = f"{name}: seconds over bytes, round trips and training"
        targets.append(Target(what, LIMIT, bad.seconds / expected))
    return Report(
        "network",
        {
            **{"rounds": rounds, "size": size, "delay": DELAY, "loss": loss, "rate": RATE},
            **{"model": checkpoint.identity, "congestion": control},
        },
        0,
        results,
        [table("a round", ("method", "line", "seconds", "kB both ways", "exchanges"), rows)],
        targets,
        seconds=time.perf_counter() - started,
    )


def _plans(checkpoint: Checkpoint, rounds: int) -> dict[str, Plan]:
    """FedKD with a cut of the model as student, and FedID with an exchange in each round."""
    built_in = checkpoint.label == BUILT_IN
    model = ModelSettings(name=checkpoint.name, layers=2 if built_in else None)
    fedkd = FedKD(rounds=rounds, student_layers=1 if built_in else 2)
    fedid = FedID(rounds=rounds, epochs=1, alone=0)
    return {"FedKD": plan_of(fedkd, model=model), "FedID": plan_of(fedid, model=model)}


def _both(
    plan: Plan, size: int, line: NetworkLine, control: str, host: str | None
) -> tuple[Rounds, Rounds]:
    """A pilot over calm lines and one over bad ones, at once: what slows one slows both.

    A host is one site more.
    """
    names = (*NAMES, *([host] if host else []))
    with TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        folder = Path(place) / "calm"
        made = make_pilot_folders(
            folder, names, plan, port=443, size=size, hosts=[ADDRESS], host=host
        )
        shutil.copytree(made.folder, Path(place) / "bad")
        trials = [PilotFolders(Path(place) / kind, made.names) for kind in KINDS]
        calm, bad = pool.map(partial(_run, control=control), trials, (NetworkLine(), line), KINDS)
    return calm, bad


def _run(trial: PilotFolders, like: NetworkLine, kind: str, control: str) -> Rounds:
    with Network(trial.names, control=control) as network:
        for line in network.lines.values():
            line.delay, line.loss, line.rate = like.delay, like.loss, like.rate
        started = {name: start(trial, network, name) for name in (HUB, *trial.names)}
        with killed_after(started) as processes:
            if processes[HUB].wait(LONGEST):
                raise SettingsError("the pilot failed", fix="run `secure-fl pilot local`")
    return _read(trial, kind)


def start(trial: PilotFolders, network: Network, name: str) -> subprocess.Popen[bytes]:
    """Start a hospital's or the coordinator's process where it lives in the network."""
    lead = ["coordinate", "plan.toml", *COMMON, "--out", "run", "--quiet"]
    command = lead if name == HUB else ["join", "site.toml", *COMMON, "--quiet"]
    return subprocess.Popen(
        [*network.within(name), sys.executable, "-c", PROGRAM, *command],
        cwd=trial.of(name),
        env=os.environ | {"OMP_NUM_THREADS": "1"} | this_code(),
    )


def _read(trial: PilotFolders, kind: str) -> Rounds:
    events = _lines(trial.of(HUB) / "run" / "events.jsonl")
    ends = [event["at"] for event in events if event["event"] == "round_started"]
    (transcript,) = trial.of(NAMES[0]).rglob("transcript.jsonl")
    crossings = [e for e in _lines(transcript) if e["round"] > 1]
    numbers = {e["round"] for e in crossings}
    sizes = [
        sum(e["head_bytes"] + e["bulk_bytes"] for e in crossings if e["round"] == n)
        for n in numbers
    ]
    trips = [sum(e["round"] == n and e["direction"] == "out" for e in crossings) for n in numbers]
    between = [after - before for before, after in pairwise(ends[1:])]
    return Rounds(kind, median(between), median(sizes), median(trips))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
