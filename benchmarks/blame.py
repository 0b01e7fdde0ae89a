"""Cost of blame: `python -m benchmarks blame --base CHECKOUT`.

Fault-free sums of this checkout and of another one take turns, each in a process of its own: the
protocol's bookkeeping for inquiries must not slow them down. An inquiry is measured as the CPU time
that a spoiled sum takes more than a fault-free one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
SHAPES = (
    ("secagg", 5, 64),
    ("he+secagg", 5, 64),
    ("secagg", 5, 300_000),
    ("he+secagg", 5, 300_000),
)

WORKER = """
import sys, time
import numpy as np
from secure_fl.federation.assembly import make_keys
from secure_fl.protocol.messages import Finding, SumInput
from secure_fl.testing.harness import federate
mode, parties, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = [f"hospital-{k}" for k in range(parties)]
keys, value = make_keys(mode, names, None), {"x": np.linspace(-1, 1, size, dtype=np.float32)}
def run(sums, faults=None):
    async def program(cohort):
        for _ in range(sums):
            await cohort.sum(value, bound=1.0)
    before = time.process_time()
    federate(dict.fromkeys(names, program), mode=mode, keys=keys, faults=faults, catch=bool(faults))
    return time.process_time() - before
sent = []
def spoil(message, bulk):
    sent[:] = [bulk[:-1] + bytes([bulk[-1] ^ 1])]
    return message, sent[0]
def show(message, bulk):
    return message, sent[0] if bulk else b""
run(1)
for line in sys.stdin:
    one, more = run(1), run(4)
    spoiled = run(1, {names[-1]: {SumInput: spoil, Finding: show}})
    print(one, more, spoiled, flush=True)
"""


class Worker:
    """A process that measures the sums of one checkout."""

    def __init__(self, checkout: Path, shape: tuple[str, int, int]) -> None:
        env = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, shape)],
            cwd=checkout,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self) -> list[float]:
        """Return the CPU seconds of one sum, of four, and of a spoiled one with its inquiry."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        print(file=self._process.stdin, flush=True)
        return [float(seconds) for seconds in self._process.stdout.readline().split()]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(base: Path | None, shape: tuple[str, int, int], turns: int) -> tuple[float, ...]:
    """Return the best seconds of a sum here and in the other checkout, and the inquiry's ratio.

    Seconds are differences of the best runs, so the start of a run does not count.
    """
    workers = [Worker(checkout, shape) for checkout in (HERE, base or HERE)]
    measured = [[worker.measure() for worker in workers] for _ in range(turns)]
    for worker in workers:
        worker.close()
    best = [[min(turn[k][run] for turn in measured) for run in range(3)] for k in (0, 1)]
    (one, four, spoiled), (other_one, other_four, _) = best
    pairs = median(turn[0][1] / turn[1][1] for turn in measured)
    here, there = (four - one) / 3, (other_four - other_one) / 3
    return here, there, pairs, (spoiled - one) / here


@click.command()
@click.option("--base", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Another checkout to compare with; default: this one, twice.")  # fmt: skip
@click.option("--turns", type=click.IntRange(min=1), default=15, show_default=True,
              help="Measurements of each checkout, in turns.")  # fmt: skip
def blame(base: Path | None, turns: int) -> None:
    """Measure fault-free sums against another checkout, and an inquiry against a sum."""
    columns = "sum", "parties", "values", "ms here", "ms there", "best", "median pair", "inquiry"
    table = Table(*columns, title="CPU of a sum, and of an inquiry in sums")
    for shape in SHAPES:
        here, other, pairs, inquiry = compare(base, shape, turns)
        mode, parties, values = shape
        took = f"{1e3 * here:.2f}", f"{1e3 * other:.2f}"
        ratios = f"{here / other:.3f}", f"{pairs:.3f}", f"{inquiry:.2f}"
        table.add_row(mode, str(parties), f"{values:,}", *took, *ratios)
    Console().print(table)
