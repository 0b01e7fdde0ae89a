"""Kaplan-Meier curves and the log-rank test from counts: events and withdrawals at each time.

Kaplan, Meier, JASA 53, 1958; Mantel, Cancer Chemother. Rep. 50, 1966. Where times were merged, who
left counts for half of the step, as in life tables; without merged times both are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """One group's survival, after each time at which something happened to anybody."""

    times: Floats
    at_risk: Integers
    events: Integers
    survival: Floats

    @property
    def median(self) -> float | None:
        """The first time at which at most half survive."""
        below = self.times[self.survival <= 0.5]
        return float(below[0]) if below.size else None


class Test(NamedTuple):
    """Whether groups differ."""

    statistic: float
    degrees: int
    p: float


def at_risk(events: Integers, left: Integers) -> Integers:
    """How many are watched just before each time; the last axis is time."""
    gone = events + left
    return gone[..., ::-1].cumsum(-1)[..., ::-1]


def kaplan_meier(
    times: Floats, events: Integers, left: Integers, merged: NDArray[np.bool_]
) -> Curve:
    """S(t) = ∏ (1 - d/n) over times up to t; n - c/2 in the place of n in merged steps."""
    n = at_risk(events, left)
    exposed = n - np.where(merged, left / 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(n > 0, 1 - events / exposed, 1.0)
    return Curve(times, n, events, np.cumprod(steps.astype(float)))


def log_rank(events: Integers, left: Integers) -> Test | None:
    """Compare groups (rows) over times (columns): Z'V⁻¹Z is χ² with one degree less than groups."""
    from scipy.stats import chi2

    n = at_risk(events, left).astype(float)
    d = events.astype(float)
    n, d = n[n.sum(1) > 0], d[n.sum(1) > 0]
    happened = d.sum(0) > 0
    n, d = n[:, happened], d[:, happened]
    groups, all_n, all_d = len(n), n.sum(0), d.sum(0)
    if groups < 2 or not happened.any():
        return None
    Z = (d - n * all_d / all_n).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(all_n > 1, all_d * (all_n - all_d) / (all_n - 1), 0.0) / all_n**2
    V = np.diag((factor * all_n * n).sum(1)) - (factor * n) @ n.T
    Z, V = Z[:-1], V[:-1, :-1]
    if np.linalg.matrix_rank(V) < groups - 1:
        return None
    statistic = float(Z @ np.linalg.solve(V, Z))
    return Test(statistic, groups - 1, float(chi2.sf(statistic, groups - 1)))
