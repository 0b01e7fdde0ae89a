"""Counts that add up over hospitals: what each record adds, their sums, and their way through one.

What a model is worth on all records together is not the mean of what it is worth at each hospital:
one with two records would weigh as much as one with 300. So each hospital counts, the counts are
summed, and rates follow from the sum (`rates`).

Whole numbers are cells: a record adds one to a cell or nothing. Others are sums of what is measured
of a record. At most eight numbers of a name travel exactly, as float32: so counts travel in pieces,
and what float32 rounds off of a sum travels beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = dict[str, NDArray[Any]]

LOSS = "loss"  # [records, sum of their losses]
ROW = "of "  # before a class or an entity type: [hits, false alarms, missed]
TRULY = "truly "  # before a class: what its records were taken for
ALL = "all"  # in place of names that differ between hospitals
PIECE = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """What each of so many records adds to a vector: the entries that are not zero."""

    records: int
    size: int  # of the vector
    record: NDArray[Any]
    place: NDArray[Any]
    value: NDArray[Any]

    @classmethod
    def of_cells(cls, places: NDArray[Any], size: int) -> Rows:
        """Each record counts in one cell."""
        every = np.arange(len(places))
        return cls(len(places), size, every, places, np.ones(len(places), np.int64))

    @classmethod
    def of_values(cls, matrix: NDArray[Any]) -> Rows:
        """Each record adds a row of numbers."""
        records, size = matrix.shape
        record, place = np.divmod(np.arange(matrix.size), max(size, 1))
        return cls(records, size, record, place, matrix.astype(float).ravel())

    def total(self) -> NDArray[Any]:
        """What all records add."""
        return np.bincount(self.place, self.value, self.size).astype(self.value.dtype)

    def along(self, slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far each record moves what has this slope."""
        found: NDArray[Any] = np.bincount(self.record, self.value * slope[self.place], self.records)
        return found.astype(float)


def add(*parts: Mapping[str, Any]) -> Counts:
    """The sum of counts that have the same names."""
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


def by_name(table: Mapping[str, Rows], *, by_label: bool) -> dict[str, Rows]:
    """Rows of classes or types under their names, or all of them under one."""
    if by_label:
        return {ROW + name: rows for name, rows in table.items()}
    return {ALL: together(list(table.values()))}


def together(parts: Sequence[Rows]) -> Rows:
    """The sum of several vectors of the same records, record by record."""
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("record", "place", "value")
    }
    return Rows(parts[0].records, parts[0].size, **joined)


def products(matrix: NDArray[Any]) -> Rows:
    """What each record adds to the sums of products of its numbers, two by two."""
    up = np.triu_indices(matrix.shape[1])
    return Rows.of_values(matrix[:, up[0]] * matrix[:, up[1]])


def square(triangle: NDArray[Any]) -> NDArray[np.float64]:
    """The whole matrix of sums of products."""
    size = int((np.sqrt(8 * triangle.size + 1) - 1) / 2)
    whole, up = np.zeros((size, size)), np.triu_indices(size)
    whole[up] = triangle
    return whole + np.triu(whole, 1).T


def pieces(counts: Counts) -> dict[str, NDArray[np.float32]]:
    """Counts as they travel; what float32 rounds off of sums goes beside them."""
    found = {}
    for name, vector in counts.items():
        halves = [vector.astype(np.float32)]
        if vector.dtype.kind == "f":
            halves.append((vector - halves[0]).astype(np.float32))
        for half, values in enumerate(halves):
            for start in range(0, len(values), PIECE):
                piece = values[start : start + PIECE]
                found[f"{half}/{start // PIECE:04}/{name}"] = piece
    return found


def whole(sums: Mapping[str, NDArray[Any]]) -> Counts:
    """The inverse of `pieces`, of their sums."""
    parts: dict[str, tuple[list[Any], list[Any]]] = {}
    for key, vector in sorted(sums.items()):
        half, _, name = key.split("/", 2)
        parts.setdefault(name, ([], []))[int(half)].append(vector)
    return {
        name: np.concatenate(sure) + np.concatenate(rest)
        if rest
        else np.rint(np.concatenate(sure)).astype(np.int64)
        for name, (sure, rest) in parts.items()
    }
