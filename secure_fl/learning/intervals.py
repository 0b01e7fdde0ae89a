"""95 % intervals of metrics, from the counts that they follow from.

Proportions have Wilson's (JASA 1927), Pearson's correlation Fisher's z, a mean squared error the
one of normal residuals. All others have the delta method's: a cell's count varies like a Poisson
variable's, which for rates is the same as counts of a fixed number of records do (as DeLong's for
AUROC); sums of what is measured of a record, by the sums of its products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.counts import Counts, square

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
STEP, FINE = 1e-5, 1e-8  # of cells; of sums, of which a spread may be a small difference

Interval: TypeAlias = tuple[float, float]
Rates: TypeAlias = Callable[[Counts], Mapping[str, float]]
Slopes: TypeAlias = dict[str, dict[str, NDArray[np.float64]]]  # metric -> name -> slope


def wilson(hits: float, of: float) -> Interval | None:
    """Of a proportion; None where there is nothing to divide by."""
    if of <= 0:
        return None
    share, more = hits / of, Z**2 / of
    middle = share + more / 2
    half = Z * math.sqrt(max(share * (1 - share), 0.0) / of + more / (4 * of))
    low, high = (middle - half) / (1 + more), (middle + half) / (1 + more)
    return max(0.0, float(low)), min(1.0, float(high))


def fisher(r: float, records: float) -> Interval | None:
    """Of Pearson's correlation."""
    if records <= 3 or abs(r) >= 1:
        return None
    z, half = math.atanh(r), Z / math.sqrt(records - 3)
    return math.tanh(z - half), math.tanh(z + half)


def of_squares(mean: float, records: float) -> Interval | None:
    """Of a mean of squared residuals that are normal."""
    from scipy.stats import chi2

    if records < 1:
        return None
    low, high = chi2.ppf([(1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2], records)
    return float(mean * records / low), float(mean * records / high)


def slopes(rates: Rates, counts: Counts, wanted: Collection[str]) -> Slopes:
    """How each metric moves with each count that is not zero."""
    found: Slopes = {name: {} for name in wanted}
    for at, vector in counts.items():
        for name in wanted:
            found[name][at] = np.zeros(vector.size)
        for place in np.flatnonzero(vector).tolist():
            size = abs(float(vector[place]))
            step = FINE * size if vector.dtype.kind == "f" else STEP * max(1.0, size)
            up, down = (rates({**counts, at: _moved(vector, place, s)}) for s in (step, -step))
            for name in wanted:
                if name in up:
                    found[name][at][place] = (up[name] - down[name]) / (2 * step)
    return found


def delta(
    rates: Rates,
    counts: Counts,
    names: Collection[str],
    squares: str = "",
    of: str = "",
    *,
    within: Interval = (0.0, 1.0),
) -> dict[str, Interval]:
    """Of these metrics; `squares`: what holds the products of the sums `of`."""
    values = rates(counts)
    taking = {name: vector for name, vector in counts.items() if name != squares}
    found: dict[str, Interval] = {}
    for name, parts in slopes(rates, taking, [one for one in names if one in values]).items():
        cells = [at for at, vector in taking.items() if vector.dtype.kind != "f"]
        variance = sum(float(taking[at] @ parts[at] ** 2) for at in cells)
        if of:
            variance += float(parts[of] @ square(counts[squares]) @ parts[of])
        half = Z * math.sqrt(max(variance, 0.0))
        found[name] = max(within[0], values[name] - half), min(within[1], values[name] + half)
    return found


def _moved(vector: NDArray[np.float64], place: int, step: float) -> NDArray[np.float64]:
    moved = vector.astype(float)
    moved[place] += step
    return moved
