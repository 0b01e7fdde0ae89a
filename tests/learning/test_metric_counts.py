"""Metrics from hospitals' counts equal the reference libraries' on all records together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2
from sklearn import metrics as reference
from sklearn.preprocessing import label_binarize

from secure_fl import TaskSettings
from secure_fl.corpora import make
from secure_fl.learning import metric_counts as counts
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.metrics import CONFIDENCE_BINS, GRID, bin_of, odds_bin
from secure_fl.learning.tasks import KINDS, make_task
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.classification import Classification
from secure_fl.learning.tasks.regression import Regression
from secure_fl.learning.tasks.task import Task
from secure_fl.settings import Kind

CORPUS: dict[Kind, str] = {
    "classification": "ade",
    "pair": "pairs",
    "multilabel": "codes",
    "regression": "similarity",
    "ner": "ner",
    "ranking": "news",
    "completion": "summaries",
}
PARTS = [(0, 0), (0, 1), (1, 6)]  # of the batches: one hospital has none, one has few


def pooled(task: Task, parts: list[counts.Counts]) -> counts.Counts:
    """The sum of hospitals' counts, as float32 pieces that are added exactly."""
    travelling = [counts.pieces(part) for part in parts]
    assert len({tuple((n, len(v)) for n, v in one.items()) for one in travelling}) == 1
    assert all(len(piece) <= 8 for one in travelling for piece in one.values())
    names = travelling[0]
    return counts.from_pieces(
        {n: np.sum([one[n].astype(float) for one in travelling], axis=0) for n in names}
    )


def classified(
    classes: int, skew: float, seed: int
) -> tuple[Task, counts.Counts, np.ndarray, np.ndarray]:
    """Counts of three hospitals, and the labels and logits of all."""
    draw = np.random.default_rng(seed)
    gold = draw.choice(classes, 300, p=draw.dirichlet([skew] * classes))
    z = draw.normal(0, 2, (300, classes)) + 2 * np.eye(classes)[gold]
    task = Classification("classification", tuple(f"c{k}" for k in range(classes)), positive="c1")
    hospitals = np.split(np.arange(300), [0, 2, 50])  # the first has none, the second two
    parts = [
        task.counts([torch.tensor(z[i]).float()], [{"labels": torch.tensor(gold[i])}])
        for i in hospitals
    ]
    return task, pooled(task, parts), gold, z.astype(np.float32).astype(float)


@pytest.mark.parametrize("skew", [0.05, 1.0])
@pytest.mark.parametrize("classes", [2, 5, 12])  # of more than 10 no confusion matrix is summed
def test_classes_are_those_of_scikit_learn(classes: int, skew: float) -> None:
    for seed in range(3):
        task, found, gold, z = classified(classes, skew, seed)
        guessed, rates = z.argmax(1), task.rates(found)
        occurring = np.union1d(gold, guessed)
        one: dict[str, Any] = {"labels": [1], "average": "macro", "zero_division": 0}
        expected = {
            "accuracy": reference.accuracy_score(gold, guessed),
            "macro_f1": reference.f1_score(gold, guessed, labels=occurring, average="macro"),
            "precision": reference.precision_score(gold, guessed, **one),
            "recall": reference.recall_score(gold, guessed, **one),
            "f1": reference.f1_score(gold, guessed, **one),
            "mcc": reference.matthews_corrcoef(gold, guessed),
        }
        assert {n: rates[n] for n in expected} == pytest.approx(expected, abs=1e-12)
        assert rates["accuracy"] == reference.f1_score(gold, guessed, average="micro")
        if classes <= 10:
            square = np.stack([found[f"truly c{k}"] for k in range(classes)])
            matrix = reference.confusion_matrix(gold, guessed, labels=range(classes))
            assert square.tolist() == matrix.tolist()


@pytest.mark.parametrize("classes", [2, 5, 12])
def test_scores_in_bins_are_scikit_learns_to_the_bin(classes: int) -> None:
    """Equal on scores in bins; on the scores themselves within bounds that follow from counts."""
    task, found, gold, z = classified(classes, 5.0, 0)
    rates, bounds = task.rates(found), task.bounds(found)
    every = [1] if classes == 2 else range(classes)
    odds = {k: z[:, k] - np.logaddexp.reduce(np.delete(z, k, 1), axis=1) for k in every}
    for name, score in (
        ("auroc", reference.roc_auc_score),
        ("average_precision", reference.average_precision_score),
    ):
        binned = [score(gold == k, odds_bin(odds[k])) for k in every]
        exact = np.mean([score(gold == k, odds[k]) for k in every])
        assert rates[name] == pytest.approx(np.mean(binned), abs=1e-12)
        low, high = bounds[name]
        assert low <= exact <= high and low <= rates[name] <= high and high - low < 0.1
    if classes > 2:
        chances = np.exp(z - np.logaddexp.reduce(z, axis=1)[:, None])
        names = label_binarize(gold, classes=range(classes))
        expected = reference.roc_auc_score(names, chances, average="macro")
        assert rates["auroc"] == pytest.approx(expected, abs=5e-3)
    sure = np.exp(z.max(1) - np.logaddexp.reduce(z, axis=1))
    at = np.minimum((sure * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    right = z.argmax(1) == gold
    apart = [abs((right[at == k] - sure[at == k]).sum()) for k in range(CONFIDENCE_BINS)]
    assert rates["calibration_error"] == pytest.approx(sum(apart) / len(gold), abs=1e-12)


def test_of_very_many_classes_hits_errors_and_calibration_are_left() -> None:
    task, found, *_ = classified(31, 5.0, 0)
    assert {"accuracy", "mcc", "macro_f1", "calibration_error"} <= task.rates(found).keys()
    assert "auroc" not in task.rates(found) and sum(map(len, found.values())) < 31 * 4 + 40


def test_entities_are_those_of_seqeval() -> None:
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]  # an I- may continue nothing
    task = make_task(TaskSettings(kind="ner", labels=("A", "B")))
    for seed in range(3):
        draw = np.random.default_rng(seed)
        gold, guessed = (draw.choice(5, (40, 12)) for _ in range(2))
        gold[:2] = 0  # a hospital without entities
        parts = [
            task.counts([torch.eye(5)[torch.tensor(guessed[i])]], [tagged(gold[i])])
            for i in np.split(np.arange(40), [0, 2, 30])
        ]
        names = [[[tags[t] for t in row] for row in side] for side in (gold, guessed)]
        report: Any = classification_report(
            *names, mode="strict", scheme=IOB2, output_dict=True, zero_division=0
        )
        row = report["micro avg"]
        expected = {"precision": row["precision"], "recall": row["recall"], "f1": row["f1-score"]}
        sides = {"macro_f1": "macro avg", "f1/A": "A", "f1/B": "B"}
        expected |= {name: report[side]["f1-score"] for name, side in sides.items()}
        assert task.rates(pooled(task, parts)) == pytest.approx(expected, abs=1e-12)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of F1, MCC, AUROC and average precision, over draws from one population."""
    task, everybody = drawn(100_000, 0)
    truth = task.rates(everybody)
    hits = dict.fromkeys(truth.keys() - {"calibration_error"}, 0)
    for seed in range(1, 101):
        task, found = drawn(200, seed)
        for name, (low, high) in task.intervals(found).items():
            hits[name] += low <= truth[name] <= high
    assert all(count >= 84 for count in hits.values()), hits


def drawn(records: int, seed: int) -> tuple[Task, counts.Counts]:
    draw = np.random.default_rng(seed)
    gold = (draw.random(records) < 0.3).astype(int)
    odds = draw.normal(2.0 * gold - 1.0, 1.5)
    z = torch.tensor(np.stack([-odds / 2, odds / 2], axis=1)).float()
    task = Classification("classification", ("no", "yes"))
    return task, task.counts([z], [{"labels": torch.tensor(gold)}])


def tagged(labels: np.ndarray) -> Batch:
    ids = torch.tensor(labels)
    return {"labels": ids, "words": torch.arange(ids.shape[1]).expand_as(ids)}


@pytest.mark.parametrize("shift", [0.0, 1000.0, 3e5])  # far from 0, float32 alone would not do
def test_scores_are_those_of_scipy(shift: float) -> None:
    draw = np.random.default_rng(0)
    gold = (draw.uniform(0, 5, 200) + shift).astype(np.float32)
    guessed = (gold + draw.normal(0, 2, 200)).astype(np.float32)
    task = Regression("regression", score_range=(shift, shift + 5))
    parts = [
        task.counts([torch.tensor(guessed[i])[:, None]], [{"labels": torch.tensor(gold[i])}])
        for i in np.split(np.arange(200), [0, 3, 90])
    ]
    found = pooled(task, parts)
    rates, (low, high) = task.rates(found), task.bounds(found)["spearman"]
    x, y = gold.astype(float), guessed.astype(float)
    assert rates["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)
    assert rates["mse"] == pytest.approx(reference.mean_squared_error(x, y), rel=1e-9)
    bins = [bin_of(side - shift - 2.5, 2.5, GRID) for side in (x, y)]
    assert rates["spearman"] == pytest.approx(stats.spearmanr(*bins).statistic, abs=1e-12)
    assert low <= stats.spearmanr(x, y).statistic <= high
    assert rates["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic, abs=0.02)
    intervals = task.intervals(found)
    expected = stats.pearsonr(x, y).confidence_interval()
    assert intervals["pearson"] == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_constant_has_no_correlation() -> None:
    gold = torch.linspace(0, 5, 200)
    task = Regression("regression")
    found = task.counts([torch.full((200, 1), 3.3)], [{"labels": gold}])
    assert task.rates(pooled(task, [found]))["pearson"] == 0.0


@pytest.mark.parametrize("by_label", [True, False])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_tasks_counts_add_up(kind: Kind, by_label: bool) -> None:
    """Split over hospitals, one of which has nothing: what follows is what all records give."""
    examples = make(CORPUS[kind], parties=1, seed=0, size=24)[0].train
    task = make_task(TaskSettings(kind=kind, max_length=32), examples)
    encoded = task.encode(examples, tiny_tokenizer(["patient"]))
    batches = list(encoded.batches(4))
    torch.manual_seed(0)
    width = {"ner": len(task.labels), "completion": 999}.get(kind, task.outputs_per_row)
    raw = [torch.randn(*shape_of(kind, batch), width) for batch in batches]
    raw = [z.squeeze(-1) for z in raw] if kind == "ranking" else raw
    logits = [task.kept(z, batch) for z, batch in zip(raw, batches, strict=True)]
    every = [task.counts(logits[a:b], batches[a:b], by_label=by_label) for a, b in PARTS]
    found = pooled(task, every)
    rates, whole = task.pooled([found]), task.score(logits, batches)
    same = rates.keys() & whole.keys()
    assert {n: rates[n] for n in same} == pytest.approx({n: whole[n] for n in same}, abs=1e-6)
    assert task.metric in rates and (not by_label or kind == "regression" or whole.keys() == same)
    losses = [task.loss(z, b, reduction="none") for z, b in zip(raw, batches, strict=True)]
    assert rates["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-6)
    sure = task.intervals(found)
    varied = 0 < rates[task.metric] < 1 or kind == "regression"
    assert task.metric in sure or not varied or (kind == "ner" and not by_label)
    assert all(low - 1e-9 <= rates[name] <= high + 1e-9 for name, (low, high) in sure.items())


def shape_of(kind: Kind, batch: Any) -> tuple[int, ...]:
    """Of a batch's logits, but for the classes."""
    if kind in ("ner", "completion"):
        return tuple(batch["labels"].shape)
    return tuple(batch["candidates"].shape) if kind == "ranking" else (len(batch["labels"]),)
