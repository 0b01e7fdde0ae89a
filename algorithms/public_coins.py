"""Public coins: randomness that every party draws alike, on any machine and at any position.

Libraries do not guarantee the same random stream in their next version. These integer operations
(SplitMix64: Steele, Lea, Flood, OOPSLA 2014, counted by position) give the same bits everywhere. So
does the order of hashes that selects a round's parties. Never use them for keys or for noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secure_fl.seeds import seed_for

STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def coins(seed: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Draw 64 bits for each position."""
    bits = (positions.astype(np.uint64) + np.uint64(1)) * STEP + np.uint64(seed)
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))


def choose(seed: int, total: int, count: int) -> NDArray[np.int64]:
    """Draw `count` of `total` positions, in order; all subsets are equally likely."""
    order = np.argsort(coins(seed, np.arange(total)), kind="stable")
    return np.sort(order[:count])


def sampled(
    seed: int, round: int, parties: Sequence[str], share: float, at_least: int
) -> frozenset[str]:
    """Draw a random share of the parties, never fewer than a sum needs."""
    count = min(len(parties), max(round_up(share * len(parties)), at_least, 1))
    order = sorted(parties, key=lambda party: seed_for(seed, "sample", round, party))
    return frozenset(order[:count])


def round_up(value: float) -> int:
    """Round up to a whole number, with tolerance for floating-point errors."""
    return -int(-(value - 1e-9) // 1)
