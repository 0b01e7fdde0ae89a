"""Parts that all benchmarks share: CPU clock, machine and versions, tables, JSON document."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
BLOCK = re.compile(r"<!-- table (?P<name>[\w -]+) -->\n.*?<!-- end -->", re.DOTALL)
WIDTH = 150  # of a table that goes to a file or a pipe

Columns = Mapping[str, str | Callable[[Any], str]]  # of a table, by their heads
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A promise in numbers, and the measurement."""

    what: str
    limit: float
    measured: float
    at_least: bool = False  # else at most

    @property
    def met(self) -> bool:
        """True if the measurement keeps the promise."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of figures, for the terminal and for Markdown pages: numbers to the right."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    align: str = "---:"  # of all Markdown columns but the first

    @classmethod
    def of(cls, title: str, rows: Iterable[Any], columns: Columns) -> Grid:
        """Lay out rows; a column is a function of a row, or a format such as "{r.seconds:.2f}"."""
        shows = [
            (lambda r, show=show: show.format(r=r)) if isinstance(show, str) else show
            for show in columns.values()
        ]
        return cls(title, tuple(columns), [tuple(show(row) for show in shows) for row in rows])

    def rich(self) -> Table:
        """Lay it out for the terminal."""
        laid = Table(title=self.title, title_justify="left", title_style="bold", box=None)
        for index, head in enumerate(self.heads):
            laid.add_column(head, justify="left" if index == 0 else "right", no_wrap=index > 0)
        for line in self.lines:
            laid.add_row(*line)
        laid.caption, laid.caption_justify = "\n".join(self.notes), "left"
        return laid

    def markdown(self) -> Iterator[str]:
        """Lay it out for a page, without the title."""
        for cells in (self.heads, ["---", *[self.align] * (len(self.heads) - 1)], *self.lines):
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
        for note in self.notes:
            yield from ("", note)


def fill(page: str, make: Callable[[str], Grid]) -> str:
    """Replace every table of a page: the text from `<!-- table NAME -->` to `<!-- end -->`."""

    def block(found: re.Match[str]) -> str:
        lines = make(found["name"]).markdown()
        return "\n".join([f"<!-- table {found['name']} -->", *lines, "<!-- end -->"])

    return BLOCK.sub(block, page)


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's figures, with the sizes and the seed to repeat them."""

    benchmark: str
    sizes: Mapping[str, Any]
    seed: int
    results: Mapping[str, Any]  # top level of the JSON
    tables: Sequence[Grid]
    targets: Sequence[Target] = ()
    seconds: float = field(default=0.0, kw_only=True)

    def document(self) -> dict[str, Any]:
        """Build the JSON document, with `results` at its top level."""
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
        """Print the tables and the targets."""
        for shown in self.tables:
            console.print(shown.rich())
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
            console.print(Grid("targets", ("what", "target", "measured", ""), rows).rich())
        console.print(f"{machine_line()}; {self.seconds:.0f} s", style="dim")


def cpu(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> tuple[float, T]:
    """Measure the CPU seconds of a call in all threads of this process."""
    start = time.process_time()
    result = work(*args, **options)
    return time.process_time() - start, result


def machine() -> dict[str, Any]:
    """Describe the machine that figures depend on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def machine_line() -> str:
    """Describe the machine in one line."""
    found = machine()
    return f"{found['processor']}, {found['cores']} cores, load {found['load']}"


def processor() -> str:
    """Return the processor's name if the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
