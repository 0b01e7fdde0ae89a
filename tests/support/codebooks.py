"""Random codebooks over made-up patients, and an attacker that is independent of the product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.optimize import linprog

from secure_fl.features.statistics.codebook import Codebook, Variable
from secure_fl.features.statistics.counting import Partition, Tabulation, counts_of
from secure_fl.features.statistics.release import layouts, tabulations, total_of
from secure_fl.features.statistics.suppression import suppressed
from secure_fl.features.statistics.tables import table_of

MOST_CELLS = 5_000  # of the joint table that the attacker solves


@dataclass(frozen=True)
class Study:
    """Patients of all hospitals together, and codebooks that are opened one after the other."""

    frame: pd.DataFrame
    codebooks: tuple[Codebook, ...]

    @classmethod
    def of(cls, seed: int, size: int = 300) -> Study:
        """Make a study; many columns have rare values."""
        rng = np.random.default_rng(seed)
        columns: dict[str, Any] = {}
        variables: dict[str, dict[str, Any]] = {}
        for place in range(int(rng.integers(2, 5))):
            name = f"c{place}"
            count = int(rng.integers(2, 6))
            if rng.random() < 0.5:
                values = tuple(f"v{k}" for k in range(count))
                shares = rng.dirichlet(np.full(count, rng.choice([0.3, 1.0, 3.0])))
                columns[name] = rng.choice(values, size, p=shares)
                variables[name] = {"values": values[: max(2, count - int(rng.integers(2)))]}
            else:
                columns[name] = rng.normal(20, 8, size).round(1)
                variables[name] = {"low": 0, "high": 40, "bins": count}
                if rng.random() < 0.4:
                    finer = {"column": name, "low": 0, "high": 40, "bins": count + 1}
                    variables[f"{name} again"] = finer
        many = range(1 + int(rng.random() < 0.4))
        return cls(pd.DataFrame(columns), tuple(_codebook(rng, variables) for _ in many))

    def counted(self, *, least: int | None = None) -> list[Tabulation]:
        """Open all codebooks; `least` replaces their rule for what is hidden."""
        table, earlier = table_of(self.frame), list[Tabulation]()
        for one in self.codebooks:
            rule = one.least if least is None else least
            asked = one.model_copy(update={"min_patients": rule})
            found = layouts(asked, counts_of(asked, table)[0], merging=True)
            earlier += suppressed(tabulations(asked, found), earlier, total_of(found), rule)
        return earlier


def _codebook(rng: np.random.Generator, variables: dict[str, dict[str, Any]]) -> Codebook:
    names = list(variables)
    pairs = [
        (a, b)
        for k, a in enumerate(names)
        for b in names[k + 1 :]
        if variables[a].get("column", a) != variables[b].get("column", b)
    ]
    tables: dict[str, tuple[str, ...]] = {}
    for place in range(int(rng.integers(1, 6))):
        single = rng.random() < 0.4 or not pairs
        scope = (
            (names[int(rng.integers(len(names)))],) if single else pairs[rng.integers(len(pairs))]
        )
        tables[f"table {place}"] = scope
    used = {name for scope in tables.values() for name in scope}
    return Codebook(
        variables={n: Variable(**variables[n]) for n in names if n in used}, tables=tables
    )


class JointAttacker:
    """An attacker who solves linear programs over the joint table of all columns."""

    def __init__(self, tables: Sequence[Tabulation], total: int) -> None:
        self._tables = tables
        partitions: dict[str, list[Partition]] = {}
        for table in tables:
            for name, one in zip(table.columns, table.partitions, strict=True):
                partitions.setdefault(name, []).append(one)
        self._points = {name: _points(ones) for name, ones in partitions.items()}
        self._grid = [len(points) for points in self._points.values()]
        self.cells = int(np.prod(self._grid))
        if self.cells > MOST_CELLS:
            return
        rows = [sparse.csr_matrix(np.ones((1, self.cells)))]
        values = [np.array([float(total)])]
        self._rows = [self._of(table) for table in tables]
        for selected, table in zip(self._rows, tables, strict=True):
            rows.append(selected[table.shown.ravel()])
            values.append(table.counts.ravel()[table.shown.ravel()].astype(float))
        self._equal, self._values = sparse.vstack(rows, "csr"), np.concatenate(values)

    def intervals(self) -> Iterator[tuple[int, float, float]]:
        """Give the true count and the derived interval of every hidden count."""
        for selected, table in zip(self._rows, self._tables, strict=True):
            for at in np.flatnonzero(~table.shown.ravel()):
                target = selected[[at]].toarray()[0]
                ends = [
                    linprog(s * target, A_eq=self._equal, b_eq=self._values, method="highs").fun
                    for s in (1.0, -1.0)
                ]
                yield int(table.counts.ravel()[at]), ends[0], -ends[1]

    def _of(self, table: Tabulation) -> Any:
        cell = np.zeros(self._grid, int)
        for name, one in zip(table.columns, table.partitions, strict=True):
            axis = list(self._points).index(name)
            blocks = np.array([_block(one, point) for point in self._points[name]])
            cell = cell * one.size + blocks.reshape(
                [-1 if k == axis else 1 for k in range(cell.ndim)]
            )
        data = np.ones(self.cells)
        shape = (table.counts.size, self.cells)
        return sparse.csr_matrix((data, (cell.ravel(), np.arange(self.cells))), shape=shape)


def _points(partitions: Sequence[Partition]) -> list[Any]:
    """Return a value of each kind that some partition tells apart, and a missing one."""
    edges = sorted({edge for one in partitions for edge in one.edges or ()})
    names = sorted({name for one in partitions for name in one.values})
    numbers = [] if not edges else [edges[0] - 1, *edges]
    return [*numbers, *names, None]


def _block(partition: Partition, point: Any) -> int:
    if isinstance(point, str):
        return partition.values.get(point, partition.rest)
    if point is None or partition.edges is None:
        return partition.rest
    return sum(edge <= point for edge in partition.edges)


def released(tables: Sequence[Tabulation]) -> list[Tabulation]:
    """Mark all counts as released, as without the rule; the attacker needs no program then."""
    return [replace(table, shown=np.ones_like(table.shown)) for table in tables]
