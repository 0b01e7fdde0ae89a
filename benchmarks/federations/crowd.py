"""A pilot of many hospital processes on one machine: memory, CPU and seconds of rounds."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.measuring import round_times, start_pilot_process
from benchmarks.report import Grid, Report
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import SettingsError
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import free_port, killed_after

GRACE = "600"  # seconds: all processes start at once, on few cores


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """Memory and CPU of one process over its whole life."""

    name: str
    peak: int  # bytes of resident memory
    cpu: float  # seconds

    @property
    def shown(self) -> tuple[str, str]:
        """Both as text."""
        return f"{self.peak / 1e6:.0f} MB", f"{self.cpu:.1f} s"


def measure(*, hospitals: int = 30, rounds: int = 5, size: int = 16) -> Report:
    """Start all processes, and read the system's accounts when they have ended."""
    names = [f"hospital-{number:02}" for number in range(1, hospitals + 1)]
    with TemporaryDirectory() as place:
        plan = plan_of(FedAvg(rounds=rounds))
        pilot = make_pilot_folders(Path(place) / "pilot", names, plan, port=free_port(), size=size)
        began = time.time()
        costs, together = run_processes(pilot)
        begins = round_times(pilot)
        document = json.loads((pilot.of(HUB) / "run" / "result.json").read_text())
    took = [after - before for before, after in pairwise(begins)]
    sent = median(ways["up"] + ways["down"] for ways in document["bytes"].values()) / rounds
    hub, sites = costs[0], costs[1:]
    middle = ProcessCost("", int(median(c.peak for c in sites)), median(c.cpu for c in sites))
    every = ProcessCost("", together, sum(cost.cpu for cost in costs))
    rows = [
        ("coordinator", *hub.shown),
        ("a hospital, median", *middle.shown),
        ("all at once, shared pages once", *every.shown),
    ]
    facts = [
        ("until the first round", f"{begins[0] - began:.1f} s"),
        ("a round, median (longest)", f"{median(took):.2f} s ({max(took):.2f} s)"),
        ("bytes up and down, a hospital and round", f"{sent / 1000:.0f} kB"),
    ]
    return Report(
        "crowd",
        {"hospitals": hospitals, "rounds": rounds, "size": size},
        0,
        {
            "processes": [asdict(cost) for cost in costs],
            "together": together,
            "rounds": took,
            "begin": begins[0] - began,
        },
        [
            Grid(f"{hospitals} hospitals", ("process", "peak memory", "CPU"), rows),
            Grid("the run", ("what", "measured"), facts),
        ],
    )


def run_processes(
    pilot: PilotFolders, within: Callable[[str], Sequence[str]] = lambda name: ()
) -> tuple[list[ProcessCost], int]:
    """Run all processes; return their costs and their memory together, at most.

    `within`: the prefix of a process's command.
    """
    started = {
        name: start_pilot_process(pilot, name, "--grace", GRACE, prefix=within(name))
        for name in (HUB, *pilot.names)
    }
    with killed_after(started) as processes:
        with _watching([process.pid for process in processes.values()]) as together:
            costs = _ended(processes)
    return costs, max(together)


def _ended(processes: Mapping[str, subprocess.Popen[bytes]]) -> list[ProcessCost]:
    costs = []
    for name, process in processes.items():
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SettingsError(f"{name} failed", fix="run `secure-fl pilot local`")
        costs.append(ProcessCost(name, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime))
    return costs


@contextmanager
def _watching(pids: Sequence[int]) -> Iterator[list[int]]:
    """Add up the memory of all processes every two seconds; shared pages count once."""
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
    """Read a process's share of the memory in use, in bytes; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
