"""Partitions of a column's values, and tables of counts over them.

A codebook names the finest partition of each column. A release merges cells of it into blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Partition:
    """A map from a column's values to blocks: by edges of numbers, or by named values.

    Every other value, and a missing one, is in the block `rest`.
    """

    edges: tuple[float, ...] | None  # increasing; block k has the numbers from edge k-1 to edge k
    values: Mapping[str, int]  # block of each named value; empty for numbers
    rest: int

    @property
    def size(self) -> int:
        """The number of blocks."""
        named = len(self.edges) if self.edges is not None else max(self.values.values(), default=0)
        return max(named, self.rest) + 1

    def merged(self, blocks: Sequence[int]) -> Partition:
        """Merge blocks: `blocks` has the new block of each one; neighbours stay in their order."""
        rest = blocks[self.rest]
        if self.edges is None:
            return Partition(None, {v: blocks[b] for v, b in self.values.items()}, rest)
        kept = (e for k, e in enumerate(self.edges) if blocks[k] != blocks[k + 1])
        return Partition(tuple(kept), {}, rest)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a site's note."""
        edges = None if self.edges is None else list(self.edges)
        return {"edges": edges, "values": dict(self.values), "rest": self.rest}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Partition:
        """Read the JSON form."""
        edges = found["edges"]
        return cls(None if edges is None else tuple(edges), found["values"], found["rest"])


@dataclass(frozen=True, slots=True)
class Tabulation:
    """The counts of one table over blocks of its columns, and the released ones among them."""

    columns: tuple[str, ...]
    partitions: tuple[Partition, ...]
    counts: Integers  # one axis for each column
    shown: Flags

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a site's note."""
        return {
            "columns": list(self.columns),
            "partitions": [one.to_json() for one in self.partitions],
            "counts": self.counts.tolist(),
            "shown": self.shown.tolist(),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Tabulation:
        """Read the JSON form."""
        return cls(
            tuple(found["columns"]),
            tuple(map(Partition.from_json, found["partitions"])),
            np.array(found["counts"], np.int64),
            np.array(found["shown"], bool),
        )


def atoms_of(partitions: Sequence[Partition]) -> tuple[int, list[Integers]]:
    """Return the number of atoms of a column, and the block of each atom in every partition.

    The atoms are the coarsest partition that refines all the given ones.
    """
    points = sorted({e for one in partitions for e in one.edges or ()})
    names = sorted({value for one in partitions for value in one.values})
    maps = []
    for one in partitions:
        if one.edges is not None:
            found = np.searchsorted(one.edges, [-np.inf, *points], side="right").tolist()
        else:
            found = [one.values.get(name, one.rest) for name in names]
        maps.append([*found, one.rest])
    if points and names:
        raise ValueError("a column is coded by numbers and by names")
    distinct = np.unique(np.array(maps), axis=1)
    return distinct.shape[1], [row.astype(np.int64) for row in distinct]
