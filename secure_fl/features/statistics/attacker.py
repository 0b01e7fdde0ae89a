"""The strongest linear attack on released tables: bounds of each hidden count.

An attacker knows all released counts, and that they come from records. So the hidden counts are
those of some joint table of all columns, without negative cells. That joint table is too large to
solve. It is enough to solve for the cliques of a chordal graph that contains all tables: counts
over the cliques that agree where cliques overlap are always counts of one joint table (Lauritzen
and Spiegelhalter, 1988). So the linear programs below are exact for fractional records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from secure_fl.errors import SettingsError
from secure_fl.features.statistics.partitions import Integers, Partition, Tabulation, atoms_of

Floats = NDArray[np.float64]
MOST_UNKNOWN = 40_000  # unknown counts of one linear program


class JointTable:
    """Unknown counts over the cliques of all tables' columns, and rows that select parts of it."""

    def __init__(self, tables: Sequence[Tabulation], total: int) -> None:
        """`tables`: of this codebook and of all earlier ones. `total`: the number of records."""
        self._maps: dict[tuple[str, Partition], Integers] = {}
        self.sizes: dict[str, int] = {}
        for column in dict.fromkeys(name for table in tables for name in table.columns):
            given = _of_column(tables, column)
            self.sizes[column], maps = atoms_of(given)
            self._maps |= {_key(column, one): row for one, row in zip(given, maps, strict=True)}
        self.cliques = cliques([table.columns for table in tables])
        self._grids = [tuple(self.sizes[name] for name in clique) for clique in self.cliques]
        cells = [int(np.prod(grid)) for grid in self._grids]
        self.unknown = sum(cells)
        if self.unknown > MOST_UNKNOWN:
            largest = self.cliques[int(np.argmax(cells))]
            raise SettingsError(
                f"the audit of these tables has {self.unknown:,} unknown counts, more than "
                f"{MOST_UNKNOWN:,}: tables link {', '.join(sorted(largest))}",
                fix="use coarser variables, or remove a table that links two of these columns",
                field="algorithm.tables",
            )
        self._starts = np.concatenate([[0], np.cumsum(cells)]).astype(int)
        self.consistent, self.constants = self._consistency(total)

    def rows(self, columns: Sequence[str], partitions: Sequence[Partition] | None = None) -> Any:
        """Return the matrix that gives a table's counts; without partitions, those of its atoms."""
        maps = (
            [np.arange(self.sizes[name]) for name in columns]
            if partitions is None
            else [self._maps[_key(*pair)] for pair in zip(columns, partitions, strict=True)]
        )
        at = next(k for k, clique in enumerate(self.cliques) if set(columns) <= set(clique))
        return self._selected(at, columns, maps)

    def _selected(self, at: int, columns: Sequence[str], maps: Sequence[Integers]) -> Any:
        clique, grid = self.cliques[at], self._grids[at]
        cell = np.zeros(grid, np.int64)
        for name, blocks in zip(columns, maps, strict=True):
            axis = clique.index(name)
            shape = [-1 if k == axis else 1 for k in range(len(grid))]
            cell = cell * (int(blocks.max()) + 1) + blocks.reshape(shape)
        count = int(np.prod([int(blocks.max()) + 1 for blocks in maps]))
        places = self._starts[at] + np.arange(cell.size)
        data = np.ones(cell.size)
        return sparse.csr_matrix((data, (cell.ravel(), places)), shape=(count, self.unknown))

    def _consistency(self, total: int) -> tuple[Any, Floats]:
        """Return rows that must be 0 or the total: cliques agree where they overlap."""
        blocks, constants = [], []
        for at, clique in enumerate(self.cliques):
            shared, other = max(
                ((set(clique) & set(self.cliques[k]), k) for k in range(at)),
                key=lambda pair: len(pair[0]),
                default=(set(), -1),
            )
            if not shared:
                blocks.append(self._selected(at, (), ()))
                constants.append(np.array([float(total)]))
                continue
            names = sorted(shared)
            maps = [np.arange(self.sizes[name]) for name in names]
            blocks.append(self._selected(at, names, maps) - self._selected(other, names, maps))
            constants.append(np.zeros(blocks[-1].shape[0]))
        return sparse.vstack(blocks, "csr"), np.concatenate(constants)


def cliques(scopes: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the maximal cliques of a chordal graph over all scopes, parents before children.

    Columns are eliminated with the fewest added links first.
    """
    linked: dict[str, set[str]] = {}
    for scope in scopes:
        for name in scope:
            linked.setdefault(name, set()).update(other for other in scope if other != name)
    found: list[set[str]] = []
    while linked:
        name = min(linked, key=lambda one: (_missing(linked, one), one))
        around = linked.pop(name)
        clique = {name, *around}
        if not any(clique <= other for other in found):
            found.append(clique)
        for other in around:
            linked[other] |= around - {other}
            linked[other].discard(name)
    return [tuple(sorted(clique)) for clique in reversed(found)]


def _missing(linked: Mapping[str, set[str]], name: str) -> int:
    return sum(b not in linked[a] for a, b in combinations(sorted(linked[name]), 2))


def _of_column(tables: Sequence[Tabulation], column: str) -> list[Partition]:
    found: dict[Any, Partition] = {}
    for table in tables:
        for name, partition in zip(table.columns, table.partitions, strict=True):
            if name == column:
                found[_key(column, partition)] = partition
    return list(found.values())


def _key(column: str, partition: Partition) -> Any:
    return column, partition.edges, tuple(sorted(partition.values.items())), partition.rest
