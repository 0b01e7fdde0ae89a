"""Which parties train in a round, where it is not all of them: drawn alike by everybody."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.seeds import seed_for


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
