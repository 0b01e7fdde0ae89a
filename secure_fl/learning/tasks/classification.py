"""Classification of texts and of pairs of texts.

Metrics follow from counts that add up over hospitals. `class_counts` lists their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.learning.metric_counts import (
    ALL,
    MAX_CROSSED,
    ROW,
    SCORED,
    TRULY,
    Contributions,
    Counts,
    by_name,
)
from secure_fl.learning.metrics import (
    Interval,
    calibration,
    delta,
    outcome_rates,
    outcomes_of,
    wilson,
    wilson_f1,
)
from secure_fl.learning.noised_counts import NOISE, noised_intervals, noised_rates
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.class_counts import (
    CONFIDENCE_CELLS,
    CONFIDENCE_SUMS,
    MAX_SCORED,
    Array,
    confidence_histogram,
    joined,
    matrix_row,
    mean_bounds,
    mean_separation,
    odds_histogram,
    outcome_rows,
    separable,
)
from secure_fl.learning.tasks.task import (
    Batches,
    Encoded,
    Examples,
    Logits,
    Reduction,
    Rows,
    Task,
    expect,
    wrong_label,
)
from secure_fl.learning.tasks.token_table import Table, TokenTable, WindowTable, encode_texts

WEIGHTS = "weights"  # of a batch's records in the loss


@dataclass(frozen=True)
class Classification(Task):
    """One label per text, or per pair of texts (kind "pair")."""

    @property
    def metric(self) -> str:
        """The metric that chooses models: "f1" if a positive class is named, else "accuracy"."""
        return "f1" if self.positive is not None else "accuracy"

    @property
    def scored_class(self) -> str:
        """The class of precision, recall and F1: the positive one, else the last label."""
        return self.positive or self.labels[-1]

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Table:
        """Tokenise every text, and add the number of its label."""
        table = encode_texts(examples, tokenizer, self)
        return self.numbered(table, examples) if labelled else table

    def numbered(self, table: Table, examples: Examples) -> Table:
        """Add the number of each record's label."""
        return table.with_values(labels=torch.tensor(self._numbers(examples)))

    def check_labels(self, examples: Examples) -> None:
        """Refuse a record without one of the task's labels."""
        for row, example in enumerate(examples):
            expect(example, Text, row, self.kind)
        self._numbers(examples)

    def _numbers(self, examples: Examples) -> list[int]:
        ids = {label: index for index, label in enumerate(self.labels)}
        names = [label_name(example) for example in examples]
        wrong = next((row for row, name in enumerate(names) if name not in ids), None)
        if wrong is not None:
            raise wrong_label(wrong, "label", self.labels, missing=not names[wrong])
        return [ids[name] for name in names]

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Compute the cross-entropy, times the records' weights if they have some."""
        losses = F.cross_entropy(logits.float(), batch["labels"], reduction="none")
        if WEIGHTS in batch:
            losses = losses * batch[WEIGHTS]
        return losses if reduction == "none" else losses.mean()

    def balanced(self, encoded: Encoded) -> Table:
        """Weigh each record by n/(C·n_c): its class c has n_c of n records, and C classes occur."""
        assert isinstance(encoded, TokenTable | WindowTable)  # noqa: S101 - for the type checker
        labels = encoded.values["labels"]
        counts = labels.bincount(minlength=len(self.labels))
        weights = len(labels) / (int((counts > 0).sum()) * counts.clamp(min=1))
        return encoded.with_values(**{WEIGHTS: weights[labels].float()})

    def decode(self, logits: Tensor, batch: Batch) -> list[str]:
        """Return the likeliest label of each text."""
        return [self.labels[index] for index in logits.argmax(-1).tolist()]

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Return each record's contribution to the counts that `class_counts` lists."""
        classes = len(self.labels)
        gold = joined(batch["labels"].cpu() for batch in batches).astype(np.int64)
        scores = joined(logits, classes)
        predicted = scores.argmax(-1)
        if not by_label:
            return {ALL: Contributions.of_cells((gold != predicted).astype(np.int64), 2)}
        names = dict(enumerate(self.labels))
        if classes > MAX_CROSSED:
            outcomes = {name: outcome_rows(gold == k, predicted == k) for k, name in names.items()}
            matrix = by_name(outcomes, by_label=True)
        else:
            matrix = {
                TRULY + name: matrix_row(gold, predicted, k, classes) for k, name in names.items()
            }
        separated = self.separated if classes <= MAX_SCORED else ()
        histograms = {
            SCORED + name: odds_histogram(gold, scores, self.labels.index(name))
            for name in separated
        }
        return {**matrix, **histograms, **confidence_histogram(gold, predicted, scores)}

    @property
    def separated(self) -> tuple[str, ...]:
        """The classes whose scores are compared with the others': of two, the positive one."""
        return self.labels if len(self.labels) > 2 else (self.scored_class,)

    def rates(self, counts: Counts) -> dict[str, float]:
        """Compute accuracy (also micro-F1), macro-F1, MCC, and precision, recall, F1 of one class.

        The one class is the positive one (default: the last label). Metrics of scores in bins are
        means over classes. Counts over different label sets give only the accuracy.
        """
        if ALL in counts:
            right, wrong = counts[ALL]
            return {"accuracy": float(right / (right + wrong)) if right + wrong > 0 else 0.0}
        if NOISE in counts:
            return noised_rates(counts, *self._noised(counts))
        outcomes = self._outcomes(counts)
        rates = {}
        if outcomes is not None:
            rates = outcome_rates(outcomes, self.labels.index(self.scored_class))
        if CONFIDENCE_CELLS in counts:
            rates |= calibration(counts[CONFIDENCE_CELLS], counts[CONFIDENCE_SUMS])
        return rates | mean_separation(counts)

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Compute 95 % intervals: Wilson's of proportions, the delta method's of other metrics.

        The calibration error has none.
        """
        if ALL in counts:
            accuracy = wilson(counts[ALL][0], counts[ALL].sum())
            return {} if accuracy is None else {"accuracy": accuracy}
        if NOISE in counts:
            return noised_intervals(counts, *self._noised(counts))
        outcomes = self._outcomes(counts)
        if outcomes is None:
            return {}
        hits, false_alarms, misses = outcomes[self.labels.index(self.scored_class)]
        proportions = {
            "accuracy": wilson(outcomes[:, 0].sum(), outcomes[:, [0, 2]].sum()),
            "precision": wilson(hits, hits + false_alarms),
            "recall": wilson(hits, hits + misses),
            "f1": wilson_f1(hits, false_alarms, misses),
        }
        intervals = {name: value for name, value in proportions.items() if value is not None}
        cells = {name: counts[name] for name in counts if name.startswith((TRULY, ROW))}
        bins = {name: counts[name] for name in separable(counts)}
        intervals |= delta(self.rates, cells, ["f1", "macro_f1"])
        intervals |= delta(self.rates, cells, ["mcc"], within=(-1.0, 1.0))
        return intervals | delta(self.rates, bins, ["auroc", "average_precision"])

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """Compute the bounds of AUROC and average precision of the scores themselves."""
        return {} if NOISE in counts else mean_bounds(counts)

    def _noised(self, counts: Counts) -> tuple[tuple[str, ...], int, str | None]:
        """Return the classes, the index of the scored one, and the name of its log-odds, if any."""
        odds = SCORED + self.scored_class
        return self.labels, self.labels.index(self.scored_class), odds if odds in counts else None

    def _outcomes(self, counts: Counts) -> Array | None:
        """Return [hits, false alarms, misses] of each class; None if a class has no counts."""
        for prefix in (TRULY, ROW):
            if all(prefix + name in counts for name in self.labels):
                rows = np.stack([counts[prefix + name] for name in self.labels])
                return outcomes_of(rows) if prefix == TRULY else rows
        return None

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Return the likeliest label, those that reach the threshold, and all probabilities."""
        shares = (logits[0] / self.temperature).softmax(-1).tolist()
        chances = dict(zip(self.labels, shares, strict=True))
        answer = {"label": max(chances, key=chances.__getitem__), "probabilities": chances}
        if self.threshold is None:
            return answer
        return answer | {"labels": [n for n, p in chances.items() if p >= self.threshold]}


def label_name(example: Example) -> str:
    """Return a class as text: a label column of integers may have been read as floats."""
    label = example.label if isinstance(example, Text) else None
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return "" if label is None else str(label)


def class_labels(examples: Examples) -> tuple[str, ...]:
    """List the labels that occur, sorted."""
    names = set()
    for row, example in enumerate(examples):
        expect(example, Text, row, "classification")
        names.add(label_name(example))
    return tuple(sorted(names - {""}))
