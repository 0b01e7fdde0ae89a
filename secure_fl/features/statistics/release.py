"""Tables of an opened sum: counts of each table, with small bins and categories merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_fl.features.statistics.codebook import Codebook
from secure_fl.features.statistics.counting import Integers, Tabulation, partition_of

Blocks = tuple[int, ...]  # the block of each cell of a variable


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The cells of each table, and the blocks that the release merges them into."""

    scope: tuple[str, ...]
    blocks: tuple[Blocks, ...]  # for each variable of the scope
    counts: Integers  # over cells

    def tabulation(self, codebook: Codebook) -> Tabulation:
        """Sum the counts over blocks; nothing is hidden yet."""
        counts = self.counts
        for axis, blocks in enumerate(self.blocks):
            counts = _summed(counts, axis, blocks)
        pairs = zip(self.scope, self.blocks, strict=True)
        return Tabulation(
            tuple(map(codebook.column, self.scope)),
            tuple(partition_of(codebook.variables[name]).merged(blocks) for name, blocks in pairs),
            counts,
            np.ones(counts.shape, bool),
        )


def layouts(codebook: Codebook, opened: Integers, *, merging: bool) -> dict[str, TableLayout]:
    """Cut the opened sum into tables, and merge small bins and categories of each variable."""
    sizes = {name: codebook.shape(scope) for name, scope in codebook.scopes.items()}
    ends = np.cumsum([int(np.prod(size)) for size in sizes.values()])[:-1]
    parts = zip(codebook.scopes.items(), np.split(opened, ends), strict=True)
    tables = {name: (scope, part.reshape(sizes[name])) for (name, scope), part in parts}
    single: dict[str, Blocks] = {}
    for scope, counts in tables.values():
        for axis, name in enumerate(scope):
            others = tuple(k for k in range(len(scope)) if k != axis)
            single[name] = (
                _merged(codebook, name, counts.sum(others)[:, None])
                if merging
                else tuple(range(counts.shape[axis]))
            )
    found = {}
    for name, (scope, counts) in tables.items():
        blocks = {one: single[one] for one in scope}
        if merging and name in codebook.survival:
            blocks |= _times(codebook, codebook.survival[name].time, scope, counts, blocks)
        found[name] = TableLayout(scope, tuple(blocks[one] for one in scope), counts)
    return found


def _times(
    codebook: Codebook,
    time: str,
    scope: Sequence[str],
    counts: Integers,
    blocks: Mapping[str, Blocks],
) -> dict[str, Blocks]:
    """Merge times until each group has enough records with and without the event in each step."""
    for axis, one in enumerate(scope):
        if one != time:
            counts = _summed(counts, axis, blocks[one])
    by_time = np.moveaxis(counts, scope.index(time), 0)
    return {time: _merged(codebook, time, by_time.reshape(len(by_time), -1))}


def _summed(counts: Integers, axis: int, blocks: Blocks) -> Integers:
    """Sum the cells of one axis over blocks."""
    moved = np.moveaxis(counts, axis, 0)
    merged = np.zeros((max(blocks) + 1, *moved.shape[1:]), np.int64)
    np.add.at(merged, list(blocks), moved)
    return np.moveaxis(merged, 0, axis)


def _merged(codebook: Codebook, name: str, counts: Integers) -> Blocks:
    """Merge cells until each column of counts is large enough or empty in every block.

    Neighbouring bins are merged in their order, and categories by their size. Few records of other
    and missing values are counted with the largest block, so that their number stays unknown.
    """
    least, variable = codebook.least, codebook.variables[name]
    wanted = counts.sum(0) >= least  # columns that can be large enough at all
    total = counts.sum(1)
    order = list(range(len(total) - 1))
    if variable.values is not None:
        order.sort(key=lambda cell: (total[cell], cell))
    runs: list[list[int]] = []
    open_: list[int] = []
    for cell in order:
        open_.append(cell)
        if (counts[open_].sum(0)[wanted] >= least).all():
            runs, open_ = [*runs, open_], []
    if open_ and runs:
        runs[-1] += open_
    elif open_:
        runs = [open_]
    runs.sort(key=min)
    blocks = np.zeros(len(total), np.int64)
    for place, run in enumerate(runs):
        blocks[run] = place
    sizes = [total[run].sum() for run in runs]
    blocks[-1] = len(runs) if total[-1] >= least else int(np.argmax(sizes))
    return tuple(blocks.tolist())


def total_of(layouts: Mapping[str, TableLayout]) -> int:
    """Return the number of counted records, which every table adds up to."""
    return int(next(iter(layouts.values())).counts.sum())


def tabulations(codebook: Codebook, found: Mapping[str, TableLayout]) -> Sequence[Tabulation]:
    """Return the merged tables in the order of the codebook."""
    return [layout.tabulation(codebook) for layout in found.values()]
