"""How long it takes until something happens: `import secure_fl`, and `secure-fl --help`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from types import MappingProxyType

from benchmarks.report import Grid, Report, Target

LIMITS: Mapping[str, float] = MappingProxyType({"import secure_fl": 0.3, "secure-fl --help": 0.5})
HELP = "from secure_fl.cli.main import main; main(['--help'])"
COMMANDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "python alone": ("-c", "pass"),
        "import secure_fl": ("-c", "import secure_fl"),
        "secure-fl --help": ("-c", HELP),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One command: medians of seconds by the clock and of CPU."""

    name: str
    seconds: float
    cpu_seconds: float
    slowest: float


def measure(*, repeats: int = 11) -> Report:
    """Start each command in a process of its own, in turns."""
    started = time.perf_counter()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, arguments in COMMANDS.items():
            taken[name].append(_start(arguments))
    rows = [
        Row(name, median(s for s, _ in found), median(c for _, c in found), max(found)[0])
        for name, found in taken.items()
    ]
    cells = [(r.name, f"{r.seconds:.3f}", f"{r.cpu_seconds:.3f}", f"{r.slowest:.3f}") for r in rows]
    return Report(
        "startup",
        {"repeats": repeats},
        0,
        {"rows": [asdict(row) for row in rows]},
        [Grid("start-up", ("", "seconds", "CPU seconds", "slowest"), cells)],
        [Target(f"{r.name}: seconds", LIMITS[r.name], r.seconds) for r in rows if r.name in LIMITS],
        seconds=time.perf_counter() - started,
    )


def _start(arguments: Sequence[str]) -> tuple[float, float]:
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, os.times()
    user = after.children_user - before.children_user
    return seconds, user + after.children_system - before.children_system
