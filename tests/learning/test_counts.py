"""Metrics that follow from hospitals' counts are those of all their records together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2
from sklearn import metrics as reference

from secure_fl import TaskSettings
from secure_fl.corpora import make
from secure_fl.learning import counts
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.tasks import KINDS, make_task
from secure_fl.learning.tasks.ner import spans
from secure_fl.settings import Kind

CORPUS: dict[Kind, str] = {
    "classification": "ade",
    "pair": "pairs",
    "regression": "similarity",
    "ner": "ner",
    "ranking": "news",
    "completion": "summaries",
}


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("skew", [0.05, 1.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_classes_are_those_of_scikit_learn(classes: int, skew: float) -> None:
    for seed in range(5):
        draw = rng(seed)
        gold = draw.choice(classes, 300, p=draw.dirichlet([skew] * classes))
        guessed = np.where(draw.random(300) < 0.6, gold, draw.integers(0, classes, 300))
        hospitals = np.split(np.arange(300), [0, 2, 50])  # the first has none, the second two
        tables = [counts.of_classes(gold[i], guessed[i], classes) for i in hospitals]
        found = counts.class_rates(np.sum(tables, axis=0), positive=1)
        occurring = np.union1d(gold, guessed)
        macro = reference.f1_score(gold, guessed, labels=occurring, average="macro")
        one = reference.f1_score(gold == 1, guessed == 1, zero_division=0)
        assert found == pytest.approx(
            {
                "accuracy": reference.accuracy_score(gold, guessed),
                "macro_f1": macro,
                "f1": one,
                "mcc": reference.matthews_corrcoef(gold, guessed),
            },
            abs=1e-12,
        )


def test_entities_are_those_of_seqeval() -> None:
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]  # an I- may continue nothing
    for seed in range(5):
        draw = rng(seed)
        gold, guessed = ([list(draw.choice(tags, 12)) for _ in range(40)] for _ in range(2))
        parts = [slice(0, 1), slice(1, 30), slice(30, 40)]
        tables = [
            counts.of_spans(list(map(spans, gold[i])), list(map(spans, guessed[i])), ["A", "B"])
            for i in parts
        ]
        a, b = np.sum(tables, axis=0)
        report: Any = classification_report(
            gold, guessed, mode="strict", scheme=IOB2, output_dict=True, zero_division=0
        )
        assert counts.span_rates(a)["f1"] == pytest.approx(report["A"]["f1-score"], abs=1e-12)
        micro = counts.span_rates(a + b)
        row = report["micro avg"]
        assert [micro["precision"], micro["recall"], micro["f1"]] == pytest.approx(
            [row["precision"], row["recall"], row["f1-score"]], abs=1e-12
        )


def test_scores_are_those_of_scipy_and_a_constant_has_no_correlation() -> None:
    draw = rng(0)
    gold = draw.uniform(0, 5, 200)
    guessed = gold + draw.normal(0, 2, 200)
    moments = sum(counts.of_scores(gold[i], guessed[i]) for i in np.split(np.arange(200), [3, 90]))
    expected = stats.pearsonr(gold, guessed).statistic
    assert counts.score_rates(np.asarray(moments)) == pytest.approx({"pearson": expected})
    rounded = np.asarray(moments, np.float32).astype(float)  # as it travels
    assert counts.score_rates(rounded)["pearson"] == pytest.approx(expected, abs=1e-5)
    flat = counts.of_scores(gold, np.full(200, 3.3)).astype(np.float32).astype(float)
    assert counts.score_rates(flat) == {"pearson": 0.0}


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
    parts = [(0, 0), (0, 1), (1, 6)]
    every = [task.counts(logits[a:b], batches[a:b], by_label=by_label) for a, b in parts]
    assert len({tuple((n, len(v)) for n, v in found.items()) for found in every}) == 1
    assert all(len(numbers) <= 8 for found in every for numbers in found.values())
    pooled, whole = task.pooled(every), task.score(logits, batches)
    assert pooled.keys() - whole.keys() == {"loss"}
    assert {n: pooled[n] for n in pooled if n != "loss"} == pytest.approx(
        {n: whole[n] for n in pooled if n != "loss"}, abs=1e-6
    )
    assert by_label is False or kind == "regression" or pooled.keys() >= whole.keys()
    losses = [task.loss(z, b, reduction="none") for z, b in zip(raw, batches, strict=True)]
    assert pooled["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-6)


def shape_of(kind: Kind, batch: Any) -> tuple[int, ...]:
    """Of a batch's logits, but for the classes."""
    if kind in ("ner", "completion"):
        return tuple(batch["labels"].shape)
    return tuple(batch["candidates"].shape) if kind == "ranking" else (len(batch["labels"]),)
