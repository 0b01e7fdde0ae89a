"""DP mechanisms as records: distributed Skellam noise, and the central Gaussian beside it.

Nobody ever holds an un-noised sum: each party adds its share of the noise to its own integers
before they are masked and sealed. Noise comes from the operating system's randomness; a generator
is passed by tests only, for a seed that repeats noise removes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secure_fl.crypto.privacy.accounting import (
    Accountant,
    GaussianRelease,
    SkellamRelease,
    calibrate,
    epsilon,
)
from secure_fl.errors import BudgetError, CryptoError

Adjacency = Literal["add-remove", "replace-one"]
Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True, slots=True)
class SkellamNoise:
    """Skellam noise on a sum of integer vectors, in shares (arXiv 2110.04995).

    A party holding x in R^d, ‖x‖₂ <= S after clipping, contributes
    round(s·x) + Poisson(μᵢ/2) - Poisson(μᵢ/2) per coordinate. Skellam variables are closed under
    sums, so k honest shares have variance k·μᵢ. With n parties of which d may drop out and c
    collude (and subtract their own shares), μᵢ = μ/(n-d-c) guarantees μ to every honest party.

    Sensitivity of the integers: Δ₂ = s·S + √d/2 for rounding to nearest (√d for stochastic
    rounding), twice that when one site's data is replaced instead of removed;
    Δ₁ <= min(√d·Δ₂, Δ₂²), the second because integers satisfy |k| <= k².

    RDP(α) <= αΔ₂²/(2μ) + min(((2α-1)Δ₂² + 6Δ₁)/(4μ²), 3Δ₁/(2μ)).
    """

    mu: float  # μ: the guaranteed variance, in squared grid steps
    scale: float  # s: grid steps per unit
    clip: float  # S: L2 bound of one party's vector
    dimension: int  # d of the vector
    parties: int  # n
    dropouts: int  # how many may be missing from the sum
    colluders: int  # c
    adjacency: Adjacency = "add-remove"
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        sizes = (self.scale, self.clip, self.mu)
        if not all(0 < x < math.inf for x in sizes) or self.dimension < 1:
            raise BudgetError(
                "noise, scale, clip and dimension must be positive and finite",
                reason="no-guarantee",
            )
        if min(self.dropouts, self.colluders) < 0 or self._least_honest < 1:
            raise BudgetError(
                f"with {self.dropouts} dropouts and {self.colluders} colluders of {self.parties} "
                "parties nobody is left to add noise",
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
    def _least_honest(self) -> int:
        return self.parties - self.dropouts - self.colluders

    @property
    def share_variance(self) -> float:
        """The variance μᵢ = μ/(n-d-c) of one party's share."""
        return self.mu / self._least_honest

    @property
    def total_variance(self) -> float:
        """The variance when nobody drops out: more than μ, for the worst case is paid always."""
        return self.share_variance * self.parties

    @property
    def l2(self) -> float:
        """Δ₂ in grid steps."""
        per_axis = 0.5 if self.rounding == "nearest" else 1.0
        one = self.scale * self.clip + per_axis * math.sqrt(self.dimension)
        return one if self.adjacency == "add-remove" else 2 * one

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
        """What no share exceeds, but with probability below 2^-70 for a million values."""
        return self.scale * self.clip + 40 + 12 * math.sqrt(self.share_variance)

    def event(self, count: int = 1) -> SkellamRelease:
        """State what `count` exchanges spend."""
        return SkellamRelease(self.mu, self.l1, self.l2, count)

    def rdp(self, order: float) -> float:
        """Bound the Rényi divergence of one exchange."""
        return self.event().rdp(order)

    def epsilon(self, delta: float, exchanges: int = 1) -> float:
        """Compose `exchanges` such releases into ε."""
        return epsilon([self.event(exchanges)], delta)

    def check_survivors(self, survivors: int) -> None:
        """Raise BudgetError if too many dropped out: the sum would carry too little noise."""
        if survivors < self.parties - self.dropouts:
            raise BudgetError(
                f"{survivors} of {self.parties} parties are left, the noise was sized for "
                f"{self.dropouts} dropouts: this sum would hold less noise than promised",
                fix="do not open it; repeat the round, or size the noise for more dropouts",
                reason="too-many-dropouts",
            )

    def share(self, x: Floats, uniforms: Uniforms | None = None) -> Integers:
        """Clip, put on the grid and add this party's noise: what is masked and summed."""
        if x.shape != (self.dimension,):
            raise CryptoError(f"a vector of {x.shape}, the noise was sized for {self.dimension}")
        draw = uniforms or secure_uniforms()
        grid = to_grid(clip_norm(x, self.clip), self.scale, self.rounding, draw)
        return grid + skellam(self.share_variance, self.dimension, draw)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Central Gaussian noise N(0, σ²) on a vector of L2 sensitivity Δ₂: RDP(α) = αΔ₂²/(2σ²)."""

    sigma: float
    sensitivity: float

    def event(self, count: int = 1) -> GaussianRelease:
        """State what `count` releases spend."""
        return GaussianRelease(self.sigma / self.sensitivity, count)

    def rdp(self, order: float) -> float:
        """Give the Rényi divergence of one release."""
        return order * self.sensitivity**2 / (2 * self.sigma**2)

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Compose `releases` of them into ε."""
        return epsilon([self.event(releases)], delta)


def clip_norm(x: Floats, bound: float) -> Floats:
    """Shrink a vector to an L2 norm of at most `bound`; NaN and infinity are refused."""
    x = np.asarray(x, dtype=np.float64)
    norm = float(np.linalg.norm(x))
    if not math.isfinite(norm):
        raise CryptoError("a vector to be noised holds NaN or infinity", fix="check the training")
    # a hair below the bound, so that rounding of floats cannot lift it above
    return x if norm <= bound else x * (bound * (1 - 1e-12) / norm)


def to_grid(x: Floats, scale: float, rounding: Rounding, uniforms: Uniforms) -> Integers:
    """Round s·x to integers: each is off by 1/2 at most (nearest) or 1 (stochastic, unbiased)."""
    scaled = x * scale
    if rounding == "nearest":
        return np.rint(scaled).astype(np.int64)
    return np.floor(scaled + uniforms(x.size)).astype(np.int64)


def calibrated_skellam(
    template: SkellamNoise, target: float, delta: float, exchanges: int = 1
) -> SkellamNoise:
    """Give the template the least μ whose `exchanges` releases stay within ε at δ."""
    top = LARGEST_VARIANCE * template.mu / template.total_variance
    mu = calibrate(
        lambda μ: [replace(template, mu=μ).event(exchanges)], target, delta, low=1e-3, high=top
    )
    return replace(template, mu=mu)


def calibrated_gaussian(
    sensitivity: float,
    target: float,
    delta: float,
    releases: int = 1,
    accountant: Accountant = "auto",
) -> Gaussian:
    """Find the least central noise whose releases stay within ε at δ."""
    multiplier = calibrate(
        lambda z: [GaussianRelease(z, releases)],
        target,
        delta,
        accountant=accountant,
        precision=1e-4,
    )
    return Gaussian(multiplier * sensitivity, sensitivity)


def prediction_sensitivity(
    examples: int, classes: int, *, centred: bool = True, clip: float | None = None
) -> float:
    """Bound one hospital's L2 share in a sum of class probabilities over so many examples.

    √B, or √(B(1-1/C)) when 1/C is subtracted from each; S if the vector is clipped to S.
    """
    bound = math.sqrt(examples * (1 - 1 / classes if centred else 1))
    return bound if clip is None else min(bound, clip)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Uniforms = Callable[[int], Floats]  # n numbers in (0, 1)
SMALL_MEAN = 10.0
LARGEST_VARIANCE = 1e12


def secure_uniforms() -> Uniforms:
    """Make a source of uniforms with 53 bits each, keyed afresh by the operating system."""
    stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()

    def draw(n: int) -> Floats:
        words = np.frombuffer(stream.update(bytes(8 * n)), dtype=np.uint64) >> np.uint64(11)
        return (words.astype(np.float64) + 0.5) * 2.0**-53

    return draw


def skellam(variance: float, size: int, uniforms: Uniforms | None = None) -> Integers:
    """Poisson(variance/2) - Poisson(variance/2): integers of mean 0. Tests alone pass uniforms."""
    if not 0 <= variance <= LARGEST_VARIANCE:
        raise CryptoError(
            f"a Skellam variance of {variance:g} is out of range",
            fix=f"lower the scale so that the variance stays below {LARGEST_VARIANCE:g}",
        )
    draw = uniforms or secure_uniforms()
    return poisson(variance / 2, size, draw) - poisson(variance / 2, size, draw)


def poisson(mean: float, size: int, draw: Uniforms) -> Integers:
    """Draw independent Poisson samples."""
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
    whole = math.floor(mean)  # added as an integer, so that no bit of the proposal is lost
    u = u - 0.5
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + (mean - whole) + 0.43).astype(np.int64) + whole
    sure = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    test = ~sure & (k >= 0) & ((us >= 0.013) | (v <= us))
    weight = np.log(v[test] * inverse_alpha / (a / us[test] ** 2 + b))
    accepted = sure
    accepted[test] = weight <= _log_mass(k[test], mean)
    return k, accepted


def _log_mass(k: Integers, mean: float) -> Floats:
    """Loader's saddle point form of log(mean^k e^-mean / k!)."""
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
    table = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, 80.0)))))
    return np.asarray(table[np.minimum(k, 79)], dtype=np.float64)
