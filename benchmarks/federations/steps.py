"""A pilot of a probe with shared noise: seconds, CPU, bytes and exchanges of its steps.

Each hospital is a process that dials in over TLS. With a round trip, each also has a network of its
own, whose lines delay every packet.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import jsonl
from benchmarks.checkpoint import BUILT_IN, find
from benchmarks.federations.crowd import run_processes
from benchmarks.measuring import round_times
from benchmarks.report import Grid, Report, Target
from secure_fl.algorithms.probe import Probe
from secure_fl.errors import SettingsError
from secure_fl.policy.plan import Plan
from secure_fl.settings import DPSettings, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS
from tests.support.local_pilot import plan_of
from tests.support.network import ADDRESS, Network, missing
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import free_port

EPSILON = 3.0
SECONDS, SECONDS_AWAY, MEGABYTES = 30.0, 60.0, 0.5  # of 60 steps of four hospitals


def measure(
    *,
    steps: int = 60,
    hospitals: int = 4,
    size: int = 600,
    public: int = 600,
    trip: int = 0,
    model: str = BUILT_IN,
) -> Report:
    """Run the pilot once. `trip`: milliseconds of a round trip to the coordinator."""
    if trip and (why := missing()):
        raise SettingsError(why, fix="run it as root, where iproute2 is installed")
    names = [f"hospital-{number:02}" for number in range(1, hospitals + 1)]
    checkpoint = find(model)
    plan, port = _plan(steps, checkpoint.name), 443 if trip else free_port()
    places = [ADDRESS] if trip else ["localhost", "127.0.0.1"]
    with TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place) / "pilot"
        pilot = make_pilot_folders(
            folder, names, plan, port=port, size=size, hosts=places, public=public
        )
        _allow(pilot)
        network = stack.enter_context(Network(pilot.names)) if trip else None
        for line in network.lines.values() if network else ():
            line.delay = trip / 2000
        began = time.time()
        costs, _ = run_processes(pilot, network.within if network else lambda name: ())
        seconds = time.time() - began
        begins = [*round_times(pilot), began + seconds]
        measured = _read(pilot)
    took = [after - before for before, after in pairwise(begins[1:-1])]
    facts = {
        "seconds": seconds,
        "until_first": begins[0] - began,
        "step": median(took),
        "cpu": fmean(cost.cpu for cost in costs[1:]),
        "coordinator_cpu": costs[0].cpu,
    } | measured
    rows = [
        ("all", f"{seconds:.1f} s"),
        ("until the first step", f"{facts['until_first']:.1f} s"),
        ("a step, median", f"{facts['step']:.3f} s"),
        ("CPU of a hospital", f"{facts['cpu']:.1f} s"),
        ("CPU of the coordinator", f"{facts['coordinator_cpu']:.1f} s"),
        ("sent by a hospital", f"{facts['up'] / 1e6:.3f} MB"),
        ("exchanges of a step, median", f"{facts['exchanges']:.0f}"),
    ]
    most = SECONDS_AWAY if trip else SECONDS
    return Report(
        "steps",
        {
            **{"steps": steps, "hospitals": hospitals, "size": size, "public": public},
            **{"trip_ms": trip, "model": checkpoint.identity},
        },
        0,
        facts | {"processes": [asdict(cost) for cost in costs]},
        [Grid("a pilot", ("what", "measured"), rows)],
        [
            Target("seconds of the pilot", most, seconds),
            Target("MB sent by a hospital", MEGABYTES, facts["up"] / 1e6),
        ],
    )


def _plan(steps: int, model: str) -> Plan:
    dp = DPSettings(epsilon=EPSILON, noise="shared", dropouts=0, unit="record")
    return plan_of(
        Probe(fit="logistic", rounds=steps),
        task=TaskSettings(labels=LABELS, positive="ade", max_length=64),
        model=ModelSettings(name=model),
        training=TrainingSettings(device="cpu", dp=dp),
    )


def _allow(pilot: PilotFolders) -> None:
    """Let each site spend ε on records."""
    for name in pilot.names:
        file = pilot.of(name) / "site.toml"
        more = f'required = false\nmax_epsilon = {EPSILON}\nunit = "record"'
        file.write_text(file.read_text().replace("required = false", more, 1))


def _read(pilot: PilotFolders) -> dict[str, Any]:
    """Read a hospital's traffic, and its exchanges by round."""
    document = json.loads((pilot.of(HUB) / "run" / "result.json").read_text())
    (transcript,) = pilot.of(pilot.names[0]).rglob("transcript.jsonl")
    crossings = [e for e in jsonl.read(transcript) if e["direction"] == "out"]
    exchanges = Counter(e["round"] for e in crossings)
    return {
        "up": fmean(ways["up"] for ways in document["bytes"].values()),
        "exchanges": median(exchanges.values()),
        "exchanges_by_kind": dict(Counter(e["kind"] for e in crossings)),
        "bytes_by_kind": {
            kind: sum(e["head_bytes"] + e["bulk_bytes"] for e in crossings if e["kind"] == kind)
            for kind in {e["kind"] for e in crossings}
        },
    }
