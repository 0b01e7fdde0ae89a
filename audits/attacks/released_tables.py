"""The attack on released tables: bounds of every count that they do not show.

An attacker reads labels, counts and notes of results. All tables over the same records, also those
of several codebooks, are sums over one joint table of all columns. Its cells are not negative. So
two linear programs bound each cell of a table, and each group that differs between two tables. This
module shares nothing with the program that hides counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

REST = "(other or missing)"
INCLUDES = re.compile(r"(?P<variable>[^:]+): (?P<label>.+) includes records with other or missing")
NUMBERS = re.compile(r"below (\S+)|(\S+) to (\S+)|(\S+) and above")
MORE = re.compile(r"\d+ more")
MOST_CELLS = 6_000  # of the joint table
CLOSE = 1e-4

Integers = NDArray[np.int64]
Value = str | float | None  # a category, the lower end of numbers, or a missing value


@dataclass(frozen=True, slots=True)
class PatientGroup:
    """A group of records, and bounds of its size, which are exact if they are close."""

    columns: tuple[str, ...]
    cells: Integers  # of the joint table
    counted: bool  # in a cell of a table, and not only in a difference of tables
    low: float
    high: float


class ReleasedTables:
    """Tables over the same records, read as sums over the cells of one joint table."""

    def __init__(
        self, documents: Sequence[Mapping[str, Any]], variables: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """`documents`: sections `statistics` of results. `variables`: of all their codebooks."""
        self._tables = [table for one in documents for table in one["tables"]]
        self._column = {name: one.get("column") or name for name, one in variables.items()}
        self._values = self._values_of(variables)
        self._atoms, blocks = self._atoms_of()
        grid = [int(atoms.max()) + 1 for atoms in self._atoms.values()]
        if (cells := int(np.prod(grid))) > MOST_CELLS:
            raise ValueError(f"{cells} cells of the joint table, more than {MOST_CELLS}")
        self._place = np.arange(cells).reshape(grid)
        self._rows: dict[bytes, tuple[tuple[str, ...], Integers]] = {}  # groups by their cells
        self._counted: set[bytes] = set()
        self._shown: dict[bytes, float] = {}
        for table, axes in zip(self._tables, blocks, strict=True):
            columns = tuple(self._column[name] for name in table["variables"])
            counts = np.array(table["counts"], dtype=np.float64).ravel()  # None becomes NaN
            for key, count in zip(self._groups(columns, axes), counts, strict=True):
                self._counted.add(key)
                if not np.isnan(count):
                    self._shown[key] = float(count)
            for _ in self._groups(columns, [np.arange(grid[self._axis(c)]) for c in columns]):
                pass  # groups that only differences of tables have
        self._total = float(documents[0]["records"])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the joint table."""
        return tuple(self._values)

    def bounds(self, least: int) -> list[PatientGroup]:
        """Bound each group that no table shows, or that one shows though it is small.

        Intervals that are found to be wide enough are not searched further.
        """
        shown = list(self._shown)
        rows = [self._row(key) for key in shown]
        equal = sparse.vstack([np.ones((1, self._place.size)), *rows], "csr")
        values = np.array([self._total, *(self._shown[key] for key in shown)])
        hidden = [key for key in self._rows if key not in self._shown]
        every = sparse.vstack([self._empty(), *map(self._row, hidden)], "csr")[1:]
        low, high = np.full(len(hidden), np.inf), np.full(len(hidden), -np.inf)
        for place in range(len(hidden)):
            for sign in (1.0, -1.0):
                if high[place] - low[place] < least - CLOSE:
                    target = sign * every[place].toarray()[0]
                    sizes = every @ _solved(target, equal, values)
                    low, high = np.minimum(low, sizes), np.maximum(high, sizes)
        ends = zip(hidden, low.tolist(), high.tolist(), strict=True)
        small = [(key, count, count) for key, count in self._shown.items() if count < least]
        return [
            PatientGroup(*self._rows[key], key in self._counted, *interval)
            for key, *interval in (*ends, *small)
        ]

    def joint(self, records: Mapping[str, Sequence[Any]]) -> Integers:
        """Count records in the cells of the joint table; the attacker does not have them."""
        codes = []
        for column, atoms in self._atoms.items():
            values = self._values[column]
            found = [_place_of(value, values) for value in records[column]]
            codes.append(atoms[np.array(found)])
        cells = np.ravel_multi_index(codes, self._place.shape)
        return np.bincount(cells, minlength=self._place.size)

    def _values_of(self, variables: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Value]]:
        """List the values of each column that labels distinguish; the last one is missing."""
        found: dict[str, set[Any]] = {}
        for table in self._tables:
            for name, labels in zip(table["variables"], table["labels"], strict=True):
                own = found.setdefault(self._column[name], set())
                if variables[name].get("values"):
                    own |= set(variables[name]["values"])
                else:
                    own |= {-np.inf, *(end for label in labels for end in _ends(label))} - {np.inf}
        return {column: [*sorted(own), None] for column, own in found.items()}

    def _atoms_of(self) -> tuple[dict[str, Integers], list[list[Integers]]]:
        """Merge values that no table distinguishes, and map them to the blocks of each table."""
        maps = [
            [self._blocks(table, axis) for axis in range(len(table["variables"]))]
            for table in self._tables
        ]
        atoms, first = {}, {}
        for column in self._values:
            every = np.array([m for _, _, m in self._axes(maps, column)])
            _, first[column], atoms[column] = np.unique(
                every, axis=1, return_index=True, return_inverse=True
            )
        for table, axis, blocks in [one for c in self._values for one in self._axes(maps, c)]:
            column = self._column[self._tables[table]["variables"][axis]]
            maps[table][axis] = blocks[first[column]]
        return {name: np.ravel(one) for name, one in atoms.items()}, maps

    def _axes(self, maps: list[list[Integers]], column: str) -> Iterator[tuple[int, int, Integers]]:
        for place, table in enumerate(self._tables):
            for axis, name in enumerate(table["variables"]):
                if self._column[name] == column:
                    yield place, axis, maps[place][axis]

    def _blocks(self, table: Mapping[str, Any], axis: int) -> Integers:
        """Map each value of a column to the label that counts it."""
        name, labels = table["variables"][axis], table["labels"][axis]
        notes = [INCLUDES.match(note) for note in table["notes"]]
        rest = [note["label"] for note in notes if note and note["variable"] == name] or [REST]
        found = []
        for value in self._values[self._column[name]]:
            inside = [value in _names(label) if isinstance(value, str) else _has(label, value)
                      for label in labels]  # fmt: skip
            if value is None or not any(inside):
                inside = [label in rest for label in labels]
                if isinstance(value, str) and (more := _of_many(labels)) is not None:
                    inside = [place == more for place in range(len(labels))]
            found.append(inside.index(True))
        return np.array(found)

    def _groups(self, columns: Sequence[str], axes: Sequence[Integers]) -> Iterator[bytes]:
        """Register the groups of one partition of some columns, and give their keys."""
        shape = [int(blocks.max()) + 1 for blocks in axes]
        group = np.zeros(self._place.shape, np.int64)
        for column, blocks, size in zip(columns, axes, shape, strict=True):
            turned = [1] * group.ndim
            turned[self._axis(column)] = -1
            group = group * size + blocks.reshape(turned)
        order = np.argsort(group, axis=None, kind="stable")
        sizes = np.bincount(group.ravel(), minlength=int(np.prod(shape)))
        for cells in np.split(order, np.cumsum(sizes)[:-1]):
            key = cells.tobytes()
            self._rows.setdefault(key, (tuple(columns), cells))
            yield key

    def _axis(self, column: str) -> int:
        return list(self._atoms).index(column)

    def _empty(self) -> Any:
        return sparse.csr_matrix((1, self._place.size))

    def _row(self, key: bytes) -> Any:
        cells = self._rows[key][1]
        places = (np.zeros(cells.size, np.int64), cells)
        return sparse.csr_matrix((np.ones(cells.size), places), shape=(1, self._place.size))


def _solved(costs: NDArray[np.float64], equal: Any, values: NDArray[np.float64]) -> Any:
    """Return a joint table with these sums and the lowest costs."""
    found = linprog(costs, A_eq=equal, b_eq=values, method="highs")
    if not found.success:
        raise ValueError(f"no records have these tables: {found.message}")
    return found.x


def _ends(label: str) -> tuple[float, float]:
    """Return the bounds of a label's numbers; all numbers for other labels."""
    found = NUMBERS.fullmatch(label)
    below, low, high, above = found.groups() if found else (None,) * 4
    return float(low or above or -np.inf), float(below or high or np.inf)


def _has(label: str, value: float | None) -> bool:
    low, high = _ends(label)
    return value is not None and label != REST and low <= value < high


def _names(label: str) -> list[str]:
    return label.split(" or ")


def _of_many(labels: Sequence[str]) -> int | None:
    """Return the label that ends in a number of further categories."""
    found = [place for place, label in enumerate(labels) if MORE.fullmatch(_names(label)[-1])]
    return found[0] if found else None


def _place_of(value: Any, values: Sequence[Value]) -> int:
    """Return the place of a record's value in the values of its column."""
    if value is None or value != value or (isinstance(value, str) and value not in values):
        return len(values) - 1
    if isinstance(value, str):
        return values.index(value)
    return int(np.searchsorted(np.array(values[:-1], np.float64), value, side="right")) - 1
