"""A pilot of many hospitals on one machine, a process each: memory, CPU and seconds of rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.report import Report, table
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import SettingsError
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import PROGRAM, free_port, killed_after, this_code

COMMON = ("--kit", "kit", "--passphrase-file", "passphrase", "--quiet")
GRACE = "600"  # seconds: all start at once, and wait for two cores


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took over its whole life."""

    name: str
    peak: int  # bytes of resident memory
    cpu: float  # seconds


def measure(*, hospitals: int = 30, rounds: int = 5, size: int = 16) -> Report:
    """Start them all, and look at what the system says of each when it has ended."""
    started = time.perf_counter()
    names = [f"hospital-{number:02}" for number in range(1, hospitals + 1)]
    with TemporaryDirectory() as place:
        plan = plan_of(FedAvg(rounds=rounds))
        trial = make_pilot_folders(Path(place) / "trial", names, plan, port=free_port(), size=size)
        began = time.time()
        costs, together = _run(trial)
        ends = _rounds(trial)
        took = [after - before for before, after in pairwise(ends)]
        bytes_out = _traffic(trial)
    hub, sites = costs[0], costs[1:]
    rows = [
        ("coordinator", *_shown(hub.peak, hub.cpu)),
        (
            "a hospital, median",
            *_shown(median(c.peak for c in sites), median(c.cpu for c in sites)),
        ),
        ("all at once, shared pages once", *_shown(together, sum(c.cpu for c in costs))),
    ]
    facts = [
        ("until the first round", f"{ends[0] - began:.1f} s"),
        ("a round, median (longest)", f"{median(took):.2f} s ({max(took):.2f} s)"),
        ("bytes up and down, a hospital and round", f"{bytes_out / rounds / 1000:.0f} kB"),
    ]
    return Report(
        "crowd",
        {"hospitals": hospitals, "rounds": rounds, "size": size},
        0,
        {
            "processes": [asdict(cost) for cost in costs],
            "together": together,
            "rounds": took,
            "begin": ends[0] - began,
        },
        [
            table(f"{hospitals} hospitals", ("process", "peak memory", "CPU"), rows),
            table("the run", ("what", "measured"), facts),
        ],
        seconds=time.perf_counter() - started,
    )


def _run(trial: PilotFolders) -> tuple[list[Cost], int]:
    """What each took, and the most that all together had in memory at once."""
    started = {name: _start(trial, name) for name in (HUB, *trial.names)}
    with killed_after(started) as processes:
        with _watching([process.pid for process in processes.values()]) as together:
            costs = _ended(processes)
    return costs, max(together)


def _ended(processes: Mapping[str, subprocess.Popen[bytes]]) -> list[Cost]:
    costs = []
    for name, process in processes.items():
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SettingsError(f"{name} failed", fix="run `secure-fl pilot local`")
        costs.append(Cost(name, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime))
    return costs


@contextmanager
def _watching(pids: Sequence[int]) -> Iterator[list[int]]:
    """Add up what all have in memory, every few seconds; what they share counts once."""
    over, found = Event(), [0]

    def look() -> None:
        while not over.wait(2.0):
            found.append(sum(map(_share, pids)))

    watch = Thread(target=look)
    watch.start()
    try:
        yield found
    finally:
        over.set()
        watch.join()


def _share(pid: int) -> int:
    """A process's part of the memory in use, in bytes; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _start(trial: PilotFolders, name: str) -> subprocess.Popen[bytes]:
    lead = ["coordinate", "plan.toml", *COMMON, "--out", "run", "--grace", GRACE]
    command = lead if name == HUB else ["join", "site.toml", *COMMON]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        cwd=trial.of(name),
        env=os.environ | {"OMP_NUM_THREADS": "1"} | this_code(),
    )


def _rounds(trial: PilotFolders) -> list[float]:
    """When each round began; one more than asked for is the end."""
    lines = (trial.of(HUB) / "run" / "events.jsonl").read_text().splitlines()
    return [event["at"] for event in map(json.loads, lines) if event["event"] == "round_started"]


def _traffic(trial: PilotFolders) -> float:
    document = json.loads((trial.of(HUB) / "run" / "result.json").read_text())
    return float(median(ways["up"] + ways["down"] for ways in document["bytes"].values()))


def _shown(peak: float, cpu: float) -> tuple[str, str]:
    return f"{peak / 1e6:.0f} MB", f"{cpu:.1f} s"
