"""What differences of two methods tell: their bounds, and the verdict.

The same seed gives both methods the same records. Of n seeds the mean difference d with its
standard deviation s has the one-sided 95 % bounds d ± t·s/√n, t the 95 % quantile of Student's
distribution with n - 1 degrees of freedom. A claim "above by m" holds if the lower bound is above
m, and does not hold if the upper one is below m. "Above" that is neither, with both bounds within
two points of none, is decided as well: the two are level (two one-sided tests of equivalence).
Else it cannot be told from these runs, nor with one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal[
    "holds", "level", "does not hold", "cannot be told", "no head-room", "not run"
]

CONFIDENCE = 0.95
LEVEL = 2.0  # points, or hundredths of another figure: a smaller difference is none to us


def told(paired: Sequence[float], by: float, level: float = 0.0) -> tuple[Verdict, str]:
    """Judge differences, one for each seed, and show them; below `level` they are none."""
    if not paired:
        return "not run", "no seed in common"
    mean = fmean(paired)
    if len(paired) == 1:
        return "cannot be told", f"{mean:+.1f}, one seed"
    half = half_width(stdev(paired), len(paired))
    shown = f"{mean:+.1f}, from {mean - half:+.1f} to {mean + half:+.1f}, {len(paired)} seeds"
    if mean - half > by:
        return "holds", shown
    if mean + half < by:
        return "does not hold", shown
    return ("level" if abs(mean) + half < level else "cannot be told"), shown


def half_width(sd: float, seeds: int) -> float:
    """How far the bounds lie from the mean of so many differences with this deviation."""
    from scipy.stats import t

    return float(t.ppf(CONFIDENCE, seeds - 1)) * sd / float(seeds**0.5)
