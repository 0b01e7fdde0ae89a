"""Several labels per record: labels in tensors, losses, scores as in scikit-learn, predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from secure_fl.data.examples import Text
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.metric_counts import add, from_pieces, pieces
from secure_fl.learning.metrics import odds_bin
from secure_fl.learning.tasks import Batch, Task, labels_of, make_task
from secure_fl.settings import TaskSettings
from tests.support.raising import raises

CODES = tuple(f"C{k}" for k in range(8))
RARE = 7  # the place of a label that no record has and no model gives
WORDS = ("fever", "cough", "rash", "no")


def task_of(labels: tuple[str, ...] = CODES) -> Task:
    return make_task(TaskSettings(kind="multilabel", labels=labels, max_length=16))


def made_up(records: int, seed: int) -> tuple[torch.Tensor, Batch]:
    """Logits of two batches' worth of records that are right more often than not."""
    rng = np.random.default_rng(seed)
    truth = rng.random((records, len(CODES))) < np.linspace(0.6, 0.02, len(CODES))
    z = rng.normal(size=truth.shape) + 1.5 * truth - 0.6
    truth[:, RARE], z[:, RARE] = False, -5.0
    return torch.from_numpy(z).float(), {"labels": torch.from_numpy(truth)}


def halves(z: torch.Tensor, batch: Batch) -> tuple[list[torch.Tensor], list[Batch]]:
    cut, labels = len(z) // 2, batch["labels"]
    return [z[:cut], z[cut:]], [{"labels": labels[:cut]}, {"labels": labels[cut:]}]


HOSPITALS = [made_up(records, seed) for seed, records in enumerate((40, 7, 90))]
Z = torch.cat([z for z, _ in HOSPITALS])
TRUTH = torch.cat([batch["labels"] for _, batch in HOSPITALS]).numpy()


def pooled() -> dict[str, Any]:
    """The sum of all hospitals' counts, each split and joined as in transport."""
    task = task_of()
    summed: dict[str, Any] = {}
    for one in HOSPITALS:
        for name, piece in pieces(task.counts(*halves(*one))).items():
            summed[name] = summed.get(name, 0) + piece.astype(float)
    return from_pieces(summed)


def test_f1_of_sums_equals_scikit_learns_on_all_records() -> None:
    rates = task_of().pooled([pooled()])
    guess = (Z > 0).numpy()
    for average in ("micro", "macro"):
        precision, recall, f1, _ = precision_recall_fscore_support(
            TRUTH, guess, average=average, zero_division=np.nan
        )
        assert rates[f"{average}_f1"] == pytest.approx(f1, abs=1e-12)
        if average == "micro":
            assert rates["micro_precision"] == pytest.approx(precision, abs=1e-12)
            assert rates["micro_recall"] == pytest.approx(recall, abs=1e-12)
    by_label = precision_recall_fscore_support(TRUTH, guess, zero_division=0)[2]
    assert {n: x for n, x in rates.items() if n.startswith("f1/")} == pytest.approx(
        {f"f1/{name}": by_label[k] for k, name in enumerate(CODES) if TRUTH[:, k].any()}
    )
    assert f"f1/{CODES[RARE]}" not in rates


def test_scores_in_bins_equal_scikit_learns_and_bound_the_exact_ones() -> None:
    task, counts = task_of(), pooled()
    rates, bounds = task.rates(counts), task.bounds(counts)
    columns = [k for k in range(len(CODES)) if k != RARE]
    binned = odds_bin(Z.double().numpy())
    for name, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        of_bins = np.mean([score(TRUTH[:, k], binned[:, k]) for k in columns])
        assert rates[name] == pytest.approx(of_bins, abs=1e-12)
        exact = np.mean([score(TRUTH[:, k], Z[:, k]) for k in columns])
        low, high = bounds[name]
        assert low <= exact <= high and abs(rates[name] - exact) < 0.02


@pytest.mark.parametrize("k", [1, 5])
def test_precision_at_k_is_the_share_of_right_labels_among_the_likeliest(k: int) -> None:
    first = np.argsort(-Z.numpy(), axis=1)[:, :k]
    expected = np.take_along_axis(TRUTH, first, axis=1).mean()
    assert task_of().rates(pooled())[f"precision_at_{k}"] == pytest.approx(expected, abs=1e-12)


def test_intervals_are_those_of_drawing_the_records_again() -> None:
    task = task_of()
    intervals, rng = task.intervals(pooled()), np.random.default_rng(1)
    names = ["micro_f1", "macro_f1", "precision_at_1", "auroc", f"f1/{CODES[0]}"]
    drawn: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(200):
        at = rng.integers(len(Z), size=len(Z))
        rates = task.rates(task.counts([Z[at]], [{"labels": torch.from_numpy(TRUTH[at])}]))
        for name in names:
            drawn[name].append(rates[name])
    for name in names:
        low, high = intervals[name]
        assert high - low == pytest.approx(2 * 1.96 * np.std(drawn[name]), rel=0.3)
    assert set(intervals) == set(task.rates(pooled()))


def test_hospitals_without_records_or_with_other_labels_add_up() -> None:
    task = task_of()
    nothing, some = task.counts([], []), task.counts(*halves(*HOSPITALS[0]))
    shapes = [{name: row.shape for name, row in one.items()} for one in (nothing, some)]
    assert shapes[0] == shapes[1]
    assert task.pooled([some, nothing]) == task.pooled([some])
    # As where each hospital has its own labels.
    plain = [task.counts(*halves(z, b), by_label=False) for z, b in HOSPITALS]
    expected = {n: x for n, x in task.rates(pooled()).items() if n.startswith("micro")}
    assert task.rates(add(*plain)) == pytest.approx(expected)


def test_records_become_rows_of_marks() -> None:
    task, tokenizer = task_of(("A", "B", "C")), tiny_tokenizer(WORDS)
    records = [Text("1", "fever", label=("C", "A")), Text("2", "no rash", label=())]
    batch = task.encode(records, tokenizer).batch([0, 1])
    assert batch["labels"].tolist() == [[True, False, True], [False, False, False]]
    assert labels_of("multilabel", records) == ("A", "C")
    z = torch.tensor([[2.0, -1.0, 0.5], [-1.0, -1.0, -3.0]])
    assert task.decode(z, batch) == [("A", "C"), ()]
    answer = task.describe(records[0], z[:1], batch)
    assert answer["labels"] == ["A", "C"]
    assert answer["probabilities"]["A"] == pytest.approx(float(z[0, 0].sigmoid()))


def test_the_loss_is_the_log_probability_of_all_labels_of_a_record() -> None:
    z, batch = HOSPITALS[1]
    losses = task_of().loss(z, batch, reduction="none")
    p = torch.where(batch["labels"], z.sigmoid(), 1 - z.sigmoid())
    assert losses.shape == (len(z),) and torch.allclose(losses, -p.log().sum(-1), atol=1e-5)
    mean = F.binary_cross_entropy_with_logits(z, batch["labels"].float())
    assert float(task_of().loss(z, batch)) == pytest.approx(float(mean) * len(CODES), rel=1e-5)


@pytest.mark.parametrize("label", [None, "A", ("A", "SECRET")])
def test_a_record_without_labels_or_with_another_one_is_named_and_not_shown(label: Any) -> None:
    task = task_of(("A", "B"))
    records = [Text("1", "x", label=("A",)), Text("2", "x", label=label)]
    with raises(DataError, record=2, field="label") as caught:
        task.encode(records, tiny_tokenizer(WORDS))
    assert "SECRET" not in str(caught.value)


def test_one_label_twice_or_a_positive_class_is_refused() -> None:
    for wrong in ({"labels": ("A", "A")}, {"labels": ("A", "B"), "positive": "A"}):
        with pytest.raises(SettingsError):
            make_task(TaskSettings(kind="multilabel", **wrong))
    with raises(DataError, field="task.labels"):
        make_task(TaskSettings(kind="multilabel"), [Text("0", "a", label=("x",))])


def test_slopes_of_labels_are_those_of_all_counts_together() -> None:
    task, counts = task_of(), pooled()
    del counts["squares"]
    found, expected = task.slopes(counts), Task.slopes(task, counts)
    assert found.keys() == expected.keys() == task.pooled([counts]).keys()
    for metric, by_name in expected.items():
        for name, slope in by_name.items():
            np.testing.assert_allclose(
                found[metric].get(name, np.zeros(len(slope))), slope, atol=1e-6, err_msg=metric
            )


def test_five_thousand_labels_are_counted_and_compared_in_seconds() -> None:
    labels = tuple(f"L{k}" for k in range(5000))
    rng, task = np.random.default_rng(0), task_of(labels)
    truth = torch.from_numpy(rng.random((300, 5000)) < 0.002)
    z = torch.from_numpy(rng.normal(-3, 1, truth.shape)).float() + 4 * truth
    counts = task.counts([z], [{"labels": truth}])
    assert set(task.slopes(counts)) == set(task.pooled([counts]))
    assert not any(name.startswith(("f1/", "auroc")) for name in task.intervals(counts))
