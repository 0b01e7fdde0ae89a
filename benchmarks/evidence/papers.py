"""Fill a paper's table: every cell is a real federation, kept on disk as soon as it is finished.

Seeds are the outer loop, so a table that is interrupted after the first seed is whole, only
without standard deviations. A cell that fails is reported and tried again by the next call; it
does not take the others with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import checkpoint, collection
from benchmarks.evidence.cells import Cell, Outcome, Place, about, key_of, run
from benchmarks.evidence.kept import Kept
from benchmarks.evidence.summary import rows, tables
from benchmarks.evidence.tables import TABLES, Table
from benchmarks.report import Report
from secure_fl.errors import SecureFLError, SettingsError

Tell = Callable[[str], None]
Finished = tuple[Cell, Outcome | SecureFLError]


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a table on this machine, by what their figures depend on."""

    table: Table
    place: Place
    cells: Sequence[tuple[str, Cell]]

    def todo(self, kept: Mapping[str, Any]) -> list[tuple[str, Cell]]:
        """The cells that are still to be run, each once."""
        first = dict(reversed(self.cells))
        return [(key, cell) for key, cell in reversed(first.items()) if key not in kept]


def plan(
    table: str | Table,
    *,
    data: str | Path | None = None,
    model: str | None = None,
    seeds: int = 3,
    only: str = "",
) -> Plan:
    """List a table's cells, and refuse what could not be run before anything is."""
    chosen = TABLES[table] if isinstance(table, str) else table
    place = Place(collection.find(data), checkpoint.find(model or chosen.model))
    every = [cell for seed in range(seeds) for cell in chosen.cells(seed)]
    cells = [cell for cell in every if only.lower() in cell.title.lower()]
    if not cells:
        fix = f"its first cell is called {every[0].title!r}"
        raise SettingsError(f"no cell of this table is called {only!r}", fix=fix, option="--only")
    collection.require(sorted({name for cell in cells for name in cell.spread.reads}), place.data)
    return Plan(chosen, place, [(key_of(cell, place), cell) for cell in cells])


def measure(
    planned: Plan, *, work: Path, jobs: int = 1, again: bool = False, tell: Tell = lambda line: None
) -> Report:
    """Run what is missing, and lay out the table."""
    started = time.perf_counter()
    kept = Kept(work)
    kept.tidy({key: about(cell) for key, cell in planned.cells})
    todo = planned.todo({} if again else kept.cells)
    known = len(dict(planned.cells)) - len(todo)
    tell(f"{known} cells are finished, {len(todo)} to run; they are kept in {kept.file}")
    failed: dict[str, SecureFLError] = {}
    progress = Progress(planned, kept, todo, jobs, tell)
    for key, (cell, outcome) in _outcomes(planned, todo, jobs):
        if isinstance(outcome, SecureFLError):
            failed[cell.title] = outcome
        else:
            kept.add(key, outcome)
        progress.finished(cell, outcome)
    finished = [(cell, kept.cells[key]) for key, cell in planned.cells if key in kept.cells]
    listed = rows(finished, planned.table.reference)
    seeds = sorted({cell.seed for _, cell in planned.cells})
    return Report(
        "papers",
        {"table": planned.table.name, "seeds": seeds, "model": planned.place.model.identity},
        seeds[0],
        {
            "title": planned.table.title,
            "rows": listed,
            "failed": {title: str(error) for title, error in failed.items()},
        },
        tables(listed),
        seconds=time.perf_counter() - started,
    )


class Progress:
    """Tells after each cell what came out, and about how long the rest takes."""

    def __init__(
        self, planned: Plan, kept: Kept, todo: Sequence[tuple[str, Cell]], jobs: int, tell: Tell
    ) -> None:
        self._left = [cell for _, cell in todo]
        self._total, self._jobs, self._tell = len(todo), jobs, tell
        self._seconds: dict[tuple[str, str], list[float]] = {}
        for key, cell in planned.cells:
            if key in kept.cells:
                self._note(cell, kept.cells[key])

    def finished(self, cell: Cell, outcome: Outcome | SecureFLError) -> None:
        """Tell of one more."""
        self._left.remove(cell)
        count = f"[{self._total - len(self._left)}/{self._total}] {cell.title}"
        if isinstance(outcome, SecureFLError):
            self._tell(f"{count}: FAILED: {outcome}")
            return
        self._note(cell, outcome)
        scores = {
            name: round(100 * values[outcome["metric"]], 1)
            for name, values in outcome["metrics"]["last"]["mean"].items()
            if name.endswith("test") and outcome["metric"] in values
        }
        found = ", ".join(f"{name} {outcome['metric']} {value}" for name, value in scores.items())
        left = f"; about {self.left() / 60:.0f} min left" if self._left else ""
        self._tell(f"{count}: {found}; {outcome['seconds']:.0f} s{left}")

    def left(self) -> float:
        """Seconds of the cells that are left: each as the like of it took, or as the mean."""
        everything = [seconds for found in self._seconds.values() for seconds in found]
        mean = fmean(everything) if everything else 0.0
        expected = (
            fmean(self._seconds.get((cell.data, cell.method), [mean])) for cell in self._left
        )
        return sum(expected) / self._jobs

    def _note(self, cell: Cell, outcome: Outcome) -> None:
        self._seconds.setdefault((cell.data, cell.method), []).append(outcome["seconds"])


def _outcomes(
    planned: Plan, todo: Sequence[tuple[str, Cell]], jobs: int
) -> Iterator[tuple[str, Finished]]:
    """Run cells here, one after the other, or in processes with one thread each."""
    if jobs == 1:
        for key, cell in todo:
            yield key, (cell, _attempt(cell, planned.place))
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        waiting = {pool.submit(_attempt, cell, planned.place): (key, cell) for key, cell in todo}
        for future in as_completed(waiting):
            key, cell = waiting[future]
            yield key, (cell, future.result())
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(cell: Cell, place: Place) -> Outcome | SecureFLError:
    try:
        return run(cell, place)
    except SecureFLError as error:
        return error


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
