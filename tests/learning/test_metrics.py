"""Each metric against a case small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from secure_fl.learning import metrics

GOLD = np.array([1, 1, 1, 0, 0, 2])
GUESS = np.array([1, 1, 0, 0, 1, 2])


def test_classification_counts() -> None:
    assert metrics.accuracy(GOLD, GUESS) == pytest.approx(4 / 6)
    one, zero, two = 2 * 2 / (3 + 3), 2 * 1 / (2 + 2), 1.0  # 2·hits / (gold + guessed)
    assert metrics.f1_positive(GOLD, GUESS, 1) == pytest.approx(one)
    assert metrics.macro_f1(GOLD, GUESS) == pytest.approx((one + zero + two) / 3)


def test_mcc_from_the_confusion_matrix() -> None:
    gold, guess = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    tp, fn, tn, fp = 2, 1, 1, 1
    root = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metrics.mcc(gold, guess) == pytest.approx((tp * tn - fp * fn) / root)


def test_correlations() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    dx, dy = x - 2.5, y - 7.5
    assert metrics.pearson(x, y) == pytest.approx((dx @ dy) / np.sqrt((dx @ dx) * (dy @ dy)))
    assert metrics.spearman(x, y) == pytest.approx(1.0)  # the order is the same
    assert metrics.spearman(x, -y) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 against 1..4: deviations -1.5, 0, 0, 1.5 and -1.5, -.5, .5, 1.5
    tied = np.array([0.0, 5.0, 5.0, 9.0])
    assert metrics.spearman(x, tied) == pytest.approx(4.5 / np.sqrt(5.0 * 4.5))


def test_entities_need_exact_borders_and_types() -> None:
    gold = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X"]]
    guess = [["B-X", "O", "O", "B-Y"], ["O", "B-X"]]  # the first X is cut short
    scores = metrics.entity_scores(gold, guess)
    assert scores == pytest.approx(
        {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "f1/X": 1 / 2, "f1/Y": 1.0}
    )


def test_a_continuation_of_nothing_is_no_entity() -> None:
    scores = metrics.entity_scores([["B-X", "B-X"]], [["I-X", "B-X"]])
    assert (scores["precision"], scores["recall"]) == (1.0, 0.5)


def test_ranking() -> None:
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
    ones, empty = np.ones(4, np.int64), np.zeros(0)
    flat = np.full(4, 0.1, np.float32)
    varied = np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.mcc(ones, GUESS[:4]) == metrics.mcc(GUESS[:4], ones) == 0.0
    assert metrics.f1_positive(ones, ones, 0) == 0.0
    assert metrics.pearson(varied, flat) == metrics.spearman(varied, flat) == 0.0
    assert metrics.pearson(varied, np.array([1.0, np.nan, 2.0, 3.0])) == 0.0
    for measure in (metrics.accuracy, metrics.macro_f1, metrics.mcc, metrics.pearson):
        assert measure(empty, empty) == 0.0
    assert metrics.spearman(empty, empty) == 0.0
    assert metrics.auc(ones, varied) == 0.0
    assert metrics.mrr(0 * ones, varied) == metrics.ndcg(0 * ones, varied, 5) == 0.0
    assert metrics.entity_scores([["O"]], [["O"]])["f1"] == 0.0
    assert metrics.entity_scores([["B-X"]], [["O"]]) == pytest.approx(
        {"precision": 0.0, "recall": 0.0, "f1": 0.0, "f1/X": 0.0}
    )
