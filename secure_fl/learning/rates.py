"""The metrics that follow from counts, of one hospital or summed over all; 0.0 where none can.

What an estimate is over scores in bins, is as scikit-learn has it of scores that are equal inside a
bin; `extremes` says between which bounds the figure of the scores themselves lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.counts import LOSS

Table = NDArray[Any]

BINS = 64  # of a class's log-odds; the outer ones have no end
REACH = float(np.arcsinh(4 * 12))
SURE = 10  # bins of the confidence in the likeliest class
GRID = 24  # ranks of scores and of guesses


def bin_of(values: NDArray[Any], reach: float, bins: int) -> NDArray[Any]:
    """The bin of each value between -reach and reach."""
    at = np.floor((values + reach) * (bins / (2 * reach)))
    return np.clip(at, 0, bins - 1).astype(np.int64)


def odds_bin(odds: NDArray[Any]) -> NDArray[Any]:
    """The bin of each log-odds: narrow at 0, where models that have learned little are unsure."""
    return bin_of(np.arcsinh(4 * odds), REACH, BINS)


def loss_rate(counts: Mapping[str, Table]) -> dict[str, float]:
    """The mean loss of the records."""
    records, total = counts[LOSS]
    return {"loss": float(total / records)}


def class_rates(matrix: Table, positive: int) -> dict[str, float]:
    """Of a confusion matrix: accuracy (and micro-F1), F1, MCC (Gorodkin's, for any classes)."""
    return outcome_rates(outcomes_of(matrix), positive)


def outcomes_of(matrix: Table) -> Table:
    """[hits, false alarms, missed] of each class, of a confusion matrix."""
    hits = np.diag(matrix)
    return np.stack([hits, matrix.sum(0) - hits, matrix.sum(1) - hits], axis=1)


def outcome_rates(table: Table, positive: int) -> dict[str, float]:
    """The same of [hits, false alarms, missed] of each class."""
    hits, false, missed = table.astype(float).T
    guesses, truths = hits + false, hits + missed
    total, occurring = truths.sum(), guesses + truths > 0
    f1 = _ratio(2 * hits, guesses + truths)
    spread = (total**2 - guesses @ guesses) * (total**2 - truths @ truths)
    return {
        "accuracy": float(_ratio(hits.sum(), total)),
        "macro_f1": float(f1[occurring].mean()) if occurring.any() else 0.0,
        **span_rates(table[positive]),
        "mcc": float(_ratio(hits.sum() * total - guesses @ truths, np.sqrt(max(spread, 0.0)))),
    }


def span_rates(row: Table) -> dict[str, float]:
    """Precision, recall and F1 of [hits, false alarms, missed]."""
    hits, false, missed = row
    return {
        "precision": float(_ratio(hits, hits + false)),
        "recall": float(_ratio(hits, hits + missed)),
        "f1": float(_ratio(2 * hits, 2 * hits + false + missed)),
    }


def score_rates(moments: Table) -> dict[str, float]:
    """Pearson's correlation and the mean squared error, of [n, Σx, Σy, Σx², Σy², Σxy]."""
    n, x, y, xx, yy, xy = moments.astype(float)
    spread = np.sqrt(max(n * xx - x * x, 0.0) * max(n * yy - y * y, 0.0))
    dust = 1e-9 * np.sqrt(n * xx * n * yy)  # what float32 guesses leave of a constant column
    r = float(np.clip((n * xy - x * y) / spread, -1, 1)) if spread > dust else 0.0
    return {"pearson": r, "mse": float(_ratio(xx - 2 * xy + yy, n))}


def pearson_slope(moments: Table) -> Table:
    """How Pearson's correlation moves with each of these moments; 0 where there is none.

    In closed form: of guesses that hardly differ, quotients of differences would be noise.
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


def rank_rate(cells: Table) -> dict[str, float]:
    """Spearman's correlation, of how many records have a score and a guess in each two bins."""
    table = cells.reshape(GRID, GRID).astype(float)
    x, y = ranks(table.sum(1)), ranks(table.sum(0))
    both, one, other = x @ table @ y, table.sum(1) @ x**2, table.sum(0) @ y**2
    spread = float(np.sqrt(one * other))
    return {"spearman": float(both / spread) if spread > 0 else 0.0}


def rank_extremes(cells: Table) -> tuple[float, float]:
    """The least and the most that Spearman's correlation can be without bins.

    Mean ranks of bins are the projection of the ranks, so what they lack is known in norm.
    """
    table = cells.reshape(GRID, GRID).astype(float)
    sides = [table.sum(axis) for axis in (1, 0)]
    kept = [float(np.sqrt(side @ ranks(side) ** 2)) for side in sides]
    lost = [float(np.sqrt(((side**3 - side) / 12).sum())) for side in sides]
    both = float(ranks(sides[0]) @ table @ ranks(sides[1]))
    slack = lost[0] * kept[1] + kept[0] * lost[1] + lost[0] * lost[1]
    if not kept[0] * kept[1]:
        return -1.0, 1.0
    found = []
    for value in (both - slack, both + slack):
        most = np.hypot(kept[0], lost[0]) * np.hypot(kept[1], lost[1])
        wider = kept[0] * kept[1] if (value < 0) == (value < both) else most
        found.append(float(np.clip(value / wider, -1, 1)))
    return found[0], found[1]


def ranks(counts: Table) -> Table:
    """The mean rank of each bin's records, less the mean of all."""
    found: Table = np.cumsum(counts) - counts / 2 - counts.sum() / 2
    return found


def separation(cells: Table) -> dict[str, float]:
    """AUROC and average precision, of a class's records and the others by bins of its log-odds."""
    own, others = cells.reshape(2, -1)[:, ::-1].astype(float)  # from the surest down
    seen, beside = np.cumsum(own), np.cumsum(others)
    below = beside[-1] - beside
    auroc = own @ (below + others / 2)
    return {
        "auroc": float(_ratio(auroc, seen[-1] * beside[-1])),
        "average_precision": float(_ratio(own @ _ratio(seen, seen + beside), seen[-1])),
    }


def extremes(cells: Table) -> dict[str, tuple[float, float]]:
    """The least and the most that `separation` can be, however records lie inside their bins."""
    own, others = cells.reshape(2, -1)
    nothing = np.zeros_like(own)  # each bin becomes two
    worst = separation(np.concatenate([_zip(own, nothing), _zip(nothing, others)]))
    best = separation(np.concatenate([_zip(nothing, own), _zip(others, nothing)]))
    worst["average_precision"] = _one_by_one(own[::-1].astype(float), others[::-1].astype(float))
    return {name: (worst[name], best[name]) for name in best}


def _one_by_one(own: Table, others: Table) -> float:
    """Average precision where a bin's own records come after its others, and apart.

    Σ (s+i)/(s+i+b) over a bin's i is a difference of digammas.
    """
    from scipy.special import digamma

    before, beside = np.cumsum(own) - own, np.cumsum(others)
    lost = beside * (digamma(before + own + beside + 1) - digamma(before + beside + 1))
    return float(_ratio((own - lost).sum(), own.sum()))


def calibration(right: Table, confidence: Table) -> dict[str, float]:
    """The mean distance of confidence and accuracy over bins of confidence (ECE, Guo et al.)."""
    hits, wrong = right.reshape(2, -1).astype(float)
    apart = np.abs(hits - confidence).sum()
    return {"calibration_error": float(_ratio(apart, (hits + wrong).sum()))}


def _zip(one: Table, other: Table) -> Table:
    return np.stack([one, other], axis=1).ravel()


def _ratio(part: Any, whole: Any) -> NDArray[np.float64]:
    """The quotient; 0 where there is nothing to divide by."""
    whole = np.asarray(whole, float)
    found: NDArray[np.float64] = np.zeros_like(whole)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
