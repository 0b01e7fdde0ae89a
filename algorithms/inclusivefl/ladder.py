"""The sizes of models in a federation: tiers of hospitals by depth.

InclusiveFL, Sec. 3.1: all tiers hold the first layers of one model. A tier's own last layer,
pooler and head are isolated; embeddings and the layers below are shared with all deeper tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secure_fl.algorithms.layers import Part


@dataclass(frozen=True, slots=True)
class Ladder:
    """Tiers by depth, from the smallest to the largest."""

    depths: Mapping[str, int]  # tier -> encoder layers, strictly increasing

    @classmethod
    def of(cls, tiers: Mapping[str, int]) -> Ladder:
        """Sort the tiers by depth; the depths must differ."""
        return cls(dict(sorted(tiers.items(), key=lambda tier: tier[1])))

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers, from the smallest to the largest."""
        return tuple(self.depths)

    def only(self, tiers: Sequence[str]) -> Ladder:
        """Return the ladder of these tiers alone."""
        return Ladder({tier: depth for tier, depth in self.depths.items() if tier in tiers})

    def above(self, tier: str) -> str | None:
        """Return the next larger tier."""
        after = self.tiers[self.tiers.index(tier) + 1 :]
        return after[0] if after else None

    def below(self, tier: str) -> str | None:
        """Return the next smaller tier."""
        before = self.tiers[: self.tiers.index(tier)]
        return before[-1] if before else None

    def last(self, tier: str) -> int:
        """Return the isolated layer: the last one of this tier's model, from 0."""
        return self.depths[tier] - 1

    def sharers(self, part: Part) -> tuple[str, ...]:
        """List the tiers that share a part: all that have it below their last layer."""
        if part == "embeddings":
            return self.tiers
        if isinstance(part, int):
            return tuple(tier for tier in self.tiers if part < self.last(tier))
        return ()

    def parts(self, tier: str, *, embeddings: bool) -> tuple[Part, ...]:
        """List a tier's layers, after the embeddings if they are trained."""
        return (*(("embeddings",) if embeddings else ()), *range(self.depths[tier]))

    def distilled(self, tier: str) -> range:
        """Return the layers whose mean update teaches a smaller tier (lines 21-22, from 0).

        [L_- : L_j] inclusive. The smallest tier has no smaller one, and returns its last layer.
        """
        smaller = self.below(tier)
        return range(self.last(smaller if smaller else tier), self.depths[tier])
