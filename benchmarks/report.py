"""What all benchmarks share: CPU clocks, the machine and versions, a table, a JSON document."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.table import Table

from secure_fl.runs.result_document import versions

SCHEMA = "secure-fl/benchmark/1"
PACKAGES = (
    "sealed-federation",
    "numpy",
    "cryptography",
    "tenseal",
    "torch",
    "transformers",
    "nvflare",
)
WIDTH = 150  # of a table that goes to a file or a pipe

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A promise in numbers, and what was measured."""

    what: str
    limit: float
    measured: float
    at_least: bool = False  # else at most

    @property
    def met(self) -> bool:
        """Whether the measurement keeps the promise."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's figures, and what is needed to judge and repeat them."""

    benchmark: str
    sizes: Mapping[str, Any]
    seed: int
    results: Mapping[str, Any]  # top level of the JSON
    tables: Sequence[Table]
    targets: Sequence[Target] = ()
    seconds: float = field(default=0.0, kw_only=True)

    def document(self) -> dict[str, Any]:
        """The JSON document; `results` lie at its top level."""
        return {
            "schema": SCHEMA,
            "benchmark": self.benchmark,
            **self.results,
            "targets": [asdict(t) | {"met": t.met} for t in self.targets],
            "sizes": dict(self.sizes),
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "machine": machine(),
            "versions": versions(PACKAGES),
        }

    def show(self, console: Console) -> None:
        """Print the tables, and whether targets are met."""
        for shown in self.tables:
            console.print(shown)
        if self.targets:
            rows = [
                (
                    t.what,
                    f"{'>=' if t.at_least else '<='} {t.limit:g}",
                    f"{t.measured:.3g}",
                    "met" if t.met else "MISSED",
                )
                for t in self.targets
            ]
            console.print(table("targets", ("what", "target", "measured", ""), rows))
        console.print(f"{machine_line()}; {self.seconds:.0f} s", style="dim")


def cpu(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> tuple[float, T]:
    """CPU seconds that this process spends on some work, in all of its threads."""
    start = time.process_time()
    result = work(*args, **options)
    return time.process_time() - start, result


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay out figures: names to the left, numbers to the right."""
    laid = Table(title=title, title_justify="left", title_style="bold", box=None)
    for index, column in enumerate(columns):
        laid.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        laid.add_row(*row)
    return laid


def machine() -> dict[str, Any]:
    """The machine, in so far as figures depend on it."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),  # others at work widen the spread
    }


def machine_line() -> str:
    """The machine in a line."""
    found = machine()
    return f"{found['processor']}, {found['cores']} cores, load {found['load']}"


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
