"""FetchSGD: updates as count sketches, with momentum and error feedback inside the sketch.

Rothchild, Panda, Ullah, Ivkin, Stoica, Braverman, Gonzalez, Arora: FetchSGD: Communication-
Efficient Federated Learning with Sketching. ICML 2020, arXiv 2007.07682, Algorithm 1. A baseline of
FedKD (arXiv 2108.13323, Tables 2 and 3), whose cost column fits a sketch of a quarter of the model.

Differs: every party opens the sum of the sketches and repeats the aggregator's part. The download
is the summed sketch, not the paper's sparse top-k, so k does not change the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.algorithms.baselines.settings import FetchSGD
from secure_fl.algorithms.public_coins import coins
from secure_fl.algorithms.updates import add_, agree_on, flat, local_update, unflat, weighted_mean
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for

SKETCH = "sketch"  # the name of sketches in sums
BLOCK = 1 << 17  # values per step, so that they fit into the processor's cache

Positions = NDArray[np.int64]
Reals = NDArray[np.float64]


class Aggregator:
    """The server's part. It is deterministic, so that every party can repeat it."""

    def __init__(self, cfg: FetchSGD, sketch: CountSketch) -> None:
        self._cfg, self._sketch, self._k = cfg, sketch, cfg.moving(sketch.size)
        self.S_u = np.zeros((sketch.rows, sketch.columns))  # line 1
        self.S_e = np.zeros((sketch.rows, sketch.columns))

    def step(self, S: Reals) -> tuple[Positions, Reals]:
        """Return the positions and moves of k weights, given the mean sketch of the updates."""
        cfg = self._cfg
        self.S_u = cfg.momentum * self.S_u + S  # line 11
        self.S_e = self.S_e + cfg.server_learning_rate * self.S_u  # line 12
        where, Δ = self._sketch.top(self.S_e, self._k)  # line 13
        # Differs, as in the paper's experiments: line 14 would subtract S(Δ); cells of S(Δ) are
        # zeroed instead, in the momentum too (momentum factor masking, arXiv 1712.01887).
        touched = self._sketch.touched(where)
        self.S_e[touched] = 0.0
        if cfg.masking:
            self.S_u[touched] = 0.0
        return where, Δ

    def fingerprint(self) -> bytes:
        """Compute a digest of momentum and error, which must be equal at all parties."""
        return sha256(self.S_u.tobytes() + self.S_e.tobytes()).digest()

    def state_dict(self) -> dict[str, Any]:
        """Return momentum and error for a checkpoint."""
        return {"momentum": self.S_u, "error": self.S_e}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore momentum and error from `state_dict`."""
        self.S_u, self.S_e = np.array(state["momentum"]), np.array(state["error"])


async def fetchsgd(cohort: Cohort, site: Site, cfg: FetchSGD) -> None:
    """Run FetchSGD at one party."""
    model = site.model()  # line 2
    size = sum(weight.numel() for weight in trainable(model).values())
    # One map for the run, so that momentum and error of different rounds can be added.
    seed = seed_for(site.seed, SKETCH)
    sketch = CountSketch(cfg.rows, cfg.columns_for(size), size, seed)
    aggregator = Aggregator(cfg, sketch)
    await cohort.agree(site.fingerprint(), "task")
    replicated = {"model": model, "aggregator": aggregator}
    async for round in cohort.rounds(cfg.rounds, shared=replicated):
        # Differs: parties sketch the update of local training. With one step of SGD, it is -g of
        # line 7 times the local learning rate.
        Δ = local_update(site, model, cfg.epochs, round, cfg.steps)
        S = {SKETCH: torch.from_numpy(sketch.of(flat(Δ)))}  # line 8
        # The sum adds the rounding error of the last sketch. That is correct here: S is linear, and
        # a cell has the same meaning in every round.
        mean = await weighted_mean(cohort, S, site.records)  # line 10, weighted by records
        where, values = aggregator.step(mean[SKETCH].numpy())
        moves = torch.zeros(size, dtype=torch.float64)
        moves[torch.from_numpy(where)] = torch.from_numpy(values)
        add_(model, unflat(moves, trainable(model)))  # line 15: moves, so they are added
        await agree_on(cohort, model)
        await cohort.agree(aggregator.fingerprint(), "momentum and error")
        site.score(model, round.number)
    site.deliver(model)


@dataclass(frozen=True, slots=True)
class CountSketch:
    """The count sketch S: a linear map from `size` values to `rows` × `columns` cells.

    Charikar, Chen, Farach-Colton: Finding Frequent Items in Data Streams. ICALP 2002. Every row
    adds each value, with a random sign, to one random cell. A value's estimate is the median over
    the rows of its signed cells. The sketch of a sum is the sum of the sketches.
    """

    rows: int
    columns: int
    size: int
    seed: int

    def of(self, vector: Tensor) -> Reals:
        """Compute S(vector)."""
        table = torch.zeros(self.rows, self.columns, dtype=torch.float64)
        for block in _blocks(0, self.size):
            values = vector[block[0] : block[-1] + 1].to("cpu", torch.float64)
            for row in range(self.rows):
                places, signs = map(torch.from_numpy, self._hash(row, block))
                table[row].index_add_(0, places, values * signs)
        cells: Reals = table.numpy()
        return cells

    def estimates(self, table: Reals, positions: Positions) -> Reals:
        """Compute U(table) at these positions: the median over the rows."""
        estimates = []
        for row in range(self.rows):
            cells, signs = self._hash(row, positions)
            estimates.append(table[row, cells] * signs)
        low, high = _medians(estimates)
        return (low + high) / 2

    def top(self, table: Reals, k: int) -> tuple[Positions, Reals]:
        """Compute Top-k(U(table)): the k largest estimates, by position, without zeros."""
        positions, values = _top(self, table.tobytes(), k)
        return positions.copy(), values.copy()

    def search(self, table: Reals, k: int) -> tuple[Positions, Reals]:
        """Compute `top` in parts, so that not all estimates are in memory at once."""
        positions, values = np.empty(0, np.int64), np.empty(0)
        part = max(k, BLOCK)
        for start in range(0, self.size, part):
            blocks = list(_blocks(start, min(start + part, self.size)))
            positions = np.concatenate([positions, *blocks])
            values = np.concatenate([values, *(self.estimates(table, b) for b in blocks)])
            kept = _largest(np.abs(values), k)
            positions, values = positions[kept], values[kept]
        return positions, values

    def touched(self, positions: Positions) -> NDArray[np.bool_]:
        """Mark the cells of the values at these positions."""
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
    """Cache the search, since all parties of one process have equal sums."""
    return sketch.search(np.frombuffer(cells).reshape(sketch.rows, -1), k)


def _medians(rows: list[Reals]) -> tuple[Reals, Reals]:
    """Return the two middle values over the rows, elementwise (equal for an odd number of rows).

    Bubble sort of the rows up to the middle is much faster than many short sorts.
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
    """Mark the k largest values that are not zero; the first ones if values are equal.

    numpy gives only the k-th value: its choice among equal values depends on the processor, and
    all parties must make the same choice.
    """
    kept: NDArray[np.bool_] = sizes > 0
    if np.count_nonzero(kept) > k:
        least = np.partition(sizes, sizes.size - k)[sizes.size - k]
        kept = sizes > least
        ties = np.flatnonzero(sizes == least)
        kept[ties[: k - np.count_nonzero(kept)]] = True
    return kept
