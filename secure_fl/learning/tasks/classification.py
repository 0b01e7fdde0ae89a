"""Classification of texts and of pairs of texts.

A record contributes to the confusion matrix, to bins of its classes' log-odds, and to bins of its
confidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError
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
    BINS,
    CONFIDENCE_BINS,
    Interval,
    calibration,
    delta,
    odds_bin,
    outcome_rates,
    outcomes_of,
    separation,
    separation_bounds,
    span_rates,
    wilson,
)
from secure_fl.learning.noised_counts import NOISE, noised_intervals, noised_rates
from secure_fl.learning.tasks.batches import Batch
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
from secure_fl.learning.tasks.token_table import (
    Table,
    TokenTable,
    WindowLayout,
    WindowTable,
    token_columns,
    tokenise,
    window_table,
)

Array: TypeAlias = NDArray[Any]

WEIGHTS = "weights"  # of a batch's records in the loss
MAX_SCORED = 30  # classes with scores in bins: 128 numbers each, in every round
SURE = "sure"  # correct records by bins of confidence, then wrong ones
CONFIDENCE = "confidence"  # its sum in each of these bins


@dataclass(frozen=True)
class Classification(Task):
    """One label per text, or per pair of texts (kind "pair")."""

    @property
    def metric(self) -> str:
        """F1 of the positive class where one is named, else accuracy."""
        return "f1" if self.positive is not None else "accuracy"

    @property
    def scored_class(self) -> str:
        """The class of precision, recall and F1: the positive one, else the last label."""
        return self.positive or self.labels[-1]

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Table:
        """Tokenise every text, and number its label."""
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
        """Cross-entropy, times the records' weights if they have some."""
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
        """The likeliest label of each text."""
        return [self.labels[index] for index in logits.argmax(-1).tolist()]

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Cells of the confusion matrix, and bins of scores and of confidence."""
        classes = len(self.labels)
        gold = joined(batch["labels"].cpu() for batch in batches).astype(np.int64)
        z = joined(logits, classes)
        predicted = z.argmax(-1)
        if not by_label:
            return {ALL: Contributions.of_cells((gold != predicted).astype(np.int64), 2)}
        names = dict(enumerate(self.labels))
        if classes > MAX_CROSSED:
            rows = {name: outcome_rows(gold == k, predicted == k) for k, name in names.items()}
            matrix = by_name(rows, by_label=True)
        else:
            matrix = {
                TRULY + name: matrix_row(gold, predicted, k, classes) for k, name in names.items()
            }
        separated = self.separated if classes <= MAX_SCORED else ()
        return {
            **matrix,
            **{SCORED + name: scored(gold, z, self.labels.index(name)) for name in separated},
            **confidences(gold, predicted, z),
        }

    @property
    def separated(self) -> tuple[str, ...]:
        """The classes whose scores are compared with the others': of two, the positive one."""
        return self.labels if len(self.labels) > 2 else (self.scored_class,)

    def rates(self, counts: Counts) -> dict[str, float]:
        """Accuracy (also micro-F1), macro-F1, MCC, and precision, recall and F1 of one class.

        The one class is the positive one (default: the last label). Metrics of scores in bins are
        means over classes. Counts over different label sets give only the accuracy.
        """
        if ALL in counts:
            return {"accuracy": span_rates(np.append(counts[ALL], 0))["precision"]}
        if NOISE in counts:
            return noised_rates(counts, *self._noised(counts))
        outcomes = self.outcomes_of(counts)
        rates = {}
        if outcomes is not None:
            rates = outcome_rates(outcomes, self.labels.index(self.scored_class))
        if SURE in counts:
            rates |= calibration(counts[SURE], counts[CONFIDENCE])
        return rates | mean_separation(counts)

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Wilson's for proportions; the delta method's for others, except calibration."""
        if ALL in counts:
            right = wilson(counts[ALL][0], counts[ALL].sum())
            return {} if right is None else {"accuracy": right}
        if NOISE in counts:
            return noised_intervals(counts, *self._noised(counts))
        outcomes = self.outcomes_of(counts)
        if outcomes is None:
            return {}
        hits, false, missed = outcomes[self.labels.index(self.scored_class)]
        proportions = {
            "accuracy": wilson(outcomes[:, 0].sum(), outcomes[:, [0, 2]].sum()),
            "precision": wilson(hits, hits + false),
            "recall": wilson(hits, hits + missed),
        }
        intervals = {name: value for name, value in proportions.items() if value is not None}
        cells = {name: counts[name] for name in counts if name.startswith((TRULY, ROW))}
        bins = {name: counts[name] for name in separable(counts)}
        intervals |= delta(self.rates, cells, ["f1", "macro_f1"])
        intervals |= delta(self.rates, cells, ["mcc"], within=(-1.0, 1.0))
        return intervals | delta(self.rates, bins, ["auroc", "average_precision"])

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """The bounds of AUROC and average precision."""
        return {} if NOISE in counts else mean_bounds(counts)

    def _noised(self, counts: Counts) -> tuple[tuple[str, ...], int, str | None]:
        """The classes, the index of the scored one, and the name of its log-odds, if any."""
        bins = SCORED + self.scored_class
        return self.labels, self.labels.index(self.scored_class), bins if bins in counts else None

    def outcomes_of(self, counts: Counts) -> Array | None:
        """[hits, false alarms, misses] of each class; None if counts of a class are missing."""
        for prefix in (TRULY, ROW):
            if all(prefix + name in counts for name in self.labels):
                rows = np.stack([counts[prefix + name] for name in self.labels])
                return outcomes_of(rows) if prefix == TRULY else rows
        return None

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """The likeliest label, those that reach the threshold, and every class's probability."""
        shares = (logits[0] / self.temperature).softmax(-1).tolist()
        chances = dict(zip(self.labels, shares, strict=True))
        answer = {"label": max(chances, key=chances.__getitem__), "probabilities": chances}
        if self.threshold is None:
            return answer
        return answer | {"labels": [n for n, p in chances.items() if p >= self.threshold]}


NAME_PAIRS = "name the column of the second text, or use kind 'classification'"
FILL_PAIRS = "other records have one: fill the column of second texts, or remove it"


def encode_texts(
    examples: Examples, tokenizer: Any, task: Task, layout: WindowLayout | None = None
) -> Table:
    """Tokenise texts, with their second texts if any has one; kind "pair" requires them.

    `layout`: the places of windows and of a prompt; default: as the task says.
    """
    kind = task.kind
    texts: list[str] = []
    pairs: list[str] = []
    paired = kind == "pair" or any(isinstance(e, Text) and e.pair is not None for e in examples)
    for row, example in enumerate(examples):
        note = expect(example, Text, row, kind)
        texts.append(note.text)
        if paired and note.pair is None:
            raise DataError(
                "the second text is missing",
                record=row + 1,
                field="pair",
                fix=NAME_PAIRS if kind == "pair" else FILL_PAIRS,
            )
        pairs.append(note.pair or "")
    if paired and (task.windows > 1 or layout is not None):
        raise DataError(
            "records have a second text, and pairs have no windows and no prompt",
            field="pair",
            fix="remove task.windows and task.prompt, or the column of second texts",
        )
    if not texts:
        empty = torch.zeros((0, 1), dtype=torch.int32)
        return TokenTable({"input_ids": empty}, torch.zeros(0, dtype=torch.long), {})
    if task.windows > 1 and layout is None:
        layout = WindowLayout.of(tokenizer, task)
    if layout is not None:
        pieces = tokenise(tokenizer, texts, None, layout.longest, beyond=True)
        table = window_table(layout, tokenizer, pieces, {})
        return table if task.windows > 1 else table.rows
    pieces = tokenise(tokenizer, texts, pairs if paired else None, task.max_length)
    return TokenTable(*token_columns(pieces, tokenizer), {})


def label_name(example: Example) -> str:
    """A class as text: a label column of integers may have been read as floats."""
    label = example.label if isinstance(example, Text) else None
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return "" if label is None else str(label)


def class_labels(examples: Examples) -> tuple[str, ...]:
    """The labels that occur, sorted."""
    names = set()
    for row, example in enumerate(examples):
        expect(example, Text, row, "classification")
        names.add(label_name(example))
    return tuple(sorted(names - {""}))


def joined(tensors: Iterable[Tensor], width: int | None = None) -> Array:
    """Concatenate batches to one array, which is empty without batches."""
    empty = torch.zeros(0) if width is None else torch.zeros(0, width)
    return torch.cat([empty, *(tensor.double() for tensor in tensors)]).numpy()


def matrix_row(gold: Array, predicted: Array, label: int, classes: int) -> Contributions:
    """The predictions for the records of a class."""
    (records,) = np.nonzero(gold == label)
    ones = np.ones(len(records), np.int64)
    return Contributions(len(gold), classes, records, predicted[records], ones)


def outcome_rows(actual: Array, predicted: Array) -> Contributions:
    """Hits, false alarms and misses of a class, of the records that have it and that get it."""
    (record,) = np.nonzero(actual | predicted)
    place = np.where(~actual, 1, np.where(predicted, 0, 2))[record]
    return Contributions(len(actual), 3, record, place, np.ones(len(record), np.int64))


def separable(counts: Counts) -> list[str]:
    """The histograms that contain records of their class and other records."""
    names = [name for name in counts if name.startswith(SCORED)]
    return [n for n in names if counts[n][:BINS].sum() and counts[n][BINS:].sum()]


def mean_separation(counts: Counts) -> dict[str, float]:
    """The means of AUROC and of average precision over classes."""
    scores = [separation(counts[name]) for name in separable(counts)]
    return {name: fmean(score[name] for score in scores) for name in scores[0]} if scores else {}


def mean_bounds(counts: Counts) -> dict[str, Interval]:
    """The bounds of `mean_separation`."""
    bounds = [separation_bounds(counts[name]) for name in separable(counts)]
    return {
        name: (fmean(each[name][0] for each in bounds), fmean(each[name][1] for each in bounds))
        for name in (bounds[0] if bounds else ())
    }


def scored(gold: Array, z: Array, label: int) -> Contributions:
    """Bins of a class's log-odds."""
    others = np.delete(z, label, axis=1)
    odds = z[:, label] - np.logaddexp.reduce(others, axis=1)
    return Contributions.of_cells(odds_bin(odds) + BINS * (gold != label), 2 * BINS)


def confidences(gold: Array, predicted: Array, z: Array) -> Rows:
    """Bins of the likeliest class's probability, of correct and of wrong records."""
    every = np.arange(len(gold))
    likely = np.exp(z[every, predicted] - np.logaddexp.reduce(z, axis=1))
    at = np.clip((likely * CONFIDENCE_BINS).astype(np.int64), 0, CONFIDENCE_BINS - 1)
    return {
        SURE: Contributions.of_cells(
            at + CONFIDENCE_BINS * (gold != predicted), 2 * CONFIDENCE_BINS
        ),
        CONFIDENCE: Contributions(len(gold), CONFIDENCE_BINS, every, at, likely),
    }
