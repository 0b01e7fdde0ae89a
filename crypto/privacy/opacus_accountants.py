"""Opacus' accountants of sampled Gaussian noise: Rényi DP (RDP) and PRV.

RDP uses Opacus' formulas with all terms of an order in one array. Opacus sums the same terms one at
a time in Python, which takes a second for each noise multiplier, and a search for the least noise
asks for about fifty of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Steps = Sequence[tuple[float, float, int]]  # (noise multiplier, sample rate, steps), as in Opacus
NEGLIGIBLE = -30.0  # Opacus ends a series at a term whose log is below
MOST_TERMS = 1 << 22


@cache
def orders() -> tuple[float, ...]:
    """Return Opacus' own Rényi orders, and larger ones for small ε (which is limited without)."""
    larger = (*range(64, 129, 8), 160, 192, 256, 384, 512, 768, 1000)
    return tuple(map(float, (*_own_orders(), *larger)))


@cache
def _own_orders() -> tuple[float, ...]:
    from opacus.accountants import RDPAccountant

    return tuple(RDPAccountant.DEFAULT_ALPHAS)


def rdp_epsilon(steps: Steps, delta: float, *, wide: bool = True) -> float:
    """Compose steps by Rényi DP, at all `orders()` or only at Opacus' own."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    used = len(orders() if wide else _own_orders())
    total = np.zeros(used)
    for σ, q, count in steps:
        total += count * _curve(σ, q)[:used]
    if not np.isfinite(total).any():
        return math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an extreme order is still a valid bound
        value, _ = get_privacy_spent(orders=list(orders()[:used]), rdp=total.tolist(), delta=delta)
    return max(0.0, float(value))


@lru_cache(maxsize=256)  # parties of one size in one process have equal queries
def prv_epsilon(steps: tuple[tuple[float, float, int], ...], delta: float) -> float | None:
    """Compose steps numerically; None after a numerical failure."""
    accountant = _prv_accountant()()
    accountant.history = list(steps)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # log(1 - q) at q = 1 is -inf, as it should be
        try:
            value = float(accountant.get_epsilon(delta))
        except (ValueError, RuntimeError, ArithmeticError):
            return None
    return value if 0 <= value < math.inf else None


@cache
def _prv_accountant() -> Any:
    """Return Opacus' PRV accountant, with the RDP of this module for the size of its grid."""
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis.prv import Domain

    class Accountant(PRVAccountant):  # type: ignore[misc]  # Opacus has no types
        def _get_domain(
            self, prvs: Any, num_self_compositions: Any, eps_error: float, delta_error: float
        ) -> Any:
            """Follow remark 5.6 of arXiv 2106.02848, as Opacus does in `_get_domain`."""
            total = sum(num_self_compositions)
            single = delta_error / (8 * total)
            most = max(
                rdp_epsilon(self.history, delta_error / 4, wide=False),
                *(rdp_epsilon([(σ, q, 1)], single, wide=False) for σ, q, _ in self.history),
                eps_error,
            )
            mesh = eps_error / np.sqrt(total * np.log(12 / delta_error) / 2)
            return Domain.create_aligned(-most - 3, most + 3, mesh)

    return Accountant


@lru_cache(maxsize=1024)
def _curve(σ: float, q: float) -> Array:
    """Return the Rényi DP of one step at each order; ∞ where an order gives no bound."""
    found = np.array([_order(σ, q, α) for α in orders()])
    found.flags.writeable = False
    return found


def _order(σ: float, q: float, α: float) -> float:
    if q == 1:
        return α / (2 * σ**2)
    with np.errstate(all="ignore"):
        moment = _whole(σ, q, int(α)) if α.is_integer() else _fractional(σ, q, α)
    return max(0.0, moment) / (α - 1) if math.isfinite(moment) else math.inf


def _whole(σ: float, q: float, α: int) -> float:
    """Return log(A_α) of a whole order: section 3.3 of arXiv 1908.10530."""
    i = np.arange(α + 1)
    sizes, signs = _binomials(α, α + 1)
    terms = sizes + i * math.log(q) + (α - i) * math.log(1 - q) + (i * i - i) / (2 * σ**2)
    return _log_sum(terms, signs)


def _fractional(σ: float, q: float, α: float) -> float:
    """Return log(A_α) of another order, a sum of two series (same section)."""
    terms = 64
    while terms <= MOST_TERMS:
        low, high, signs = _series(σ, q, α, terms)
        small = np.maximum(low, high) < NEGLIGIBLE
        if small.any():
            end = int(small.argmax()) + 1
            return float(
                np.logaddexp(_log_sum(low[:end], signs[:end]), _log_sum(high[:end], signs[:end]))
            )
        terms *= 4
    return math.inf


def _series(σ: float, q: float, α: float, terms: int) -> tuple[Array, Array, Array]:
    """Return logs of the first terms of both series, and the signs that they have in common."""
    from scipy.special import log_ndtr

    i = np.arange(terms, dtype=np.float64)
    j = α - i
    z = σ**2 * math.log(1 / q - 1) + 0.5
    size, signs = _binomials(α, terms)
    low = size + i * math.log(q) + j * math.log(1 - q) + (i * i - i) / (2 * σ**2)
    high = size + j * math.log(q) + i * math.log(1 - q) + (j * j - j) / (2 * σ**2)
    return low + log_ndtr((z - i) / σ), high + log_ndtr((j - z) / σ), signs


@cache
def _binomials(α: float, terms: int) -> tuple[Array, Array]:
    """Return the logs and signs of the binomial coefficients of α."""
    from scipy.special import binom

    values = binom(α, np.arange(terms, dtype=np.float64))
    return np.log(np.abs(values)), np.sign(values)


def _log_sum(logs: Array, signs: Array) -> float:
    """Return the log of a sum of signed numbers that are given by their logs."""
    largest = float(logs.max())
    if not math.isfinite(largest):
        return math.inf
    total = float((signs * np.exp(logs - largest)).sum())
    return largest + math.log(total) if total > 0 else math.inf
