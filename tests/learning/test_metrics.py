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


def test_counts_of_a_regression_without_moments_have_no_rates() -> None:
    task = Regression("regression")
    assert not (task.rates({}) or task.intervals({}) or task.closed_slopes({}))


@pytest.mark.parametrize("found", [0, 5])
def test_few_records_without_an_error_claim_no_certain_score(found: int) -> None:
    """F1 is a function of hits / (hits + false alarms + misses), of which Wilson's is known."""
    task = make_task(TaskSettings(labels=("no", "yes")))
    counts = {"truly no": np.array([5, 0]), "truly yes": np.array([5 - found, found])}
    low, high = metrics.wilson(found, 5) or (0.0, 0.0)
    expected = (2 * low / (1 + low), 2 * high / (1 + high))
    intervals = task.intervals(counts)
    assert intervals["f1"] == pytest.approx(expected) and expected[1] - expected[0] > 0.2
    assert all(high > low for low, high in intervals.values())
    types = make_task(TaskSettings(kind="ner", labels=("Drug",)))
    intervals = types.intervals({"of Drug": np.array([found, 0, 5 - found])})
    assert intervals["f1"] == pytest.approx(expected) == intervals["f1/Drug"]
    assert all(high > low for low, high in intervals.values())
