"""Counts that add up over hospitals: contributions of records, sums, transport.

A model's metric on all records together is not the mean of its metrics at each hospital: one with
two records would weigh as much as one with 300. So each hospital counts, the counts are summed, and
metrics follow from the sum (`metrics`).

Integers are cells: a record adds one to a cell or nothing. Floats are sums of measured values. At
most eight numbers of a name are summed exactly, as float32. So counts are sent in pieces, and what
float32 rounds off of a sum is sent with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    pass

Counts: TypeAlias = dict[str, NDArray[Any]]

LOSS = "loss"  # [records, sum of their losses]
ROW = "of "  # before a class or an entity type: [hits, false alarms, misses]
TRULY = "truly "  # before a class: its row of the confusion matrix
SCORED = "scored "  # before a class: its records by bins of its log-odds, then all others'
MAX_CROSSED = 10  # classes with a confusion matrix: of more, most cells would hold one record
ALL = "all"  # instead of names that differ between hospitals
PIECE = 8


@dataclass(frozen=True, slots=True)
class Contributions:
    """The contribution of each record to a vector: the entries that are not zero."""

    records: int
    size: int  # of the vector
    record: NDArray[Any]
    place: NDArray[Any]
    value: NDArray[Any]

    @classmethod
    def of_cells(cls, places: NDArray[Any], size: int) -> Contributions:
        """Each record counts in one cell."""
        every = np.arange(len(places))
        return cls(len(places), size, every, places, np.ones(len(places), np.int64))

    @classmethod
    def of_values(cls, matrix: NDArray[Any]) -> Contributions:
        """Each record adds a row of numbers."""
        records, size = matrix.shape
        record, place = np.divmod(np.arange(matrix.size), max(size, 1))
        return cls(records, size, record, place, matrix.astype(float).ravel())

    def total(self) -> NDArray[Any]:
        """The sum over all records."""
        return np.bincount(self.place, self.value, self.size).astype(self.value.dtype)

    def along(self, slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """The distance that each record moves a metric with this derivative."""
        moves: NDArray[Any] = np.bincount(self.record, self.value * slope[self.place], self.records)
        return moves.astype(float)


def add(*parts: Mapping[str, Any]) -> Counts:
    """The sum of counts that have the same names."""
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


def by_name(table: Mapping[str, Contributions], *, by_label: bool) -> dict[str, Contributions]:
    """The contributions to classes or types under their names, or their sum under one name."""
    if by_label:
        return {ROW + name: rows for name, rows in table.items()}
    parts = list(table.values())
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("record", "place", "value")
    }
    return {ALL: Contributions(parts[0].records, parts[0].size, **joined)}


def products(matrix: NDArray[Any]) -> Contributions:
    """Each record's contribution to the sums of products of its numbers, two by two."""
    up = np.triu_indices(matrix.shape[1])
    return Contributions.of_values(matrix[:, up[0]] * matrix[:, up[1]])


def square(triangle: NDArray[Any]) -> NDArray[np.float64]:
    """The symmetric matrix of sums of products."""
    size = int((np.sqrt(8 * triangle.size + 1) - 1) / 2)
    matrix, up = np.zeros((size, size)), np.triu_indices(size)
    matrix[up] = triangle
    return matrix + np.triu(matrix, 1).T


def pieces(counts: Counts) -> dict[str, NDArray[np.float32]]:
    """Split counts for transport; what float32 rounds off of sums follows separately."""
    split = {}
    for name, vector in counts.items():
        halves = [vector.astype(np.float32)]
        if vector.dtype.kind == "f":
            halves.append((vector - halves[0]).astype(np.float32))
        for half, values in enumerate(halves):
            for start in range(0, len(values), PIECE):
                piece = values[start : start + PIECE]
                split[f"{half}/{start // PIECE:04}/{name}"] = piece
    return split


def from_pieces(sums: Mapping[str, NDArray[Any]]) -> Counts:
    """The inverse of `pieces`, of their sums."""
    parts: dict[str, tuple[list[Any], list[Any]]] = {}
    for key, vector in sorted(sums.items()):
        half, _, name = key.split("/", 2)
        parts.setdefault(name, ([], []))[int(half)].append(vector)
    return {
        name: np.concatenate(values) + np.concatenate(rest)
        if rest
        else np.rint(np.concatenate(values)).astype(np.int64)
        for name, (values, rest) in parts.items()
    }
