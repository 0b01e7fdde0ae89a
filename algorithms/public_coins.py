"""Public randomness that every party draws alike, on any machine and at any position.

Libraries do not promise tomorrow's version the same random stream. These integer operations
(SplitMix64: Steele, Lea, Flood, OOPSLA 2014, counted by position) are the same everywhere, and so
is the order of hashes that says which parties train in a round. Never for keys or for noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secure_fl.seeds import seed_for

STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def coins(seed: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits for each position."""
    bits = (positions.astype(np.uint64) + np.uint64(1)) * STEP + np.uint64(seed)
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))


def choose(seed: int, total: int, count: int) -> NDArray[np.int64]:
    """`count` of `total` positions, every subset as likely as any other; in order."""
    order = np.argsort(coins(seed, np.arange(total)), kind="stable")
    return np.sort(order[:count])


def sampled(
    seed: int, round: int, parties: Sequence[str], share: float, at_least: int
) -> frozenset[str]:
    """A random share of the parties; never fewer than may form a sum."""
    count = min(len(parties), max(round_up(share * len(parties)), at_least, 1))
    order = sorted(parties, key=lambda party: seed_for(seed, "sample", round, party))
    return frozenset(order[:count])


def round_up(value: float) -> int:
    """The next whole number, with room for what floating point adds."""
    return -int(-(value - 1e-9) // 1)
