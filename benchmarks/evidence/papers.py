"""Fill a table: every cell is a real federation, saved as soon as it is finished.

Seeds are the outer loop, so a table that is interrupted after the first seed is complete, but
without standard deviations. A cell that fails is reported and retried by the next call; the others
continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks import checkpoint, collection
from benchmarks.evidence.cells import Cell, Inputs, Outcome, request, run
from benchmarks.evidence.pages import tables
from benchmarks.evidence.rows import rows
from benchmarks.evidence.store import Store
from benchmarks.evidence.tables import table_of
from benchmarks.evidence.tables.base import Table
from benchmarks.report import Report
from secure_fl.errors import SecureFLError, SettingsError

Tell = Callable[[str], None]
Result = tuple[Cell, Outcome | SecureFLError]


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a table to run on this machine."""

    table: Table
    inputs: Inputs
    cells: Sequence[Cell]

    @property
    def runs(self) -> list[Cell]:
        """The cells, those that ask for the same run once."""
        return list({str(request(cell).every): cell for cell in reversed(self.cells)}.values())[
            ::-1
        ]


def plan(
    table: str | Table,
    *,
    data: str | Path | None = None,
    model: str | None = None,
    seeds: int = 3,
    only: str = "",
) -> Plan:
    """List a table's cells, and check the settings, the data and the checkpoint of all of them."""
    chosen = table_of(table) if isinstance(table, str) else table
    every = [cell for seed in range(seeds) for cell in chosen.cells(seed)]
    cells = [cell for cell in every if only.lower() in cell.title.lower()]
    if not cells:
        fix = f"the first cell's title is {every[0].title!r}"
        raise SettingsError(f"no cell's title contains {only!r}", fix=fix, option="--only")
    place = collection.find(data)
    collection.require(sorted({name for cell in cells for name in cell.spread.sets}), place)
    for cell in cells:
        request(cell)
    named = model or chosen.model
    asked = named or any("name" not in cell.model for cell in cells)
    found = checkpoint.require(named) if asked else checkpoint.find(named)
    return Plan(chosen, Inputs(place, found), cells)


def measure(
    planned: Plan, *, work: Path, jobs: int = 1, again: bool = False, tell: Tell = lambda line: None
) -> Report:
    """Run the missing cells, or all of them `again`, and lay out the table."""
    started = time.perf_counter()
    store = Store(work)
    model, runs = planned.inputs.model.identity, planned.runs
    todo = [cell for cell in runs if again or store.find(cell, model) is None]
    known = len(runs) - len(todo)
    tell(f"{known} cells are finished, {len(todo)} to run; they are saved in {store.file}")
    failed: dict[str, str] = {}
    for done, (cell, outcome) in enumerate(_outcomes(planned.inputs, todo, jobs), start=1):
        count = f"[{done}/{len(todo)}] {cell.title}"
        if isinstance(outcome, SecureFLError):
            failed[cell.title] = str(outcome)
            tell(f"{count}: FAILED: {outcome}")
            continue
        store.add(outcome)
        left = (time.perf_counter() - started) / done * (len(todo) - done)
        tell(f"{count}: {_scores(outcome)}; about {left / 60:.0f} min left")
    found = [(cell, store.find(cell, model)) for cell in planned.cells]
    finished = [(cell, outcome) for cell, outcome in found if outcome is not None]
    listed = rows(finished, planned.table.reference)
    seeds = sorted({cell.seed for cell in planned.cells})
    return Report(
        "papers",
        {"table": planned.table.name, "seeds": seeds, "model": model},
        seeds[0],
        {
            "title": planned.table.title,
            "rows": [row.document() for row in listed],
            "failed": failed,
        },
        tables(listed, planned.table.sections),
        seconds=time.perf_counter() - started,
    )


def _scores(outcome: Outcome) -> str:
    metric = outcome["metric"]
    scores = {
        name: round(100 * values[metric], 1)
        for name, values in outcome["metrics"]["last"]["mean"].items()
        if name.endswith("test") and metric in values
    }
    return ", ".join(f"{name} {metric} {value}" for name, value in scores.items())


def _outcomes(inputs: Inputs, todo: Sequence[Cell], jobs: int) -> Iterator[Result]:
    """Run cells one after the other, or in processes with one thread each."""
    if jobs == 1:
        for cell in todo:
            yield cell, _attempt(cell, inputs)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        waiting = {pool.submit(_attempt, cell, inputs): cell for cell in todo}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(cell: Cell, inputs: Inputs) -> Outcome | SecureFLError:
    try:
        return run(cell, inputs)
    except SecureFLError as error:
        return error


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
