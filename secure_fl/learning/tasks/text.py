"""Classification of texts and of pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError
from secure_fl.learning import metrics
from secure_fl.learning.counts import ALL, ROW, TRULY, Counts, Rows, by_name
from secure_fl.learning.intervals import Interval, delta, wilson
from secure_fl.learning.rates import (
    BINS,
    calibration,
    class_rates,
    extremes,
    outcome_rates,
    outcomes_of,
    separation,
    span_rates,
)
from secure_fl.learning.tasks.base import Batch, Encoded, Reduction, Task, expect, wrong_label
from secure_fl.learning.tasks.binned import (
    CONFIDENCE,
    MOST_CROSSED,
    MOST_SCORED,
    SCORED,
    SURE,
    joined,
    outcome_rows,
    scored,
    sureness,
    taken,
)
from secure_fl.learning.tasks.table import Table, token_columns, tokenise

WEIGHTS = "weights"  # of a batch's records in the loss


@dataclass(frozen=True)
class Classification(Task):
    """One label per text, or per pair of texts (kind "pair")."""

    @property
    def metric(self) -> str:
        """F1 of the positive class where one is named, else accuracy."""
        return "f1" if self.positive is not None else "accuracy"

    def encode(
        self, examples: Sequence[Example], tokenizer: Any, *, labelled: bool = True
    ) -> Table:
        """Tokens of every text, and its label's id."""
        table = encode_texts(examples, tokenizer, self.kind, self.max_length)
        if not labelled:
            return table
        ids = {label: index for index, label in enumerate(self.labels)}
        found = [ids.get(label_name(example), -1) for example in examples]
        if -1 in found:
            raise wrong_label(found.index(-1), "label", self.labels)
        return Table(table.tokens, table.lengths, {"labels": torch.tensor(found)})

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Cross-entropy, by the records' weights where they have some."""
        losses = F.cross_entropy(logits.float(), batch["labels"], reduction="none")
        if WEIGHTS in batch:
            losses = losses * batch[WEIGHTS]
        return losses if reduction == "none" else losses.mean()

    def balanced(self, encoded: Encoded) -> Table:
        """Weigh each record by n/(C·n_c): its class c has n_c of n records, and C classes occur."""
        assert isinstance(encoded, Table)  # noqa: S101 - for the type checker
        labels = encoded.values["labels"]
        counts = labels.bincount(minlength=len(self.labels))
        each = len(labels) / (int((counts > 0).sum()) * counts.clamp(min=1))
        return Table(
            encoded.tokens, encoded.lengths, {**encoded.values, WEIGHTS: each[labels].float()}
        )

    def decode(self, logits: Tensor, batch: Batch) -> list[str]:
        """Return the likeliest label of each text."""
        return [self.labels[index] for index in logits.argmax(-1).tolist()]

    def score(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, float]:
        """Accuracy, macro-F1, F1 of the positive class (default: the last) and MCC."""
        gold = torch.cat([batch["labels"] for batch in batches]).numpy()
        predicted = torch.cat([z.argmax(-1) for z in logits]).numpy()
        positive = self.labels.index(self.positive or self.labels[-1])
        return {
            "accuracy": metrics.accuracy(gold, predicted),
            "macro_f1": metrics.macro_f1(gold, predicted),
            "f1": metrics.f1_positive(gold, predicted, positive),
            "mcc": metrics.mcc(gold, predicted),
        }

    def added(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> dict[str, Rows]:
        """What each class is taken for, and where its records and the others' have their scores."""
        classes = len(self.labels)
        gold = joined(batch["labels"].cpu() for batch in batches).astype(np.int64)
        z = joined(logits, classes)
        guessed = z.argmax(-1)
        if not by_label:
            return {ALL: Rows.of_cells((gold != guessed).astype(np.int64), 2)}
        if classes > MOST_CROSSED:
            table = enumerate(self.labels)
            found = by_name({n: outcome_rows(gold, guessed, k) for k, n in table}, by_label=True)
        else:
            found = {TRULY + n: taken(gold, guessed, k, classes) for k, n in enumerate(self.labels)}
        apart = self.separated if classes <= MOST_SCORED else ()
        return {
            **found,
            **{SCORED + n: scored(gold, z, self.labels.index(n)) for n in apart},
            **sureness(gold, guessed, z),
        }

    @property
    def separated(self) -> tuple[str, ...]:
        """The classes that are told from the others by their scores: of two, the positive one."""
        return self.labels if len(self.labels) > 2 else (self.positive or self.labels[-1],)

    def rates(self, counts: Counts) -> dict[str, float]:
        """As `score`, with what follows from scores in bins; of all classes alike: their mean.

        Accuracy is also micro-F1. It is all that follows from counts over label sets that differ.
        """
        if ALL in counts:
            return {"accuracy": span_rates(np.append(counts[ALL], 0))["precision"]}
        found: dict[str, float] = {}
        positive = self.labels.index(self.positive or self.labels[-1])
        rows = [counts[TRULY + name] for name in self.labels if TRULY + name in counts]
        if len(rows) == len(self.labels):
            found |= class_rates(np.stack(rows), positive)
        rows = [counts[ROW + name] for name in self.labels if ROW + name in counts]
        if len(rows) == len(self.labels):
            found |= outcome_rates(np.stack(rows), positive)
        if SURE in counts:
            found |= calibration(counts[SURE], counts[CONFIDENCE])
        apart = [separation(counts[name]) for name in self._told_apart(counts)]
        return found | ({name: fmean(a[name] for a in apart) for name in apart[0]} if apart else {})

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Wilson's of proportions; others by the delta method over cells; of calibration none."""
        if ALL in counts:
            right = wilson(counts[ALL][0], counts[ALL].sum())
            return {} if right is None else {"accuracy": right}
        table = self.outcomes_of(counts)
        if table is None:
            return {}
        hits, false, missed = table[self.labels.index(self.positive or self.labels[-1])]
        shares = {
            "accuracy": wilson(table[:, 0].sum(), table[:, [0, 2]].sum()),
            "precision": wilson(hits, hits + false),
            "recall": wilson(hits, hits + missed),
        }
        found = {name: interval for name, interval in shares.items() if interval is not None}
        cells = {n: counts[n] for n in counts if n.startswith((TRULY, ROW))}
        apart = {name: counts[name] for name in self._told_apart(counts)}
        found |= delta(self.rates, cells, ["f1", "macro_f1"])
        found |= delta(self.rates, cells, ["mcc"], within=(-1.0, 1.0))
        return found | delta(self.rates, apart, ["auroc", "average_precision"])

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """Of AUROC and average precision."""
        found = [extremes(counts[name]) for name in self._told_apart(counts)]
        return {
            name: (fmean(one[name][0] for one in found), fmean(one[name][1] for one in found))
            for name in (found[0] if found else ())
        }

    def outcomes_of(self, counts: Counts) -> NDArray[Any] | None:
        """[hits, false alarms, missed] of each class; None where label sets differ."""
        if all(TRULY + name in counts for name in self.labels):
            return outcomes_of(np.stack([counts[TRULY + name] for name in self.labels]))
        if all(ROW + name in counts for name in self.labels):
            return np.stack([counts[ROW + name] for name in self.labels])
        return None

    def _told_apart(self, counts: Counts) -> list[str]:
        """The histograms that hold both records of their class and others."""
        found = [name for name in counts if name.startswith(SCORED)]
        return [n for n in found if counts[n][:BINS].sum() and counts[n][BINS:].sum()]

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Return the label and every class's probability."""
        chances = dict(zip(self.labels, logits[0].softmax(-1).tolist(), strict=True))
        return {"label": max(chances, key=chances.__getitem__), "probabilities": chances}


def encode_texts(examples: Sequence[Example], tokenizer: Any, kind: str, max_length: int) -> Table:
    """Tokenise texts, with their pairs where the data has them (kind "pair": it must)."""
    texts: list[str] = []
    pairs: list[str] = []
    paired = kind == "pair" or any(isinstance(e, Text) and e.pair is not None for e in examples)
    for row, example in enumerate(examples):
        expect(example, Text, row, kind)
        assert isinstance(example, Text)  # noqa: S101 - for the type checker
        texts.append(example.text)
        if paired and example.pair is None:
            raise DataError(
                "the second text is missing",
                row=row,
                field="pair",
                fix="name the column of the second text, or use kind 'classification'",
            )
        pairs.append(example.pair or "")
    if not texts:
        empty = torch.zeros((0, 1), dtype=torch.int32)
        return Table({"input_ids": empty}, torch.zeros(0, dtype=torch.long), {})
    columns, lengths = token_columns(
        tokenise(tokenizer, texts, pairs if paired else None, max_length), tokenizer
    )
    return Table(columns, lengths, {})


def label_name(example: Example) -> str:
    """Return a class as text: a label column of whole numbers may have been read as floats."""
    label = example.label if isinstance(example, Text) else None
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return "" if label is None else str(label)


def class_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the labels that occur, sorted."""
    names = set()
    for row, example in enumerate(examples):
        expect(example, Text, row, "classification")
        names.add(label_name(example))
    return tuple(sorted(names - {""}))
