"""Each metric against a case small enough to count by hand, and in degenerate cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from secure_fl.learning import metrics
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.classification import Classification
from secure_fl.learning.tasks.regression import Regression
from secure_fl.settings import TaskSettings


def classified(gold: list[int], predicted: list[int], classes: int = 3) -> dict[str, float]:
    """The metrics of predicted classes; the positive class is 1."""
    task = Classification("classification", tuple("abc"[:classes]), positive="b")
    logits = 5.0 * torch.eye(classes)[predicted]
    return task.score([logits], [{"labels": torch.tensor(gold)}])


def tagged(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    """The metrics of predicted tags."""
    task = make_task(TaskSettings(kind="ner", labels=("X", "Y")))
    ids, answers = (
        torch.tensor([[task.labels.index(tag) for tag in row] for row in side])
        for side in (gold, predicted)
    )
    batch = {"labels": ids, "words": torch.arange(ids.shape[1]).expand_as(ids)}
    return task.score([torch.eye(len(task.labels))[answers]], [batch])


def scored(gold: list[float], predicted: list[float]) -> dict[str, float]:
    """The metrics of predicted scores."""
    batch = {"labels": torch.tensor(gold)}
    return Regression("regression").score([torch.tensor(predicted)[:, None]], [batch])


def test_classes_by_hand() -> None:
    rates = classified([1, 1, 1, 0, 0, 2], [1, 1, 0, 0, 1, 2])
    one, zero, two = 2 * 2 / (3 + 3), 2 * 1 / (2 + 2), 1.0  # 2·hits / (actual + predicted)
    assert rates["accuracy"] == pytest.approx(4 / 6)
    assert rates["f1"] == pytest.approx(one)
    assert rates["macro_f1"] == pytest.approx((one + zero + two) / 3)
    tp, fn, tn, fp = 2, 1, 1, 1
    root = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert classified([1, 1, 1, 0, 0], [1, 1, 0, 0, 1], 2)["mcc"] == pytest.approx(
        (tp * tn - fp * fn) / root
    )


def test_correlations_by_hand() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    dx, dy = x - 2.5, y - 7.5
    rates = scored(x.tolist(), y.tolist())
    assert rates["pearson"] == pytest.approx((dx @ dy) / np.sqrt((dx @ dx) * (dy @ dy)))
    assert rates["spearman"] == pytest.approx(1.0)  # the order is the same
    assert metrics.spearman(x, -y) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 against 1..4: deviations -1.5, 0, 0, 1.5 and -1.5, -.5, .5, 1.5
    tied = np.array([0.0, 5.0, 5.0, 9.0])
    assert metrics.spearman(x, tied) == pytest.approx(4.5 / np.sqrt(5.0 * 4.5))


def test_entities_need_exact_borders_and_types() -> None:
    gold = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X", "O", "O"]]
    cut = [["B-X", "O", "O", "B-Y"], ["O", "B-X", "O", "O"]]  # the first X is cut short
    rates = tagged(gold, cut)
    expected = {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "f1/X": 1 / 2, "f1/Y": 1.0}
    assert {name: rates[name] for name in expected} == pytest.approx(expected)
    rates = tagged([["B-X", "B-X"]], [["I-X", "B-X"]])  # an I- that continues nothing
    assert (rates["precision"], rates["recall"]) == (1.0, 0.5)


def test_rankings_by_hand() -> None:
    clicks, scores = np.array([0, 1, 0, 1]), np.array([0.9, 0.8, 0.1, 0.5])
    # Order: miss, hit, hit, miss. Pairs (hit over miss): 2 of 4.
    assert metrics.auc(clicks, scores) == pytest.approx(2 / 4)
    assert metrics.mrr(clicks, scores) == pytest.approx((1 / 2 + 1 / 3) / 2)
    gain = 1 / np.log2(3) + 1 / np.log2(4)
    best = 1 / np.log2(2) + 1 / np.log2(3)
    assert metrics.ndcg(clicks, scores, 5) == pytest.approx(gain / best)
    assert metrics.ndcg(clicks, scores, 2) == pytest.approx((1 / np.log2(3)) / best)


def test_equal_scores_earn_nothing_by_the_order_of_the_file() -> None:
    clicks, scores = np.array([1, 0, 0]), np.zeros(3)
    assert metrics.auc(clicks, scores) == 0.5
    assert metrics.mrr(clicks, scores) == pytest.approx(1 / 3)


def test_degenerate_inputs_score_zero_without_warnings() -> None:
    ones, varied = [1] * 4, np.array([1.0, 2.0, 3.0, 4.0])
    assert classified(ones, [1, 1, 0, 0])["mcc"] == classified([1, 1, 0, 0], ones)["mcc"] == 0.0
    assert classified([0] * 4, [0] * 4)["f1"] == 0.0
    flat: dict[str, Any] = scored(varied.tolist(), [0.1] * 4)
    assert flat["pearson"] == flat["spearman"] == 0.0
    broken = scored(varied.tolist(), [1.0, np.nan, 2.0, 3.0])
    assert broken["pearson"] == broken["spearman"] == 0.0
    assert metrics.spearman(np.zeros(0), np.zeros(0)) == 0.0
    assert metrics.auc(np.ones(4), varied) == 0.0
    assert metrics.mrr(np.zeros(4), varied) == metrics.ndcg(np.zeros(4), varied, 5) == 0.0
    assert tagged([["O"]], [["O"]])["f1"] == 0.0
    missed = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "f1/X": 0.0}
    rates = tagged([["B-X"]], [["O"]])
    assert {name: rates[name] for name in missed} == missed
