"""Metrics of class counts that carry noise, with intervals that include it.

An evaluation may add noise to its counts (`features.evaluation.noise`). They then contain:
- `NOISE`: the variance of the noise on each cell,
- `TRULY` + class: its row of the confusion matrix, or with many classes
  `ROW` + class: [hits, false alarms, misses],
- `SCORED` + class, if it has scores: its records in 16 bins of log-odds, then all others'. Exact
  counts have 64 bins; noise adds up over bins.

A cell may be below zero. A metric is omitted if its denominator is below `MIN_SIGNAL` standard
deviations of the denominator's noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from secure_fl.learning.metric_counts import ROW, TRULY, Counts
from secure_fl.learning.metrics import (
    BINS,
    Array,
    Interval,
    Z,
    middle_odds,
    moved,
    outcome_rates,
    outcomes_of,
    separation,
)

NOISE = "noise"
ODDS_BINS = 16
MIN_SIGNAL = 4.0


def coarsen(cells: Array) -> Array:
    """Reduce 64 bins to 16: for records of the class, and for all others."""
    halves: Array = cells.reshape(2, ODDS_BINS, BINS // ODDS_BINS).sum(axis=2)
    return halves.ravel()


def outcome_table(counts: Mapping[str, Any], classes: tuple[str, ...]) -> Array:
    """Return a row [hits, false alarms, misses] for each class."""
    has_matrix = all(TRULY + name in counts for name in classes)
    rows = np.stack([np.asarray(counts[(TRULY if has_matrix else ROW) + name]) for name in classes])
    return outcomes_of(rows) if has_matrix else rows


def records_of(counts: Mapping[str, Any], classes: tuple[str, ...]) -> float:
    """Estimate the number of records: all hits and misses."""
    return float(outcome_table(counts, classes)[:, [0, 2]].sum())


def noised_rates(
    counts: Counts, classes: tuple[str, ...], scored: int, odds_name: str | None = None
) -> dict[str, float]:
    """Compute the metrics that the noise leaves.

    `scored`: the index of the class of F1 and AUROC. `odds_name`: the name of its log-odds.
    """
    rates = _unclipped_rates(counts, classes, scored, odds_name)
    return {name: _clipped(name, value) for name, value in rates.items()}


def noised_intervals(
    counts: Counts, classes: tuple[str, ...], scored: int, odds_name: str | None = None
) -> dict[str, Interval]:
    """Compute 95 % intervals by the delta method, from the noise and the choice of records.

    Cells count as independent Poisson variables plus noise. Slopes are central differences.
    """

    def rates_of(given: Counts) -> Mapping[str, float]:
        return _unclipped_rates(given, classes, scored, odds_name)

    noise_variance, rates = float(counts[NOISE][0]), rates_of(counts)
    variances = dict.fromkeys((name for name in rates if name != "calibration_error"), 0.0)
    step = 0.25 * math.sqrt(noise_variance)
    for name in (name for name in counts if name != NOISE):
        for place, count in enumerate(counts[name]):
            cell_variance = max(float(count), 0.0) + noise_variance
            up, down = (
                rates_of({**counts, name: moved(counts[name], place, by)}) for by in (step, -step)
            )
            for metric, rate in rates.items():
                if metric in variances:  # a metric that one step hides keeps its rate there
                    slope = (up.get(metric, rate) - down.get(metric, rate)) / (2 * step)
                    variances[metric] += cell_variance * slope**2
    half = {metric: Z * math.sqrt(variance) for metric, variance in variances.items()}
    return {m: (_clipped(m, rates[m] - h), _clipped(m, rates[m] + h)) for m, h in half.items()}


def _unclipped_rates(
    counts: Counts, classes: tuple[str, ...], scored: int, odds_name: str | None
) -> dict[str, float]:
    """Compute the metrics whose denominators are clear of noise; noise can move them beyond 0 or 1.

    For n classes, the number of records is a sum of n² cells, the records of a class and its
    predictions are sums of n, and positives and negatives are sums of 16 bins.
    """
    std, n = math.sqrt(float(counts[NOISE][0])), len(classes)
    table = outcome_table(counts, classes).astype(float)
    if table[:, [0, 2]].sum() < _least_signal(std, n**2):
        return {}
    hits, false_alarms, misses = table.T
    is_clear = np.minimum(hits + misses, hits + false_alarms) >= _least_signal(std, n)
    rates = outcome_rates(table, scored)
    hidden = [] if is_clear.all() else ["mcc", "macro_f1"]
    hidden += [] if is_clear[scored] else ["precision", "recall", "f1"]
    rates = {name: rate for name, rate in rates.items() if name not in hidden}
    if odds_name is None:
        return rates
    odds = counts[odds_name]
    if odds.reshape(2, -1).sum(axis=1).min() < _least_signal(std, ODDS_BINS):
        return rates
    auroc, error = separation(odds)["auroc"], _calibration_error(odds, std)
    return rates | {"auroc": auroc, "calibration_error": error}


def _least_signal(std: float, cells: int) -> float:
    """Return the least sum of so many cells that is clear of the noise on them."""
    return MIN_SIGNAL * std * math.sqrt(cells)


def _calibration_error(odds: Array, std: float) -> float:
    """Add up |hits - confidence · records| of the bins, less what noise adds to each square."""
    positives, negatives = odds.reshape(2, -1).astype(float)
    chance = 1 / (1 + np.exp(-middle_odds(ODDS_BINS)))  # of the scored class
    confidence = np.maximum(chance, 1 - chance)
    hits = np.where(chance >= 0.5, positives, negatives)
    distance = hits - confidence * (positives + negatives)
    excess = np.square(distance) - std**2 * (np.square(1 - confidence) + np.square(confidence))
    return float(np.sqrt(np.maximum(excess, 0.0)).sum() / odds.sum())


def _clipped(metric: str, value: float) -> float:
    return float(np.clip(value, -1.0 if metric == "mcc" else 0.0, 1.0))
