"""Metrics that follow from counts, of one hospital or summed over all, with 95 % intervals.

A metric without a value (a division by zero) is 0.0. Metrics of scores follow from bins: they equal
scikit-learn's for scores that are equal inside a bin, and `separation_bounds` gives the bounds of
the metric of the scores themselves.

Intervals: proportions have Wilson's (JASA 1927), Pearson's correlation Fisher's z, a mean squared
error that of normal residuals. All others have the delta method's: a cell's count varies like a
Poisson variable, which for rates is the same as for a fixed number of records (as DeLong's for
AUROC). Sums of measured values vary by the sums of their products.

scipy is imported on use, because it would double the start-up time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.metric_counts import LOSS, Counts, square

Array: TypeAlias = NDArray[Any]
Interval: TypeAlias = tuple[float, float]
Rates: TypeAlias = Callable[[Counts], Mapping[str, float]]
Slopes: TypeAlias = dict[str, dict[str, NDArray[np.float64]]]  # metric -> name -> slope

BINS = 64  # of a class's log-odds; the outer ones are unbounded
REACH = float(np.arcsinh(4 * 12))
CONFIDENCE_BINS = 10  # of the probability of the likeliest class
GRID = 24  # bins of scores and of predictions, for ranks
COVERAGE = 0.95  # of an interval
Z = NormalDist().inv_cdf((1 + COVERAGE) / 2)
NO_WIDTH = 1e-9  # the numerical error of the delta method: such an interval claims certainty
STEP, FINE = 1e-5, 1e-8  # of cells; of sums, where a variance may be a small difference


def bin_of(values: Array, reach: float, bins: int) -> Array:
    """The bin of each value between -reach and reach."""
    at = np.floor((values + reach) * (bins / (2 * reach)))
    return np.clip(at, 0, bins - 1).astype(np.int64)


def odds_bin(odds: Array) -> Array:
    """The bin of each log-odds; bins are narrow near 0, where barely trained models predict."""
    return bin_of(np.arcsinh(4 * odds), REACH, BINS)


def middle_odds(bins: int) -> Array:
    """The log-odds in the middle of each of this many bins: the inverse of `odds_bin`."""
    middle: Array = (np.arange(bins) + 0.5) * (2 * REACH / bins) - REACH
    return np.sinh(middle) / 4


def loss_rate(counts: Mapping[str, Array]) -> dict[str, float]:
    """The mean loss of the records."""
    records, total = counts[LOSS]
    return {"loss": float(total / records)}


def class_rates(matrix: Array, positive: int) -> dict[str, float]:
    """Accuracy (also micro-F1), F1 and MCC (Gorodkin's, for any classes) of a confusion matrix."""
    return outcome_rates(outcomes_of(matrix), positive)


def outcomes_of(matrix: Array) -> Array:
    """[hits, false alarms, misses] of each class, of a confusion matrix."""
    hits = np.diag(matrix)
    return np.stack([hits, matrix.sum(0) - hits, matrix.sum(1) - hits], axis=1)


def outcome_rates(outcomes: Array, positive: int) -> dict[str, float]:
    """The metrics of `class_rates`, of [hits, false alarms, misses] of each class."""
    hits, false, missed = outcomes.astype(float).T
    predicted, actual = hits + false, hits + missed
    total, occurring = actual.sum(), predicted + actual > 0
    f1 = _ratio(2 * hits, predicted + actual)
    spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
    return {
        "accuracy": float(_ratio(hits.sum(), total)),
        "macro_f1": float(f1[occurring].mean()) if occurring.any() else 0.0,
        **span_rates(outcomes[positive]),
        "mcc": float(_ratio(hits.sum() * total - predicted @ actual, np.sqrt(max(spread, 0.0)))),
    }


def span_rates(outcomes: Array) -> dict[str, float]:
    """Precision, recall and F1 of [hits, false alarms, misses]."""
    hits, false, missed = outcomes
    return {
        "precision": float(_ratio(hits, hits + false)),
        "recall": float(_ratio(hits, hits + missed)),
        "f1": float(_ratio(2 * hits, 2 * hits + false + missed)),
    }


def score_rates(moments: Array) -> dict[str, float]:
    """Pearson's correlation and the mean squared error, of [n, Σx, Σy, Σx², Σy², Σxy]."""
    n, x, y, xx, yy, xy = moments.astype(float)
    spread = np.sqrt(max(n * xx - x * x, 0.0) * max(n * yy - y * y, 0.0))
    rounding = 1e-9 * np.sqrt(n * xx * n * yy)  # float32's, of a constant column
    r = float(np.clip((n * xy - x * y) / spread, -1, 1)) if spread > rounding else 0.0
    return {"pearson": r, "mse": float(_ratio(xx - 2 * xy + yy, n))}


def moments(x: Array, y: Array) -> Array:
    """[1, x, y, x², y², xy] of each record."""
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)


def spearman(gold: Array, predicted: Array) -> float:
    """The correlation of ranks; ties share their mean rank."""
    if len(gold) < 2 or not np.isfinite(predicted).all():
        return 0.0
    from scipy.stats import rankdata

    return score_rates(moments(rankdata(gold), rankdata(predicted)).sum(0))["pearson"]


def pearson_slope(moments: Array) -> Array:
    """The derivative of Pearson's correlation by each of these moments; 0 where it is 0.

    In closed form: for nearly constant predictions, quotients of differences would be noise.
    """
    n, x, y, xx, yy, xy = moments.astype(float)
    r, a, b = score_rates(moments)["pearson"], n * xx - x * x, n * yy - y * y
    if not r:
        return np.zeros(6)
    s = np.sqrt(a * b)
    of_n = xy / s - r / 2 * (xx / a + yy / b)
    return np.array(
        [of_n, r * x / a - y / s, r * y / b - x / s, -r * n / (2 * a), -r * n / (2 * b), n / s]
    )


def rank_rate(cells: Array) -> dict[str, float]:
    """Spearman's correlation, of the numbers of records by bins of score and prediction."""
    table = cells.reshape(GRID, GRID).astype(float)
    x, y = mean_ranks(table.sum(1)), mean_ranks(table.sum(0))
    covariance, x_spread, y_spread = x @ table @ y, table.sum(1) @ x**2, table.sum(0) @ y**2
    spread = float(np.sqrt(x_spread * y_spread))
    return {"spearman": float(covariance / spread) if spread > 0 else 0.0}


def rank_bounds(cells: Array) -> Interval:
    """The least and greatest possible Spearman's correlation of the scores themselves.

    Mean ranks of bins are the projection of the ranks, so the norm of their difference is known.
    """
    table = cells.reshape(GRID, GRID).astype(float)
    sides = [table.sum(axis) for axis in (1, 0)]
    kept = [float(np.sqrt(side @ mean_ranks(side) ** 2)) for side in sides]
    lost = [float(np.sqrt(((side**3 - side) / 12).sum())) for side in sides]
    covariance = float(mean_ranks(sides[0]) @ table @ mean_ranks(sides[1]))
    slack = lost[0] * kept[1] + kept[0] * lost[1] + lost[0] * lost[1]
    if not kept[0] * kept[1]:
        return -1.0, 1.0
    bounds = []
    for value in (covariance - slack, covariance + slack):
        most = np.hypot(kept[0], lost[0]) * np.hypot(kept[1], lost[1])
        norm = kept[0] * kept[1] if (value < 0) == (value < covariance) else most
        bounds.append(float(np.clip(value / norm, -1, 1)))
    return bounds[0], bounds[1]


def mean_ranks(counts: Array) -> Array:
    """The mean rank of each bin's records, minus the mean of all."""
    centred: Array = np.cumsum(counts) - counts / 2 - counts.sum() / 2
    return centred


def separation(cells: Array) -> dict[str, float]:
    """AUROC and average precision, of a class's and the other records by bins of its log-odds."""
    positives, negatives = cells.reshape(2, -1)[:, ::-1].astype(float)  # from the highest odds
    true, false = np.cumsum(positives), np.cumsum(negatives)
    below = false[-1] - false
    auroc = positives @ (below + negatives / 2)
    precision = _ratio(true, true + false)
    return {
        "auroc": float(_ratio(auroc, true[-1] * false[-1])),
        "average_precision": float(_ratio(positives @ precision, true[-1])),
    }


def separation_bounds(cells: Array) -> dict[str, Interval]:
    """The bounds of `separation` over all orders of the records inside their bins."""
    positives, negatives = cells.reshape(2, -1)
    nothing = np.zeros_like(positives)  # each bin becomes two
    worst = separation(
        np.concatenate([_alternate(positives, nothing), _alternate(nothing, negatives)])
    )
    best = separation(
        np.concatenate([_alternate(nothing, positives), _alternate(negatives, nothing)])
    )
    worst["average_precision"] = _least_average_precision(
        positives[::-1].astype(float), negatives[::-1].astype(float)
    )
    return {name: (worst[name], best[name]) for name in best}


def _least_average_precision(positives: Array, negatives: Array) -> float:
    """Average precision where each bin's positives follow its negatives one by one.

    Σ (s+i)/(s+i+b) over a bin's i is a difference of digammas.
    """
    from scipy.special import digamma

    before, false = np.cumsum(positives) - positives, np.cumsum(negatives)
    lost = false * (digamma(before + positives + false + 1) - digamma(before + false + 1))
    return float(_ratio((positives - lost).sum(), positives.sum()))


def calibration(outcomes: Array, confidence: Array) -> dict[str, float]:
    """The mean distance of confidence and accuracy over bins of confidence (ECE, Guo et al.)."""
    hits, wrong = outcomes.reshape(2, -1).astype(float)
    distance = np.abs(hits - confidence).sum()
    return {"calibration_error": float(_ratio(distance, (hits + wrong).sum()))}


def auc(clicks: Array, scores: Array) -> float:
    """The chance that a clicked candidate outranks one that was not; ties count half."""
    from scipy.stats import rankdata

    clicked = np.asarray(clicks, bool)
    hits, misses = int(clicked.sum()), int((~clicked).sum())
    if hits == 0 or misses == 0:
        return 0.0
    ranks = float(rankdata(scores)[clicked].sum())
    return (ranks - hits * (hits + 1) / 2) / (hits * misses)


def mrr(clicks: Array, scores: Array) -> float:
    """The mean of 1/rank over one impression's clicked candidates, as MIND defines it."""
    ordered = _ranked(clicks, scores)
    hits = ordered.sum()
    return float((ordered / np.arange(1, len(ordered) + 1)).sum() / hits) if hits else 0.0


def ndcg(clicks: Array, scores: Array, k: int) -> float:
    """The discounted gain of the first k candidates over that of the best order."""
    ordered = _ranked(clicks, scores)
    discounts = 1 / np.log2(np.arange(2, min(k, len(ordered)) + 2))
    best = float(np.sort(ordered)[::-1][:k] @ discounts)
    return float(ordered[:k] @ discounts) / best if best else 0.0


def _ranked(clicks: Array, scores: Array) -> NDArray[np.float64]:
    """Clicks from the highest score down; clicks come last among equal scores."""
    clicked = np.asarray(clicks, np.float64)
    return clicked[np.lexsort((clicked, -np.asarray(scores, np.float64)))]


def wilson(hits: float, of: float) -> Interval | None:
    """The interval of a proportion; None where there is nothing to divide by."""
    if of <= 0:
        return None
    share, more = hits / of, Z**2 / of
    middle = share + more / 2
    half = Z * math.sqrt(max(share * (1 - share), 0.0) / of + more / (4 * of))
    low, high = (middle - half) / (1 + more), (middle + half) / (1 + more)
    return max(0.0, float(low)), min(1.0, float(high))


def wilson_f1(hits: float, false: float, missed: float) -> Interval | None:
    """The interval of F1, a function of hits / (hits + false + missed), whose interval is Wilson's.

    For all hits or none, where the delta method's has no width.
    """
    found = wilson(hits, hits + false + missed)
    return None if found is None else (2 * found[0] / (1 + found[0]), 2 * found[1] / (1 + found[1]))


def fisher(r: float, records: float) -> Interval | None:
    """The interval of Pearson's correlation."""
    if records <= 3 or abs(r) >= 1:
        return None
    z, half = math.atanh(r), Z / math.sqrt(records - 3)
    return math.tanh(z - half), math.tanh(z + half)


def of_squares(mean: float, records: float) -> Interval | None:
    """The interval of a mean of squared normal residuals."""
    from scipy.stats import chi2

    if records < 1:
        return None
    low, high = chi2.ppf([(1 + COVERAGE) / 2, (1 - COVERAGE) / 2], records)
    return float(mean * records / low), float(mean * records / high)


def slopes(rates: Rates, counts: Counts, wanted: Collection[str]) -> Slopes:
    """The derivative of each metric by each count that is not zero."""
    derivatives: Slopes = {name: {} for name in wanted}
    for at, vector in counts.items():
        for name in wanted:
            derivatives[name][at] = np.zeros(vector.size)
        for place in np.flatnonzero(vector).tolist():
            size = abs(float(vector[place]))
            step = FINE * size if vector.dtype.kind == "f" else STEP * max(1.0, size)
            up, down = (rates({**counts, at: moved(vector, place, s)}) for s in (step, -step))
            for name in wanted:
                if name in up:
                    derivatives[name][at][place] = (up[name] - down[name]) / (2 * step)
    return derivatives


def delta(
    rates: Rates,
    counts: Counts,
    names: Collection[str],
    squares: str = "",
    of: str = "",
    *,
    within: Interval = (0.0, 1.0),
) -> dict[str, Interval]:
    """The intervals of these metrics by the delta method; none without width, as of a score of 1.

    `squares`: the name of the products of the sums `of`.
    """
    values = rates(counts)
    varied = {name: vector for name, vector in counts.items() if name != squares}
    intervals: dict[str, Interval] = {}
    for name, parts in slopes(rates, varied, [name for name in names if name in values]).items():
        cells = [at for at, vector in varied.items() if vector.dtype.kind != "f"]
        variance = sum(float(varied[at] @ parts[at] ** 2) for at in cells)
        if of:
            variance += float(parts[of] @ square(counts[squares]) @ parts[of])
        half = Z * math.sqrt(max(variance, 0.0))
        if half > NO_WIDTH:
            low, high = values[name] - half, values[name] + half
            intervals[name] = max(within[0], low), min(within[1], high)
    return intervals


def moved(vector: Array, place: int, step: float) -> NDArray[np.float64]:
    """A copy of the vector with a step at one place."""
    copy = vector.astype(float)
    copy[place] += step
    return copy


def _alternate(first: Array, second: Array) -> Array:
    return np.stack([first, second], axis=1).ravel()


def _ratio(part: Any, total: Any) -> NDArray[np.float64]:
    """The quotient; 0 where there is nothing to divide by."""
    total = np.asarray(total, float)
    quotient: NDArray[np.float64] = np.zeros_like(total)
    np.divide(part, total, out=quotient, where=total > 0)
    return quotient
