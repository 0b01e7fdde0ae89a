"""The papers' metrics, on numpy arrays. A degenerate input scores 0.0, silently.

scikit-learn, scipy and seqeval are imported on use: they would double the start-up time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def accuracy(gold: Array, predicted: Array) -> float:
    """Return the share of equal entries."""
    return float(np.mean(gold == predicted)) if len(gold) else 0.0


def f1_positive(gold: Array, predicted: Array, positive: int | str) -> float:
    """F1 of one class against all others."""
    true, guessed = gold == positive, predicted == positive
    total = int(true.sum() + guessed.sum())
    return 2 * int((true & guessed).sum()) / total if total else 0.0


def macro_f1(gold: Array, predicted: Array) -> float:
    """Return the mean F1 of the classes that occur in `gold` or `predicted`."""
    classes = np.union1d(gold, predicted)
    return float(np.mean([f1_positive(gold, predicted, c) for c in classes])) if len(gold) else 0.0


def mcc(gold: Array, predicted: Array) -> float:
    """Matthews' correlation coefficient, for any number of classes."""
    if len(gold) == 0 or constant(gold) or constant(predicted):
        return 0.0
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(gold, predicted))


def pearson(gold: Array, predicted: Array) -> float:
    """Return the linear correlation of scores."""
    x, y = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if len(x) < 2 or not np.isfinite(y).all():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    # Rounding leaves a constant column with dust of its own size, not with a correlation.
    dust = 1e-12 * len(x) * float(np.abs(gold).max() * np.abs(predicted).max())
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale > dust else 0.0


def spearman(gold: Array, predicted: Array) -> float:
    """Return the correlation of ranks; ties share their mean rank."""
    if len(gold) < 2 or not np.isfinite(predicted).all():
        return 0.0
    from scipy.stats import rankdata

    return pearson(rankdata(gold), rankdata(predicted))


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Micro precision, recall and F1 of whole entities, and `f1/<type>` of each entity type.

    seqeval's strict mode, IOB2: a span counts only with its exact borders and type, and an I- tag
    that continues nothing opens no entity. The types are those of `gold`, so the names depend on
    the data alone; guesses of a type that does not occur lower the micro precision.
    """
    scores = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    types = sorted({tag[2:] for tags in gold for tag in tags if tag != "O"})
    scores |= {f"f1/{kind}": 0.0 for kind in types}
    begins = [
        any(tag.startswith("B-") for tags in side for tag in tags) for side in (gold, predicted)
    ]
    if not all(begins):  # no entity on one side: nothing can match, and seqeval would warn
        return scores
    from seqeval.metrics import classification_report
    from seqeval.scheme import IOB2

    report = classification_report(
        [list(tags) for tags in gold],
        [list(tags) for tags in predicted],
        mode="strict",
        scheme=IOB2,
        output_dict=True,
        zero_division=0,
    )
    for name, row in report.items():
        if name == "micro avg":
            scores |= {"precision": row["precision"], "recall": row["recall"]}
            scores["f1"] = row["f1-score"]
        elif f"f1/{name}" in scores:
            scores[f"f1/{name}"] = row["f1-score"]
    return {name: float(value) for name, value in scores.items()}


def auc(clicks: Array, scores: Array) -> float:
    """Return the chance that a clicked candidate outranks one that was not (ties count half)."""
    from scipy.stats import rankdata

    clicked = np.asarray(clicks, bool)
    hits, misses = int(clicked.sum()), int((~clicked).sum())
    if hits == 0 or misses == 0:
        return 0.0
    ranks = float(rankdata(scores)[clicked].sum())
    return (ranks - hits * (hits + 1) / 2) / (hits * misses)


def mrr(clicks: Array, scores: Array) -> float:
    """Return the mean of 1/rank over one impression's clicked candidates, as MIND scores it."""
    ordered = ranked(clicks, scores)
    hits = ordered.sum()
    return float((ordered / np.arange(1, len(ordered) + 1)).sum() / hits) if hits else 0.0


def ndcg(clicks: Array, scores: Array, k: int) -> float:
    """Return the discounted gain of the first k candidates over the best possible order's."""
    ordered = ranked(clicks, scores)
    discounts = 1 / np.log2(np.arange(2, min(k, len(ordered)) + 2))
    best = float(np.sort(ordered)[::-1][:k] @ discounts)
    return float(ordered[:k] @ discounts) / best if best else 0.0


def ranked(clicks: Array, scores: Array) -> NDArray[np.float64]:
    """Clicks from the highest score down; among equal scores a click comes last, unearned."""
    clicked = np.asarray(clicks, np.float64)
    return clicked[np.lexsort((clicked, -np.asarray(scores, np.float64)))]


def constant(values: Array) -> bool:
    """Whether all entries are equal."""
    return bool((values == values[0]).all())
