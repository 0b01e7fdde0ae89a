"""Timing loops and processes that several benchmarks share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from secure_fl.runs.folder import EVENTS
from tests.support.pilot_folders import HUB, PilotFolders
from tests.support.processes import KEYS, PROGRAM, this_code

Key = TypeVar("Key")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_turns(
    ways: Mapping[Key, Callable[[], Any]], repeats: int, *, warm_up: bool = True
) -> dict[Key, list[float]]:
    """Measure the CPU seconds of several calls, which take turns."""
    taken: dict[Key, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + warm_up):
        for way, call in ways.items():
            before = time.process_time()
            call()
            if turn or not warm_up:
                taken[way].append(time.process_time() - before)
    return taken


def ratio(taken: Sequence[float], base: Sequence[float]) -> float:
    """Compute the median ratio of seconds to those of the same turns of another way."""
    return median(one / other for one, other in zip(taken, base, strict=True))


def start_pilot_process(
    folders: PilotFolders, name: str, *options: str, prefix: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the process of a hospital, or of the coordinator with these options, on one thread."""
    lead = ("coordinate", "plan.toml", *KEYS, "--out", "run", *options)
    command = lead if name == HUB else ("join", "site.toml", *KEYS)
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PROGRAM, *command, "--quiet"],
        cwd=folders.of(name),
        env=os.environ | {"OMP_NUM_THREADS": "1"} | this_code(),
    )


def round_times(folders: PilotFolders) -> list[float]:
    """Read when each round began, and when the last one ended, from the coordinator's log."""
    from benchmarks import jsonl

    events = jsonl.read(folders.of(HUB) / "run" / EVENTS)
    return [float(event["at"]) for event in events if event["event"] == "round_started"]


def resident(*, peak: bool = False, reset: bool = False) -> int | None:
    """Read this process's memory in bytes, now or at most since the last reset (Linux)."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return None
    if reset:
        clear.write_text("5")
    wanted = "VmHWM" if peak else "VmRSS"
    for line in status.read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    return None
