"""Shared noise: each hospital adds a share of a step's noise, and only the sum is opened.

A *unit* is a record, or a patient with all records. A step adds one gradient of each unit, clipped
to a bound C and written in integers, s of which are C, by truncation towards zero. A hospital cuts
each coordinate of their sum to ±L, and adds its share of Skellam noise (arXiv 2110.04995).
docs/shared-noise.md proves that T steps are at least as private as T steps of DP-SGD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.privacy.accounting import equivalent_std
from secure_fl.crypto.privacy.noise import LARGEST_VARIANCE, Uniforms, skellam
from secure_fl.errors import BudgetError, CryptoError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
FINEST = 256  # s is at least this, and at least 16·√(dimension): truncation then costs nothing
PER_VALUE = 16
MORE_NOISE = 4  # a hospital's own noise may have this many times the variance of its share


@dataclass(frozen=True, slots=True)
class SharedNoise:
    """The noise of one step, equal at all hospitals (`protocol.ports.Noise`).

    Values arrive with this hospital's noise in them, because a repeated step sends them again.
    """

    multiplier: float  # σ
    dimension: int
    units: int  # of one hospital, whose gradients may add up in one coordinate: L is so many bounds
    parties: int  # n
    dropouts: int  # d
    colluders: int  # c
    scale: ClassVar[float] = 1.0  # sums are opened as integers
    prepaid: ClassVar[bool] = True  # the values carry noise that is in the ledger

    def __post_init__(self) -> None:
        if min(self.dropouts, self.colluders) < 0 or self.honest < 1:
            raise BudgetError(
                f"with {self.dropouts} dropouts and {self.colluders} colluders, none of the "
                f"{self.parties} hospitals is left to add noise",
                fix="set training.dp.dropouts or training.dp.colluders lower, or add hospitals",
                reason="no-noise-source",
            )
        if not 0 < self.multiplier < math.inf or min(self.dimension, self.units) < 1:
            raise BudgetError(
                "the noise multiplier, the values and the units of a step must be positive",
                reason="no-guarantee",
            )
        if self.share_variance * MORE_NOISE > LARGEST_VARIANCE:
            raise BudgetError(
                f"a noise multiplier of {self.multiplier:.3g} is too large for "
                f"{self.dimension} values",
                fix="allow a larger epsilon, or fewer rounds",
                reason="variance-too-large",
            )

    @property
    def honest(self) -> int:
        """Hospitals that surely add their share: n-d-c."""
        return self.parties - self.dropouts - self.colluders

    @property
    def grid(self) -> int:
        """s: grid steps of a unit's bound."""
        return max(FINEST, 1 << math.ceil(math.log2(PER_VALUE * math.sqrt(self.dimension))))

    @property
    def limit(self) -> int:
        """L: the largest coordinate of one hospital's sum, before noise."""
        return self.grid * self.units

    @property
    def share_variance(self) -> float:
        """The variance of one hospital's share, in squared grid steps."""
        return variance_for(self.multiplier * self.grid) / self.honest

    @property
    def reach(self) -> float:
        """Bound of a hospital's noised integers, except with probability below 2^-70."""
        return self.limit + 40 + 12 * math.sqrt(MORE_NOISE * self.share_variance)

    @property
    def present(self) -> float:
        """The noise multiplier of a sum over all hospitals, which decides about accuracy."""
        return self.multiplier * math.sqrt(self.parties / self.honest)

    def towards(self, multiplier: float, colluders: int) -> float:
        """Return the noise multiplier of this hospital's units for a view with so many colluders.

        `multiplier` is that of `own`, for the colluders of the plan. 0: no noise may be left.
        """
        if colluders == self.colluders:
            return multiplier
        others = self.parties - self.dropouts - colluders - 1
        if others < 0:
            return 0.0
        variance = self._own_variance(multiplier) + others * self.share_variance
        return equivalent_std(variance) / self.grid

    def own(self, multiplier: float) -> float:
        """Return the variance that a hospital adds so that its own units have this multiplier."""
        own = self._own_variance(multiplier)
        if own > MORE_NOISE * self.share_variance:
            raise BudgetError(
                f"this hospital needs a noise multiplier of {multiplier:.4g} for its budget, and "
                f"the plan has {self.multiplier:.4g}: its own noise would be too large",
                fix="plan more noise (training.dp.noise_multiplier) or fewer rounds",
                reason="needs-more-noise",
            )
        return own

    def _own_variance(self, multiplier: float) -> float:
        wanted = variance_for(max(multiplier, self.multiplier) * self.grid)
        return wanted - (self.honest - 1) * self.share_variance

    def noised(
        self, total: Integers, multiplier: float, uniforms: Uniforms | None = None
    ) -> Integers:
        """Cut this hospital's sum, and add its noise from the operating system's randomness.

        Only audits pass uniforms.
        """
        cut = np.clip(total, -self.limit, self.limit)
        return cut + skellam(self.own(multiplier), cut.size, uniforms)

    def share(self, x: Integers) -> Integers:
        """Return integers that carry this hospital's noise; refuse other values."""
        if x.dtype != np.int64:
            raise CryptoError("a sum of noised gradients is of integers, and these are not")
        return x

    def check_survivors(self, survivors: int) -> None:
        """Raise BudgetError if too many dropped out: the sum would carry too little noise."""
        if survivors < self.parties - self.dropouts:
            raise BudgetError(
                f"{survivors} of {self.parties} hospitals are left, and the noise of this step is "
                f"sized for {self.dropouts} dropouts: its sum is not opened",
                fix="resume when all hospitals are present, or plan with more training.dp.dropouts",
                reason="too-many-dropouts",
            )


def on_grid(gradients: Floats, bound: float, grid: int) -> Integers:
    """Clip each row to `bound`, and truncate it to integers; no row is longer than `grid`.

    A row with NaN, infinity or an infinite norm is zero: all hospitals would see an error.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # zero below
        norms = np.linalg.norm(gradients, axis=1)
        scaled = gradients * (grid / np.maximum(norms, bound))[:, None]
    scaled[~(np.isfinite(norms) & np.isfinite(scaled).all(axis=1))] = 0.0
    steps = np.trunc(scaled).astype(np.int64)
    while (long := _squares(steps) > grid * grid).any():  # norms of floats are not exact
        scaled[long] *= 1 - 2.0**-40
        steps[long] = np.trunc(scaled[long])
    found: Integers = steps
    return found


def _squares(rows: Integers) -> Integers:
    squares: Integers = np.einsum("ij,ij->i", rows, rows)
    return squares


def variance_for(std: float) -> float:
    """Find the Skellam variance whose equivalent Gaussian has this std, or very little more."""
    variance, more = std**2 + 1 / 3, 1e-12
    while equivalent_std(variance) < std:
        variance, more = variance * (1 + more), 2 * more
    return variance
