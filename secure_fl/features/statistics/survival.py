"""Survival from counts on a time grid: Kaplan-Meier curves and the log-rank test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.features.statistics.partitions import Flags, Integers

Floats = NDArray[np.float64]


class SurvivalCurve(NamedTuple):
    """One group's survival after each step of the grid."""

    times: Floats
    at_risk: Integers
    events: Integers
    survival: Floats

    @property
    def median(self) -> float | None:
        """The first time at which at most half survive."""
        below = self.times[self.survival <= 0.5]
        return float(below[0]) if below.size else None


class LogRankTest(NamedTuple):
    """Result of a test for a difference between groups."""

    statistic: float
    degrees: int
    p: float


def at_risk(events: Integers, left: Integers) -> Integers:
    """Count the patients under observation at each time; the last axis is time."""
    ended = events + left
    return ended[..., ::-1].cumsum(-1)[..., ::-1]


def kaplan_meier(times: Floats, events: Integers, left: Integers, merged: Flags) -> SurvivalCurve:
    """Compute S(t) = ∏ (1 - d/n) over times up to t; in merged steps n - c/2 replaces n."""
    n = at_risk(events, left)
    exposed = n - np.where(merged, left / 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(n > 0, 1 - events / exposed, 1.0)
    return SurvivalCurve(times, n, events, np.cumprod(steps.astype(float)))


def log_rank(events: Integers, left: Integers) -> LogRankTest | None:
    """Compare groups (rows) over times (columns): Z'V⁻¹Z is χ² with one degree less than groups."""
    from scipy.special import chdtrc  # scipy.stats takes a second to import

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
    return LogRankTest(statistic, groups - 1, float(chdtrc(groups - 1, statistic)))
