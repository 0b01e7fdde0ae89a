"""Differential-privacy mechanisms: distributed Skellam noise, its samples and its calibration.

Noise comes from the operating system's randomness: AES-256-CTR under a fresh key, since numpy's
generators are statistical, not secret. Only tests pass a generator: a seed would remove the noise.

The Poisson sampler is Hörmann's PTRS (Insurance: Mathematics and Economics 12, 1993) above a mean
of 10 and inversion below. Its log probabilities have Loader's form, exact to ~1e-9 up to means of
1e12, where the usual k·log λ - λ - log k! loses all digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secure_fl.crypto.privacy.accounting import (
    Adjacency,
    GaussianRelease,
    SkellamRelease,
    calibrate,
    epsilon,
)
from secure_fl.errors import BudgetError, CryptoError
from secure_fl.thresholds import collusion_bound


@dataclass(frozen=True, slots=True)
class SkellamNoise:
    """Skellam noise on a sum of integer vectors, in shares (mechanism of arXiv 2110.04995).

    A party with x in R^d, ‖x‖₂ <= S after clipping, contributes round(s·x) + Poisson(μᵢ/2) -
    Poisson(μᵢ/2) per coordinate. Skellam variables are closed under sums, so k honest shares have
    variance k·μᵢ. With n parties of which f may drop out and c collude (and subtract their own
    shares), μᵢ = μ/(n-f-c) guarantees μ to every honest party.

    Sensitivity of the integers: Δ₂ = s·S + √d/2, twice that when one site's data is replaced
    instead of removed; Δ₁ <= min(√d·Δ₂, Δ₂²), the second because integers satisfy |k| <= k².
    ε depends on Δ₂ and μ (`accounting`); the ledger also records Δ₁.
    """

    mu: float  # μ: the guaranteed variance, in squared grid steps
    scale: float  # s: grid steps per unit
    clip: float  # S: L2 bound of one party's vector
    dimension: int  # d: values of the vector
    parties: int  # n
    dropouts: int  # f: parties that may be missing from the sum
    colluders: int  # c: parties that subtract their shares
    adjacency: Adjacency = "add-remove"
    prepaid: ClassVar[bool] = False  # `share` adds the noise, and `Cohort.reserve` pays for it

    def __post_init__(self) -> None:
        sizes = (self.scale, self.clip, self.mu)
        if not all(0 < x < math.inf for x in sizes) or self.dimension < 1:
            raise BudgetError(
                "noise, scale, clip and dimension must be positive and finite",
                reason="no-guarantee",
            )
        if min(self.dropouts, self.colluders) < 0 or self._honest_shares < 1:
            raise BudgetError(
                f"with {self.dropouts} dropouts and {self.colluders} colluders, none of the "
                f"{self.parties} parties is left to add noise",
                fix="tolerate fewer dropouts or colluders",
                reason="no-noise-source",
            )
        if self.mu > LARGEST_VARIANCE or self.total_variance > LARGEST_VARIANCE:
            raise BudgetError(
                f"a noise variance of {self.total_variance:.3g} is more than {LARGEST_VARIANCE:g}",
                fix="lower the scale (grid steps per unit): 16 already comes close to the Gaussian",
                reason="variance-too-large",
            )

    @property
    def _honest_shares(self) -> int:
        """The number of shares that a sum contains at least, and that nobody subtracts."""
        return self.parties - self.dropouts - self.colluders

    @property
    def share_variance(self) -> float:
        """The variance μᵢ = μ/(n-f-c) of one party's share."""
        return self.mu / self._honest_shares

    @property
    def total_variance(self) -> float:
        """The variance without dropouts: above μ, since it is added for the worst case."""
        return self.share_variance * self.parties

    @property
    def l2(self) -> float:
        """Δ₂ in grid steps."""
        removed = self.scale * self.clip + 0.5 * math.sqrt(self.dimension)
        return removed if self.adjacency == "add-remove" else 2 * removed

    @property
    def l1(self) -> float:
        """Δ₁ in grid steps."""
        return min(math.sqrt(self.dimension) * self.l2, self.l2**2)

    @property
    def std(self) -> float:
        """The guaranteed noise on one coordinate of the sum, in the vector's own unit."""
        return math.sqrt(self.mu) / self.scale

    @property
    def reach(self) -> float:
        """Bound of every share, except with probability below 2^-70 for a million values."""
        return self.scale * self.clip + 40 + 12 * math.sqrt(self.share_variance)

    def event(self, count: int = 1) -> SkellamRelease:
        """Return the ledger's event of `count` releases."""
        return SkellamRelease(self.mu, self.l1, self.l2, count)

    def epsilon(self, delta: float, exchanges: int = 1) -> float:
        """Compose `exchanges` such releases into ε."""
        return epsilon([self.event(exchanges)], delta)

    def check_survivors(self, survivors: int) -> None:
        """Raise BudgetError if too many dropped out: the sum would carry too little noise."""
        if survivors < self.parties - self.dropouts:
            raise BudgetError(
                f"{survivors} of {self.parties} parties are left, and the noise was sized for "
                f"{self.dropouts} dropouts: this sum would have less noise than promised",
                fix="do not open it; repeat the round, or size the noise for more dropouts",
                reason="too-many-dropouts",
            )

    def share(self, x: Floats, uniforms: Uniforms | None = None) -> Integers:
        """Return the integers to mask: clipped, rounded to the grid, with this party's noise."""
        if x.shape != (self.dimension,):
            raise CryptoError(f"the noise was sized for {self.dimension} values, not {x.shape}")
        draw = uniforms or secure_uniforms()
        grid = np.rint(clip_norm(x, self.clip) * self.scale).astype(np.int64)
        return grid + skellam(self.share_variance, self.dimension, draw)


def clip_norm(x: Floats, bound: float) -> Floats:
    """Shrink a vector to an L2 norm of at most `bound`; NaN and infinity are refused."""
    x = np.asarray(x, dtype=np.float64)
    norm = float(np.linalg.norm(x))
    if not math.isfinite(norm):
        raise CryptoError("a vector to be noised has NaN or infinity", fix="check the training")
    # slightly below the bound, so that float rounding cannot exceed it
    return x if norm <= bound else x * (bound * (1 - 1e-12) / norm)


def calibrated_skellam(
    template: SkellamNoise, target: float, delta: float, exchanges: int = 1
) -> SkellamNoise:
    """Return the template with the least μ whose `exchanges` releases stay within ε at δ."""
    top = LARGEST_VARIANCE * template.mu / template.total_variance
    mu = calibrate(
        lambda μ: [replace(template, mu=μ).event(exchanges)], target, delta, low=1e-3, high=top
    )
    return replace(template, mu=mu)


def calibrated_gaussian(
    sensitivity: float, target: float, delta: float, releases: int = 1
) -> float:
    """Find the least std σ of central Gaussian noise whose releases stay within ε at δ."""
    least = calibrate(lambda z: [GaussianRelease(z, releases)], target, delta, precision=1e-4)
    return least * sensitivity


def prediction_sensitivity(examples: int, classes: int) -> float:
    """Bound one hospital's L2 share in a sum of class probabilities, less 1/C: √(B(1-1/C))."""
    return math.sqrt(examples * (1 - 1 / classes))


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Uniforms = Callable[[int], Floats]  # n numbers in (0, 1)
SMALL_MEAN = 10.0
LARGEST_VARIANCE = 1e12


def secure_uniforms() -> Uniforms:
    """Make a source of uniform numbers of 53 bits, from AES under a fresh random key."""
    stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()

    def draw(n: int) -> Floats:
        words = np.frombuffer(stream.update(bytes(8 * n)), dtype=np.uint64) >> np.uint64(11)
        return (words.astype(np.float64) + 0.5) * 2.0**-53

    return draw


def skellam(variance: float, size: int, uniforms: Uniforms | None = None) -> Integers:
    """Sample Poisson(variance/2) - Poisson(variance/2). Only tests pass uniforms."""
    if not 0 <= variance <= LARGEST_VARIANCE:
        raise CryptoError(
            f"a Skellam variance of {variance:g} is out of range",
            fix=f"lower the scale so that the variance stays below {LARGEST_VARIANCE:g}",
        )
    draw = uniforms or secure_uniforms()
    return poisson(variance / 2, size, draw) - poisson(variance / 2, size, draw)


def poisson(mean: float, size: int, draw: Uniforms) -> Integers:
    """Sample independent Poisson variables."""
    if mean < SMALL_MEAN:
        return _by_inversion(mean, size, draw)
    out = np.empty(size, dtype=np.int64)
    open_slots = np.arange(size)
    while open_slots.size:
        k, accepted = _ptrs_trial(mean, draw(open_slots.size), draw(open_slots.size))
        out[open_slots[accepted]] = k[accepted]
        open_slots = open_slots[~accepted]
    return out


def _by_inversion(mean: float, size: int, draw: Uniforms) -> Integers:
    k = np.arange(80)  # at mean 10 the tail beyond has mass below 1e-40
    mass = np.exp(-mean + k * math.log(mean) - _log_factorial(k)) if mean > 0 else 1.0 * (k == 0)
    return np.searchsorted(np.cumsum(mass), draw(size)).astype(np.int64)


def _ptrs_trial(mean: float, u: Floats, v: Floats) -> tuple[Integers, NDArray[np.bool_]]:
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    base = math.floor(mean)  # added as an integer, which keeps all bits of the proposal
    u = u - 0.5
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + (mean - base) + 0.43).astype(np.int64) + base
    sure = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    test = ~sure & (k >= 0) & ((us >= 0.013) | (v <= us))
    weight = np.log(v[test] * inverse_alpha / (a / us[test] ** 2 + b))
    accepted = sure.copy()
    accepted[test] = weight <= _log_mass(k[test], mean)
    return k, accepted


def _log_mass(k: Integers, mean: float) -> Floats:
    """Compute log(mean^k e^-mean / k!) in Loader's saddle point form."""
    x = (k - mean) / mean
    with np.errstate(divide="ignore", invalid="ignore"):
        deviance = mean * ((1 + x) * np.log1p(x) - x)
        main = -0.5 * np.log(2 * math.pi * k) - deviance - _stirling_error(k)
    return np.where(k == 0, -mean, main)


def _stirling_error(k: Integers) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        n = k.astype(np.float64)
        series = (1 / 12 - (1 / 360 - 1 / (1260 * n * n)) / (n * n)) / n
        exact = _log_factorial(k) - (n + 0.5) * np.log(n) + n - 0.5 * math.log(2 * math.pi)
    return np.where(k < 30, exact, series)


def _log_factorial(k: Integers) -> Floats:
    """Look up log k!, for k < 80 only: callers discard the results of larger ones."""
    table = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, 80.0)))))
    return np.asarray(table[np.minimum(k, 79)], dtype=np.float64)


COLLUDERS = 1  # hospitals that may subtract their own share of the noise of counts


@lru_cache(maxsize=64)
def counts_release(epsilon: float, delta: float, *, releases: int, change: float) -> SkellamRelease:
    """Find the least noise within (ε, δ) on so many releases that a unit changes by `change`."""
    mu = calibrate(
        lambda μ: [SkellamRelease(μ, change, change, releases)],
        epsilon,
        delta,
        low=1e-3,
        high=LARGEST_VARIANCE / 2,
        precision=1e-4,
    )
    return SkellamRelease(mu, change, change, releases)


def share_variance(release: SkellamRelease, parties: int, threshold: int) -> float:
    """Return the variance of one site's share of the noise.

    The shares of any `threshold` sites, without those of colluders, add up to the release's noise.
    Each is all of it where colluders and a coordinator that lies about dropouts open a single one.
    """
    masked = collusion_bound(parties, min(threshold, parties)).lying >= COLLUDERS
    return release.mu / (max(1, threshold - COLLUDERS) if masked else 1)
