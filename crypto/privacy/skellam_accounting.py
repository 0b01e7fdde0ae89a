"""Tight privacy of Skellam noise: an equivalent Gaussian, and exact composition of unit counts.

docs/shared-noise.md proves both. Noise of variance μ, with probabilities p, is at least as private
as Gaussian noise of std σ, with 1/σ = 2Φ⁻¹(½ + ½p(0)) and σ² = μ - ⅓ + O(1/μ). If a record changes
up to three cells by 1, the loss of each cell is log p(k)/p(k+1) with probability p(k), and losses
add up: this is exact, and smaller than the Gaussian's where μ is small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
GRID = 0.05  # distance of grid points, in standard deviations of one cell's loss
LARGEST_GRID = 2**20
LARGEST_MEAN = 1e6  # above this μ, the equivalent Gaussian is exact to 0.1 %


def equivalent_std(mu: float) -> float:
    """Return σ of the theorem: Gaussian noise that is no more private than Skellam noise."""
    from scipy.special import erfcinv, erfinv, i0e

    # at tiny μ, 1 - p(0) would be lost to rounding; μ/2 is below it
    score = erfinv(i0e(mu)) if mu > 1e-4 else erfcinv(mu / 2)
    return float((1 - 1e-12) / (2 * math.sqrt(2) * score))


def counts_epsilon(cells: Mapping[float, int], delta: float) -> float:
    """Compose cells that a record changes by 1: so many of each μ. ∞ if there are too many."""
    if not cells or min(cells) < 1e-6 or max(cells) > LARGEST_MEAN:
        return math.inf
    step = min(0.01, GRID / math.sqrt(max(cells)))
    losses = {mu: _cell_loss(mu, step) for mu in cells}
    size = sum(n * (losses[mu][1].size - 1) for mu, n in cells.items()) + 1
    if size > LARGEST_GRID:
        return math.inf
    from scipy.fft import irfft, next_fast_len, rfft

    padded = next_fast_len(size, real=True)
    spectrum = np.ones(padded // 2 + 1, complex)
    for mu, n in cells.items():
        spectrum *= rfft(losses[mu][1], padded) ** n
    mass = np.maximum(irfft(spectrum, padded)[:size], 0.0)
    first = sum(n * losses[mu][0] for mu, n in cells.items())
    # rounding of the transforms, and the masses that a cell's range leaves out
    rounding = 1e-15 * sum(cells.values()) * math.sqrt(padded)
    return _epsilon_of(mass, first, step, delta - rounding)


def _cell_loss(mu: float, step: float) -> tuple[int, Floats]:
    """Return the losses of one cell on the grid: the first point's number, and the masses."""
    from scipy.special import ive

    k = np.arange(math.ceil(12 * math.sqrt(mu)) + 40)
    p = ive(k, mu)
    p = p[p > 1e-30]
    p = np.concatenate((p[:0:-1], p))
    loss = np.log(p[:-1] / p[1:]) / step
    at = np.floor(loss).astype(np.int64)
    upper = p[:-1] * np.expm1((at - loss) * step) / np.expm1(-step)
    mass = np.zeros(at.max() - at.min() + 2)
    np.add.at(mass, at - at.min(), p[:-1] - upper)
    np.add.at(mass, at - at.min() + 1, upper)
    return int(at.min()), mass


def _epsilon_of(mass: Floats, first: int, step: float, delta: float) -> float:
    """Return the least ε of a loss distribution at δ."""
    if delta <= 0:
        return math.inf
    loss = (first + np.arange(mass.size)) * step
    mass, loss = mass[loss > 0], loss[loss > 0]
    above = np.cumsum(mass[::-1])[::-1]  # under one distribution, and under the other
    other = np.cumsum((mass * np.exp(-loss))[::-1])[::-1]
    with np.errstate(over="ignore", invalid="ignore"):
        within = np.flatnonzero(above - np.exp(loss) * other <= delta)
    if not within.size:  # losses too large for floats
        return math.inf
    ratio = (above[within[0]] - delta) / other[within[0]]
    return max(0.0, math.log(ratio)) * (1 + 1e-9) if ratio > 0 else 0.0
