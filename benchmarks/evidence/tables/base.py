"""What a table is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from benchmarks.evidence.cells import Cell

ATTACKED = 96  # training records of a run that is audited
CONSTANT = {"schedule": "constant"}  # what the kept cells were measured with


@dataclass(frozen=True, slots=True)
class Table:
    """Cells under a title; `cells` makes those of one seed."""

    name: str
    title: str
    cells: Callable[[int], Iterable[Cell]]
    reference: str | None = None  # the method whose fp32 updates bytes are compared with
    model: str | None = None  # None: the checkpoint that is asked for, or installed


def audited(cell: Cell) -> Cell:
    """One round of the cell on few records, attacked: what is hidden does not depend on many."""
    few = replace(cell.spread, train=ATTACKED, dev=20, test=20)
    return replace(cell, spread=few, algorithm={**cell.algorithm, "rounds": 1}, audited=True)
