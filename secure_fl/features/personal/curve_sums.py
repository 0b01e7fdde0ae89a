"""Sealed sums of curves: each hospital's sums of losses at the points of a fixed grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.metric_counts import Counts, from_pieces, pieces
from secure_fl.party.cohort import Cohort

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CurveSums:
    """Sums over hospitals: of records, and of their losses at each point of a grid."""

    records: float
    losses: Array

    def counts(self) -> Counts:
        """Return the sums under names, for `pieces`."""
        return {"records": np.array([self.records]), "losses": self.losses}

    @classmethod
    def from_counts(cls, counts: Counts) -> Self:
        """Return the inverse of `counts`."""
        return cls(float(counts["records"][0]), counts["losses"])

    @property
    def valid(self) -> bool:
        """True if hospitals with such records can exist."""
        finite = np.isfinite(self.records) and np.isfinite(self.losses).all()
        return bool(finite and self.records >= 1 and (self.losses >= -1e-6 * self.records).all())

    async def over(self, cohort: Cohort) -> Self | None:
        """Add the members of the last sum; None: one has left, or lied."""
        opened = await cohort.sum(pieces(self.counts()), together=True)
        sums = self.from_counts(from_pieces(opened)) if opened else None
        return sums if sums is not None and sums.valid else None


def own_weight(apart: float, variance: float) -> float:
    """Weigh a hospital's own curve by its distance from the pooled one, as Breiman's garrote.

    `variance`: of the distance, by the chance of which records the hospital has. A hospital like
    the others has weight 0, and one with few records a low one.
    """
    return max(0.0, 1 - variance / apart**2) if apart else 0.0
