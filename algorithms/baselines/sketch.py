"""The count sketch: a long vector added up in few cells, from which its largest values come back.

Charikar, Chen, Farach-Colton: Finding Frequent Items in Data Streams. ICALP 2002. Every row adds
each value, with a random sign, to one random cell; a value is estimated by the median over the
rows of its signed cells. A sketch is a linear map, so the sketch of a sum is the sum of sketches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.algorithms.public_coins import coins
from secure_fl.seeds import seed_for

BLOCK = 1 << 17  # values worked on at once, in the processor's cache

Positions = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CountSketch:
    """The linear map S from vectors of `size` values to tables of `rows` × `columns` cells."""

    rows: int
    columns: int
    size: int
    seed: int

    def of(self, vector: Tensor) -> Reals:
        """S(vector)."""
        table = torch.zeros(self.rows, self.columns, dtype=torch.float64)
        for block in _blocks(0, self.size):
            values = vector[block[0] : block[-1] + 1].to("cpu", torch.float64)
            for row in range(self.rows):
                places, signs = map(torch.from_numpy, self._hash(row, block))
                table[row].index_add_(0, places, values * signs)
        found: Reals = table.numpy()
        return found

    def estimates(self, table: Reals, positions: Positions) -> Reals:
        """U(table) at these positions: the median over the rows."""
        found = []
        for row in range(self.rows):
            cells, signs = self._hash(row, positions)
            found.append(table[row, cells] * signs)
        low, high = _medians(found)
        return (low + high) / 2

    def top(self, table: Reals, k: int) -> tuple[Positions, Reals]:
        """Top-k(U(table)): the k estimates of largest magnitude, by position; never a zero."""
        positions, values = _top(self, table.tobytes(), k)
        return positions.copy(), values.copy()

    def search(self, table: Reals, k: int) -> tuple[Positions, Reals]:
        """`top` itself. All estimates are never there at once: some k against the best so far."""
        positions, values = np.empty(0, np.int64), np.empty(0)
        some = max(k, BLOCK)
        for start in range(0, self.size, some):
            blocks = list(_blocks(start, min(start + some, self.size)))
            positions = np.concatenate([positions, *blocks])
            values = np.concatenate([values, *(self.estimates(table, b) for b in blocks)])
            kept = _largest(np.abs(values), k)
            positions, values = positions[kept], values[kept]
        return positions, values

    def touched(self, positions: Positions) -> NDArray[np.bool_]:
        """The cells that values at these positions fall into."""
        mask = np.zeros((self.rows, self.columns), np.bool_)
        for row in range(self.rows):
            mask[row, self._hash(row, positions)[0]] = True
        return mask

    def _hash(self, row: int, positions: Positions) -> tuple[Positions, Reals]:
        bits = coins(seed_for(self.seed, "row", row), positions)
        half = np.uint64(32)  # the upper half picks the cell, the lowest bit the sign
        cells = ((bits >> half) * np.uint64(self.columns)) >> half
        return cells.astype(np.int64), 1.0 - 2.0 * (bits & np.uint64(1)).astype(np.float64)


@lru_cache(maxsize=1)
def _top(sketch: CountSketch, cells: bytes, k: int) -> tuple[Positions, Reals]:
    """Of sums that all parties hold alike: those of one process look it up once."""
    return sketch.search(np.frombuffer(cells).reshape(sketch.rows, -1), k)


def _medians(rows: list[Reals]) -> tuple[Reals, Reals]:
    """The two middle rows, place by place (one and the same if there is an odd number of rows).

    By whole rows bubbling up until the middle is settled, which is much quicker than many short
    sorts.
    """
    for end in range(len(rows) - 1, (len(rows) - 1) // 2 - 1, -1):
        for k in range(end):
            a, b = rows[k], rows[k + 1]
            rows[k], rows[k + 1] = np.minimum(a, b), np.maximum(a, b)
    return rows[(len(rows) - 1) // 2], rows[len(rows) // 2]


def _blocks(start: int, stop: int) -> Iterator[Positions]:
    for first in range(start, stop, BLOCK):
        yield np.arange(first, min(first + BLOCK, stop))


def _largest(sizes: Reals, k: int) -> NDArray[np.bool_]:
    """The k largest that are not zero; among equals, the first.

    Only the k-th value is asked of numpy: which of several equal ones it would pick depends on the
    processor, and all parties must pick the same.
    """
    kept: NDArray[np.bool_] = sizes > 0
    if np.count_nonzero(kept) > k:
        least = np.partition(sizes, sizes.size - k)[sizes.size - k]
        kept = sizes > least
        ties = np.flatnonzero(sizes == least)
        kept[ties[: k - np.count_nonzero(kept)]] = True
    return kept
