"""Counts of classifications, which add up over hospitals, and metrics of their scores.

Classifications with one class per record have these counts, by name (C is a class). They are
integers, and `confidence` has sums of measured values (`metric_counts`):

    truly C     records of C by predicted class; up to MAX_CROSSED classes
    of C        [hits, false alarms, misses] of C; with more classes
    scored C    records of C by bins of C's log-odds, then all others; up to MAX_SCORED classes, and
                of two classes only for the scored one
    sure        correct records by bins of confidence, then wrong ones
    confidence  the sum of the confidence in each of these bins
    all         [right, wrong], in place of all others, if hospitals have different labels
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.learning.metric_counts import SCORED, Contributions, Counts
from secure_fl.learning.metrics import (
    BINS,
    CONFIDENCE_BINS,
    Interval,
    odds_bin,
    separation,
    separation_bounds,
)
from secure_fl.learning.tasks.task import Rows

Array: TypeAlias = NDArray[Any]

MAX_SCORED = 30  # classes with scores in bins: 128 numbers each, in every round
CONFIDENCE_CELLS, CONFIDENCE_SUMS = "sure", "confidence"


def joined(tensors: Iterable[Tensor], width: int | None = None) -> Array:
    """Concatenate batches to one array, which is empty without batches."""
    empty = torch.zeros(0) if width is None else torch.zeros(0, width)
    return torch.cat([empty, *(tensor.double() for tensor in tensors)]).numpy()


def matrix_row(gold: Array, predicted: Array, label: int, classes: int) -> Contributions:
    """Count the records of a class by predicted class: a row of the confusion matrix."""
    (records,) = np.nonzero(gold == label)
    ones = np.ones(len(records), np.int64)
    return Contributions(len(gold), classes, records, predicted[records], ones)


def outcome_rows(actual: Array, predicted: Array) -> Contributions:
    """Count hits, false alarms and misses of a class, over its true and predicted members."""
    (records,) = np.nonzero(actual | predicted)
    cells = np.where(~actual, 1, np.where(predicted, 0, 2))[records]
    return Contributions(len(actual), 3, records, cells, np.ones(len(records), np.int64))


def separable(counts: Counts) -> list[str]:
    """List the histograms of log-odds that contain records of their class and other records."""
    names = [name for name in counts if name.startswith(SCORED)]
    return [n for n in names if counts[n][:BINS].sum() and counts[n][BINS:].sum()]


def mean_separation(counts: Counts) -> dict[str, float]:
    """Compute the means of AUROC and of average precision over classes."""
    scores = [separation(counts[name]) for name in separable(counts)]
    return {name: fmean(score[name] for score in scores) for name in scores[0]} if scores else {}


def mean_bounds(counts: Counts) -> dict[str, Interval]:
    """Compute the bounds of `mean_separation`."""
    bounds = [separation_bounds(counts[name]) for name in separable(counts)]
    return {
        metric: (fmean(low for low, _ in intervals), fmean(high for _, high in intervals))
        for metric in (bounds[0] if bounds else ())
        if (intervals := [by_metric[metric] for by_metric in bounds])
    }


def odds_histogram(gold: Array, logits: Array, label: int) -> Contributions:
    """Count the records of a class by bins of its log-odds, then all other records."""
    others = np.delete(logits, label, axis=1)
    odds = logits[:, label] - np.logaddexp.reduce(others, axis=1)
    return Contributions.of_cells(odds_bin(odds) + BINS * (gold != label), 2 * BINS)


def confidence_histogram(gold: Array, predicted: Array, logits: Array) -> Rows:
    """Count correct and wrong records by bins of confidence, and sum the confidence in each bin.

    The confidence is the probability of the predicted class.
    """
    records = np.arange(len(gold))
    confidence = np.exp(logits[records, predicted] - np.logaddexp.reduce(logits, axis=1))
    bins = np.clip((confidence * CONFIDENCE_BINS).astype(np.int64), 0, CONFIDENCE_BINS - 1)
    cells = bins + CONFIDENCE_BINS * (gold != predicted)
    return {
        CONFIDENCE_CELLS: Contributions.of_cells(cells, 2 * CONFIDENCE_BINS),
        CONFIDENCE_SUMS: Contributions(len(gold), CONFIDENCE_BINS, records, bins, confidence),
    }
