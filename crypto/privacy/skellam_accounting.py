"""Tight privacy of Skellam noise: an equivalent Gaussian, and exact composition of unit counts.

X is Skellam noise with variance μ and probabilities p, Φ and φ are the normal distribution and its
density. On integers x let u(x) = Φ⁻¹(P(x + X ≥ 1)). By symmetry, u(1 - x) = -u(x). Let
1/σ = u(1) - u(0) = 2u(1) = 2Φ⁻¹(½ + ½p(0)). Then σ² = μ - ⅓ + O(1/μ).

**Theorem.** Skellam noise of variance μ on integer vectors with L2 sensitivity Δ₂ is at least as
private as Gaussian noise of std σ with sensitivity Δ₂: exactly, in any dimension, also in adaptive
compositions and on Poisson samples of the records.

*Lemma.* u(x+1) - u(x) ≤ 1/σ for all x.

*Proof of the lemma.* A walk on 1-M, ..., M jumps to each neighbour at rate ½. Jumps over an end do
nothing. Let Φ(u(t, x)) be the mean of Φ(λ(walk(t) - ½)) for a walk from x. Walks from x and x+1
with equal jumps keep their order, so u increases strictly with x. With u(t, M+1) = u(t, M) at the
end, the walk gives ∂u(x)/∂t = [Φ(u(x+1)) + Φ(u(x-1)) - 2Φ(u(x))] / 2φ(u(x)).
Let e(x) = u(x+1) - 2u(x) + u(x-1). We show that e(x) ≤ 0 for x = 1, ..., M at all times.
It is true at t = 0, and e(M) < 0 always. Let e ≤ 0, and e(x) = 0 at some x < M. With
d = u(x+1) - u(x) = u(x) - u(x-1), we have u(x+2) ≤ u(x+1) + d and u(x-2) ≤ u(x-1) - d: from
e(x+1) ≤ 0, and from e(x-1) ≤ 0 or, at x = 1, from symmetry. So
2∂e(x)/∂t ≤ g(u(x+1)) - 2g(u(x)) + g(u(x-1)) with
g(u) = [Φ(u+d) + Φ(u-d) - 2Φ(u)] / φ(u) = -2∫₀ᵈ exp(-s²/2) sinh(us) ds.
g is odd, and strictly concave for u ≥ 0. If x ≥ 2, all three arguments are positive, so the right
side is negative. If x = 1, they are 3d/2, d/2 and -d/2, and g(3d/2) - 3g(d/2) is negative, too.
So e(x) falls where it is 0, and never becomes positive. Now M → ∞ and then λ → ∞ at t = μ: u(t, x)
tends to u(x), and e ≤ 0 remains. So the differences of u fall from the middle outwards. ∎

*Proof of the theorem.* Skellam probabilities are log-concave, so the best tests between x + X and
y + X are thresholds and mixtures of two thresholds (Neyman and Pearson). By the lemma, Φ⁻¹(power)
of a threshold is above Φ⁻¹(size) by |x - y|/σ at most, as for the best test between N(x, σ²) and
N(y, σ²). Power of the Gaussian test is concave in its size, so this is true for mixtures, too. By
Blackwell's theorem the Skellam pair is a post-processing of the Gaussian pair. Coordinates are
independent, so vectors are a post-processing of Gaussian vectors. Sampling mixes both pairs alike,
and composition keeps the order (Dong, Roth and Su, arXiv 1905.02383). ∎

**Unit counts.** If Δ₂² < 4, a record changes up to three cells by 1. The loss of each cell is
log p(k)/p(k+1) with probability p(k), and independent losses add up. This is exact, and smaller
than the Gaussian's where μ is small. A loss L between two grid points is split between them so that
the means of 1 and of exp(-L) remain. δ(ε) is the mean of max(0, 1 - exp(ε - L)), which is convex in
exp(-L), so the split never lowers it.
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
