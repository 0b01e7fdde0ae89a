"""The decision which counts of a codebook are released, with a proof for every hidden count.

A count below `least` is hidden, also 0. Released counts must not give hidden ones away: for each
hidden count there are two joint tables that agree with everything released, now and earlier, and
that differ by at least `least` in this count. These tables are found by linear programs. Where the
programs have no solution, they name the released counts to hide as well, at the lowest cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from secure_fl.errors import SettingsError, TamperError
from secure_fl.features.statistics.counting import (
    Flags,
    Integers,
    Partition,
    Tabulation,
    atoms_of,
)

Floats = NDArray[np.float64]
MOST_UNKNOWN = 40_000  # unknown counts of one linear program
SLACK = 1e-6  # of the linear programs
SINGLE = 10.0  # cost of a count in a table of one variable, in those of two


def suppressed(
    tables: Sequence[Tabulation], earlier: Sequence[Tabulation], total: int, least: int
) -> list[Tabulation]:
    """Mark the counts that may be released. Sites in one process decide once."""
    parts = [[one.to_json() for one in some] for some in (tables, earlier)]
    return decided(json.dumps([*parts, total, least]))


@lru_cache(maxsize=1)
def decided(text: str) -> list[Tabulation]:
    """Decide for the JSON of tables, earlier tables, total and least count."""
    now, before, total, least = json.loads(text)
    tables, earlier = ([Tabulation.from_json(one) for one in some] for some in (now, before))
    if total < least:
        return [replace(table, shown=np.zeros_like(table.shown)) for table in tables]
    small = [replace(table, shown=table.counts >= least) for table in tables]
    if all(table.shown.all() for table in (*small, *earlier)) and not earlier:
        codings = {
            (name, str(partition.to_json()))
            for table in small
            for name, partition in zip(table.columns, table.partitions, strict=True)
        }
        if len(codings) == len({name for name, _ in codings}):
            return small  # every atom is a released block
    return Search(small, earlier, total, least).run()


class Search:
    """The search for witnesses: joint tables that agree with all released counts."""

    def __init__(
        self, tables: Sequence[Tabulation], earlier: Sequence[Tabulation], total: int, least: int
    ) -> None:
        self._tables, self._width = tables, float(least)
        joint = self._joint = JointTable([*tables, *earlier], total)
        every = [(joint.rows(t.columns, t.partitions), t) for t in (*tables, *earlier)]
        now, past = every[: len(tables)], every[len(tables) :]
        self._rows = sparse.vstack([rows for rows, _ in now], "csr")
        self._counts = np.concatenate([t.counts.ravel() for t in tables]).astype(float)
        self._cost = (1 + np.log1p(self._counts)) * np.concatenate(
            [np.full(t.counts.size, SINGLE if len(t.columns) == 1 else 1.0) for t in tables]
        )
        self.shown = np.concatenate([t.shown.ravel() for t in tables])
        self._begin_fixed(past)
        self._begin_items(now, past)

    def run(self) -> list[Tabulation]:
        """Find a witness for every hidden count; hide more counts where there is none."""
        self._start()
        while (open_ := self._uncovered()).any():
            self._spread(open_, up=True)
            self._spread(self._uncovered(), up=False)
            left = np.flatnonzero(self._uncovered())
            if left.size:
                self._widen(int(left[0]))
        ends = np.cumsum([table.counts.size for table in self._tables])[:-1]
        parts = zip(self._tables, np.split(self.shown, ends), strict=True)
        return [replace(t, shown=part.reshape(t.counts.shape)) for t, part in parts]

    def _begin_fixed(self, past: Sequence[tuple[Any, Tabulation]]) -> None:
        """Keep what earlier codebooks released, beside the consistency of the joint table."""
        rows, values = [self._joint.consistent], [self._joint.constants]
        for selected, table in past:
            rows.append(selected[table.shown.ravel()])
            values.append(table.counts.ravel()[table.shown.ravel()].astype(float))
        self._fixed, self._fixed_values = sparse.vstack(rows, "csr"), np.concatenate(values)

    def _begin_items(
        self, now: Sequence[tuple[Any, Tabulation]], past: Sequence[tuple[Any, Tabulation]]
    ) -> None:
        """List everything to protect: atoms of all tables, and blocks that may be hidden."""
        atoms = [self._joint.rows(scope) for scope in {t.columns: None for _, t in (*now, *past)}]
        rows = sparse.vstack([*(r for r, _ in (*now, *past)), *atoms], "csr")
        first: dict[bytes, int] = {}
        keys = [rows.indices[a:b].tobytes() for a, b in pairwise(rows.indptr)]
        for place, key in enumerate(keys):
            first.setdefault(key, place)
        places = np.array(list(first.values()))
        self._items = rows[places]
        number = {key: k for k, key in enumerate(first)}
        blocks = np.array(
            [number[key] for key in keys[: len(keys) - sum(a.shape[0] for a in atoms)]]
        )
        self._of_cell, earlier = np.split(blocks, [self._counts.size])
        was_shown = np.concatenate([np.zeros(0, bool), *(t.shown.ravel() for _, t in past)])
        self._must = np.zeros(len(places), bool)  # hidden by an earlier codebook
        self._must[earlier[~was_shown]] = True
        self._was_shown = np.zeros(len(places), bool)
        self._was_shown[earlier[was_shown]] = True
        self._given_up = np.zeros(len(places), bool)

    def _uncovered(self) -> Flags:
        """Return the hidden items without a wide enough interval so far."""
        visible = self._was_shown.copy()
        visible[self._of_cell[self.shown]] = True
        hidden = ~visible | (self._must & ~self._was_shown)
        narrow: Flags = self._high - self._low < self._width - SLACK
        return hidden & narrow & ~self._given_up

    def _start(self) -> None:
        """Begin with one joint table that has all counts of this codebook."""
        found = self._solve(
            np.zeros(self._joint.unknown),
            sparse.vstack([self._fixed, self._rows], "csr"),
            np.concatenate([self._fixed_values, self._counts]),
        )
        if found is None:
            raise TamperError(
                "the counts contradict those of an earlier codebook over the same records",
                fix="compare statistics.jsonl in this site's ledger with a backup",
                reason="row-changed",
            )
        values = self._items @ found
        self._low, self._high = values.copy(), values.copy()

    def _spread(self, open_: Flags, *, up: bool) -> None:
        """Move as many open items as far as needed, without a change of any released count."""
        while open_.any():
            before = int(open_.sum())
            items, size = self._items[open_], self._joint.unknown
            ends = self._low[open_] if up else self._high[open_]
            sign = -1.0 if up else 1.0
            moved = sparse.hstack([sign * items, sparse.identity(before)], "csr")
            shown = self._rows[self.shown]
            equal = sparse.vstack([self._fixed, shown], "csr")
            equal = sparse.hstack([equal, sparse.csr_matrix((equal.shape[0], before))], "csr")
            found = self._solve(
                np.concatenate([np.zeros(size), -np.ones(before)]),
                equal,
                np.concatenate([self._fixed_values, self._counts[self.shown]]),
                (moved, sign * ends),
                [(0, None)] * size + [(0, self._width)] * before,
            )
            self._note(found[:size])
            open_ = self._uncovered()
            if int(open_.sum()) >= before:
                return

    def _widen(self, item: int) -> None:
        """Hide released counts, at the lowest cost, until one item has its interval.

        An item that earlier codebooks alone bound too narrowly is given up: nothing can widen it.
        """
        shown = self._equal(self.shown)
        for end in self._ends(item, *shown):
            self._note(end)
        if self._high[item] - self._low[item] >= self._width - SLACK:
            return
        target = self._items[[item]].toarray()[0]
        low, high = (
            float(target @ end) for end in self._ends(item, self._fixed, self._fixed_values)
        )
        if high - low < self._width:
            self._given_up[item] = True
            return
        starts = np.clip([self._low[item], self._high[item] - self._width], low, high - self._width)
        _, moves = min((self._window(item, float(start)) for start in starts), key=itemgetter(0))
        for _, hidden, joint in moves:
            self.shown[hidden] = False
            self._note(joint)

    def _ends(self, item: int, equal: Any, values: Floats) -> list[Any]:
        """Return the joint tables with the fewest and the most records in one item."""
        target = self._items[[item]].toarray()[0]
        return [self._solve(sign * target, equal, values) for sign in (1.0, -1.0)]

    def _window(self, item: int, start: float) -> tuple[float, list[Any]]:
        """Return the cost of an interval of one item, and the moves that make it possible."""
        moves = []
        if self._low[item] > start:
            moves.append(self._move(item, 1.0, start))
        if self._high[item] < start + self._width:
            moves.append(self._move(item, -1.0, start + self._width))
        return sum(cost for cost, _, _ in moves), moves

    def _move(self, item: int, sign: float, end: float) -> tuple[float, Integers, Floats]:
        """Find a joint table with an item below (1) or above (-1) an end, and what it changes."""
        row, size = self._items[[item]], self._joint.unknown
        shown = np.flatnonzero(self.shown)
        one = sparse.identity(shown.size)
        none = sparse.csr_matrix((self._fixed.shape[0], shown.size))
        equal = sparse.bmat(
            [[self._fixed, none, none], [self._rows[shown], -one, one]], format="csr"
        )
        limit = sparse.hstack([sign * row, sparse.csr_matrix((1, 2 * shown.size))], "csr")
        found = self._solve(
            np.concatenate([np.zeros(size), self._cost[shown], self._cost[shown]]),
            equal,
            np.concatenate([self._fixed_values, self._counts[shown]]),
            (limit, np.array([sign * end])),
        )
        moved = np.abs(found[size : size + shown.size] - found[size + shown.size :])
        return float(self._cost[shown] @ moved), shown[moved > SLACK], found[:size]

    def _equal(self, shown: Flags) -> tuple[Any, Floats]:
        """Return the rows of released counts, now and earlier, and their values."""
        values = np.concatenate([self._fixed_values, self._counts[shown]])
        return sparse.vstack([self._fixed, self._rows[shown]], "csr"), values

    def _note(self, joint: Floats) -> None:
        values = self._items @ joint
        self._low, self._high = np.minimum(self._low, values), np.maximum(self._high, values)

    @staticmethod
    def _solve(
        costs: Floats,
        equal: Any,
        values: Floats,
        upper: Any = (None, None),
        bounds: Any = (0, None),
    ) -> Any:
        """Solve a linear program by HiGHS; None: it has no solution."""
        found = linprog(
            costs, A_ub=upper[0], b_ub=upper[1], A_eq=equal, b_eq=values, bounds=bounds,
            method="highs",
        )  # fmt: skip
        return found.x if found.success else None


class JointTable:
    """Unknown counts over the cliques of all tables' columns, and rows that select parts of it.

    An attacker knows all released counts, and that they come from records. So the hidden counts are
    those of some joint table of all columns, without negative cells. That joint table is too large
    to solve. It is enough to solve for the cliques of a chordal graph that contains all tables:
    counts over the cliques that agree where cliques overlap are always counts of one joint table
    (Lauritzen and Spiegelhalter, 1988). So the linear programs are exact for fractional records.
    """

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

    Columns are eliminated with the fewest added links first. The cliques are in the order of a
    maximum spanning tree of their overlaps (Prim's algorithm), which is a tree of the cliques:
    the columns that a clique shares with all earlier ones are in its parent.
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
    ordered = [found.pop()] if found else []
    while found:
        nearest = max(reversed(found), key=lambda one: max(len(one & other) for other in ordered))
        found.remove(nearest)
        ordered.append(nearest)
    return [tuple(sorted(clique)) for clique in ordered]


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
