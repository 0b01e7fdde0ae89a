"""Start-up times of `import secure_fl` and `secure-fl --help`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
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


def measure(*, repeats: int = 11) -> Report:
    """Start each command in a process of its own, in turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, arguments in COMMANDS.items():
            taken[name].append(_start(arguments))
    rows = [
        {
            "name": name,
            "seconds": median(seconds for seconds, _ in found),
            "cpu_seconds": median(cpu for _, cpu in found),
            "slowest": max(seconds for seconds, _ in found),
        }
        for name, found in taken.items()
    ]
    figures = {what: f"{{r[{what}]:.3f}}" for what in ("seconds", "cpu_seconds", "slowest")}
    clock = {name: median(seconds for seconds, _ in found) for name, found in taken.items()}
    return Report(
        "startup",
        {"repeats": repeats},
        0,
        {"rows": rows},
        [Grid.of("start-up", rows, {"": "{r[name]}", **figures})],
        [Target(f"{name}: seconds", limit, clock[name]) for name, limit in LIMITS.items()],
    )


def _start(arguments: Sequence[str]) -> tuple[float, float]:
    """Run a command and return its seconds by the clock and of CPU."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, os.times()
    user = after.children_user - before.children_user
    return seconds, user + after.children_system - before.children_system
