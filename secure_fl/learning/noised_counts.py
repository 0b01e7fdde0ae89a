"""Metrics of class counts that carry noise, with intervals that include it.

An evaluation may add noise to its counts (`features.evaluation.noise`). Such counts have one more
entry, `NOISE`, with the variance of the noise on each cell. A cell may be below zero, and a metric
is left out if its denominator is lost in the noise. Scores are in 16 bins instead of 64: noise adds
up over bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.metric_counts import ROW, TRULY, Counts
from secure_fl.learning.metrics import (
    BINS,
    REACH,
    Interval,
    Z,
    moved,
    outcome_rates,
    outcomes_of,
    separation,
)

NOISE = "noise"  # [variance of each cell]
COARSE = 16  # bins of log-odds
CLEAR = 4.0  # a denominator in standard deviations of its noise, or more

Array = NDArray[Any]
Rates = Callable[[Counts], Mapping[str, float]]
OF_CLASS = ("precision", "recall", "f1")


def coarse(cells: Array) -> Array:
    """Add up neighbouring bins of a class's and the other records."""
    halves: Array = cells.reshape(2, COARSE, BINS // COARSE).sum(axis=2)
    return halves.ravel()


def outcomes(counts: Counts, labels: tuple[str, ...]) -> Array:
    """Return [hits, false alarms, misses] of each class; fail if counts of a class are missing."""
    crossed = all(TRULY + name in counts for name in labels)
    rows = np.stack([counts[(TRULY if crossed else ROW) + name] for name in labels])
    return outcomes_of(rows) if crossed else rows


def records_of(counts: Mapping[str, Any], labels: tuple[str, ...]) -> float:
    """Estimate the number of records."""
    table = outcomes({name: np.asarray(row) for name, row in counts.items()}, labels)
    return float(table[:, [0, 2]].sum())


def noised_rates(
    counts: Counts, labels: tuple[str, ...], scored: int, bins: str = ""
) -> dict[str, float]:
    """Compute the metrics that the noise leaves; `scored`: the class of F1; `bins`: of its odds."""
    found = _raw(counts, labels, scored, bins)
    return {
        name: float(np.clip(value, -1.0 if name == "mcc" else 0.0, 1.0))
        for name, value in found.items()
    }


def noised_intervals(
    counts: Counts, labels: tuple[str, ...], scored: int, bins: str = ""
) -> dict[str, Interval]:
    """Compute 95 % intervals by the delta method, from the noise and the choice of records."""

    def raw(given: Counts) -> Mapping[str, float]:
        return _raw(given, labels, scored, bins)

    noise, values = float(counts[NOISE][0]), raw(counts)
    variance = dict.fromkeys((name for name in values if name != "calibration_error"), 0.0)
    for name, vector in counts.items():
        for place in range(len(vector) if name != NOISE else 0):
            step = 0.25 * math.sqrt(noise)
            up, down = (raw({**counts, name: moved(vector, place, by)}) for by in (step, -step))
            spread = max(float(vector[place]), 0.0) + noise
            for metric in variance:
                slope = (up.get(metric, values[metric]) - down.get(metric, values[metric])) / 2
                variance[metric] += spread * (slope / step) ** 2
    intervals = {}
    for metric, square in variance.items():
        half, least = Z * math.sqrt(square), -1.0 if metric == "mcc" else 0.0
        low, high = (float(np.clip(values[metric] + by, least, 1.0)) for by in (-half, half))
        intervals[metric] = low, high
    return intervals


def _raw(counts: Counts, labels: tuple[str, ...], scored: int, bins: str) -> dict[str, float]:
    std, table = math.sqrt(float(counts[NOISE][0])), outcomes(counts, labels).astype(float)
    if table[:, [0, 2]].sum() < CLEAR * std * len(labels):
        return {}
    least = CLEAR * std * math.sqrt(len(labels))
    clear = np.minimum(table[:, 0] + table[:, 2], table[:, 0] + table[:, 1]) >= least
    hidden = {*(() if clear.all() else ("mcc",)), *(() if clear[scored] else OF_CLASS)}
    rates = outcome_rates(table, scored)
    rates = {name: value for name, value in rates.items() if name not in hidden}
    if not bins:
        return rates
    positives, negatives = counts[bins].reshape(2, -1).sum(axis=1)
    if min(positives, negatives) < CLEAR * std * math.sqrt(COARSE):
        return rates
    auroc = {"auroc": separation(counts[bins])["auroc"]}
    return rates | auroc | {"calibration_error": _calibration(counts[bins], std**2)}


def _calibration(cells: Array, noise: float) -> float:
    """The mean distance of confidence and accuracy over bins, less what noise adds to squares."""
    positives, negatives = cells.reshape(2, -1).astype(float)
    middle = (np.arange(COARSE) + 0.5) * (2 * REACH / COARSE) - REACH
    chance = 1 / (1 + np.exp(-np.sinh(middle) / 4))  # of the scored class
    sure = np.maximum(chance, 1 - chance)
    hits = np.where(chance >= 0.5, positives, negatives)
    distance = hits - sure * (positives + negatives)
    kept = np.square(distance) - noise * (np.square(1 - sure) + np.square(sure))
    return float(np.sqrt(np.maximum(kept, 0.0)).sum() / cells.sum())
