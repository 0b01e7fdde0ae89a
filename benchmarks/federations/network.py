"""Cost of a bad line (80 ms, 1 % loss, 20 Mbit/s) for pilots of FedKD and FedID."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import jsonl
from benchmarks.checkpoint import BUILT_IN, Checkpoint, find
from benchmarks.measuring import round_times, start_pilot_process
from benchmarks.report import Columns, Grid, Report, Target
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.engines.flare import diagnosis
from secure_fl.errors import SettingsError
from secure_fl.policy.plan import Plan
from secure_fl.settings import ModelSettings
from tests.support.local_pilot import plan_of
from tests.support.network import ADDRESS, Network, NetworkLine, missing
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import killed_after

NAMES = ("east", "north", "west")
HOST = "south"  # of FedID
DELAY, LOSS, RATE = 0.04, 0.01, 20e6 / 8  # seconds one way, share of packets, bytes a second
LIMIT = 1.3  # of bytes over bandwidth, round trips, and training
LONGEST = 600.0
KINDS = ("calm", "bad")


@dataclass(frozen=True, slots=True)
class LineRow:
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

    `congestion`: TCP's congestion control by the kernel's name; default: the machine's.
    """
    if why := missing():
        raise SettingsError(why, fix="run it as root, where iproute2 is installed")
    checkpoint, control = find(model), congestion or diagnosis.congestion()
    results: dict[str, Any] = {}
    rows: list[tuple[str, LineRow]] = []
    targets = []
    for name, plan in _plans(checkpoint, rounds).items():
        host = HOST if name == "FedID" else None
        calm, bad = _both(plan, size, NetworkLine(DELAY, loss, RATE), control, host)
        expected = bad.bytes / RATE + bad.trips * 2 * DELAY + calm.seconds
        results[name] = {"rows": [asdict(calm), asdict(bad)], "expected": expected}
        rows += [(name, calm), (name, bad)]
        what = f"{name}: seconds over bytes, round trips and training"
        targets.append(Target(what, LIMIT, bad.seconds / expected))
    columns: Columns = {
        "method": "{r[0]}",
        "line": "{r[1].network}",
        "seconds": "{r[1].seconds:.2f}",
        "kB both ways": lambda r: f"{r[1].bytes / 1000:.0f}",
        "exchanges": "{r[1].trips:.0f}",
    }
    return Report(
        "network",
        {
            **{"rounds": rounds, "size": size, "delay": DELAY, "loss": loss, "rate": RATE},
            **{"model": checkpoint.identity, "congestion": control},
        },
        0,
        results,
        [Grid.of("a round", rows, columns)],
        targets,
    )


def _plans(checkpoint: Checkpoint, rounds: int) -> dict[str, Plan]:
    """Plan FedKD with a cut of the model as student, and FedID with an exchange in each round."""
    built_in = checkpoint.label == BUILT_IN
    model = ModelSettings(name=checkpoint.name, layers=2 if built_in else None)
    fedkd = FedKD(rounds=rounds, student_layers=1 if built_in else 2)
    fedid = FedID(rounds=rounds, epochs=1, alone=0)
    return {"FedKD": plan_of(fedkd, model=model), "FedID": plan_of(fedid, model=model)}


def _both(
    plan: Plan, size: int, line: NetworkLine, control: str, host: str | None
) -> tuple[LineRow, LineRow]:
    """Run a pilot over calm lines and one over bad ones, at once, so that load slows both.

    A host is one site more.
    """
    names = (*NAMES, *([host] if host else []))
    with TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        folder = Path(place) / "calm"
        made = make_pilot_folders(
            folder, names, plan, port=443, size=size, hosts=[ADDRESS], host=host
        )
        shutil.copytree(made.folder, Path(place) / "bad")
        pilots = [PilotFolders(Path(place) / kind, made.names) for kind in KINDS]
        calm, bad = pool.map(partial(_run, control=control), pilots, (NetworkLine(), line), KINDS)
    return calm, bad


def _run(pilot: PilotFolders, like: NetworkLine, kind: str, control: str) -> LineRow:
    with Network(pilot.names, control=control) as network:
        for line in network.lines.values():
            line.delay, line.loss, line.rate = like.delay, like.loss, like.rate
        started = {
            name: start_pilot_process(pilot, name, prefix=network.within(name))
            for name in (HUB, *pilot.names)
        }
        with killed_after(started) as processes:
            if processes[HUB].wait(LONGEST):
                raise SettingsError("the pilot failed", fix="run `secure-fl pilot local`")
    (transcript,) = pilot.of(NAMES[0]).rglob("transcript.jsonl")
    crossings = [e for e in jsonl.read(transcript) if e["round"] > 1]
    by_round = [
        [e for e in crossings if e["round"] == number] for number in {e["round"] for e in crossings}
    ]
    sizes = [sum(e["head_bytes"] + e["bulk_bytes"] for e in found) for found in by_round]
    trips = [sum(e["direction"] == "out" for e in found) for found in by_round]
    between = [after - before for before, after in pairwise(round_times(pilot)[1:])]
    return LineRow(kind, median(between), median(sizes), median(trips))
