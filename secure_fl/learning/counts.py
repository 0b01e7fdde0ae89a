"""Counts that add up over hospitals, and the metrics that follow from their sums.

What a model is worth on all records together is not the mean of what it is worth at each hospital:
one with two records would weigh as much as one with 300. So each hospital counts, the counts are
summed, and rates follow from the sum. Every name has at most eight numbers: so many travel exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = dict[str, NDArray[np.float64]]

LOSS = "loss"  # [records, sum of their losses]
ROW = "of "  # before the name of a class or an entity type
ALL = "all"  # in place of names that differ between hospitals


def add(*parts: Mapping[str, Any]) -> Counts:
    """The sum of counts that have the same names."""
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


def rows_of(table: NDArray[np.float64], names: Sequence[str], *, by_label: bool) -> Counts:
    """A table's rows by name, or their sum."""
    if not by_label:
        return {ALL: table.sum(0)}
    return {ROW + name: row for name, row in zip(names, table, strict=True)}


def table_of(counts: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The inverse of `rows_of`."""
    return np.stack([row for name, row in counts.items() if name == ALL or name.startswith(ROW)])


def loss_rate(counts: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """The mean loss of the records."""
    records, total = counts[LOSS]
    return {"loss": float(total / records)}


def of_classes(gold: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """[hits, guesses, truths] of each class: one row per class."""
    rows = (gold[gold == predicted], predicted, gold)
    return np.stack([np.bincount(row, minlength=classes) for row in rows], axis=1).astype(float)


def class_rates(table: NDArray[np.float64], positive: int) -> dict[str, float]:
    """Accuracy, macro-F1, F1 of one class and MCC (Gorodkin's, for any number of classes)."""
    hits, guesses, truths = table.T
    total, occurring = truths.sum(), guesses + truths > 0
    f1 = _ratio(2 * hits, guesses + truths)
    spread = (total**2 - guesses @ guesses) * (total**2 - truths @ truths)
    return {
        "accuracy": float(_ratio(hits.sum(), total)),
        "macro_f1": float(f1[occurring].mean()) if occurring.any() else 0.0,
        "f1": float(f1[positive]),
        "mcc": float(_ratio(hits.sum() * total - guesses @ truths, np.sqrt(spread))),
    }


def of_spans(
    gold: Sequence[Sequence[tuple[str, int, int]]],
    predicted: Sequence[Sequence[tuple[str, int, int]]],
    types: Sequence[str],
) -> NDArray[np.float64]:
    """[hits, guesses, truths] of each entity type: one row per type."""
    table, at = np.zeros((len(types), 3)), {name: row for row, name in enumerate(types)}
    for truths, guesses in zip(gold, predicted, strict=True):
        for column, found in enumerate((set(truths) & set(guesses), guesses, truths)):
            for kind, *_ in found:
                table[at[kind], column] += 1
    return table


def span_rates(row: NDArray[np.float64]) -> dict[str, float]:
    """Precision, recall and F1 of [hits, guesses, truths]."""
    hits, guesses, truths = row
    return {
        "precision": float(_ratio(hits, guesses)),
        "recall": float(_ratio(hits, truths)),
        "f1": float(_ratio(2 * hits, guesses + truths)),
    }


def of_scores(gold: NDArray[Any], predicted: NDArray[Any]) -> NDArray[np.float64]:
    """[n, Σx, Σy, Σx², Σy², Σxy] of scores x and their guesses y."""
    x, y = gold.astype(float), predicted.astype(float)
    return np.array([len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y])


def score_rates(moments: NDArray[np.float64]) -> dict[str, float]:
    """Pearson's correlation."""
    n, x, y, xx, yy, xy = moments
    spread = np.sqrt(max(n * xx - x * x, 0.0) * max(n * yy - y * y, 0.0))
    dust = 1e-6 * np.sqrt(n * xx * n * yy)  # what float32 leaves of a constant column
    return {"pearson": float(np.clip((n * xy - x * y) / spread, -1, 1)) if spread > dust else 0.0}


def _ratio(part: Any, whole: Any) -> NDArray[np.float64]:
    """The quotient; 0 where there is nothing to divide by."""
    whole = np.asarray(whole, float)
    found: NDArray[np.float64] = np.zeros_like(whole)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
