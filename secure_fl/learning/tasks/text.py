"""Classification of texts and of pairs of texts, and regression on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError
from secure_fl.learning import metrics
from secure_fl.learning.counts import (
    Counts,
    class_rates,
    of_classes,
    of_scores,
    rows_of,
    score_rates,
    span_rates,
    table_of,
)
from secure_fl.learning.tasks.base import Batch, Encoded, Reduction, Task, expect, wrong_label
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

    def tally(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> Counts:
        """Hits, guesses and truths of each class."""
        none = torch.zeros(0, dtype=torch.long)
        gold = torch.cat([none, *(batch["labels"].cpu() for batch in batches)]).numpy()
        predicted = torch.cat([none, *(z.argmax(-1) for z in logits)]).numpy()
        table = of_classes(gold, predicted, len(self.labels))
        return rows_of(table, self.labels, by_label=by_label)

    def rates(self, counts: Counts) -> dict[str, float]:
        """As `score`; accuracy alone of counts over label sets that differ."""
        table = table_of(counts)
        if len(table) != len(self.labels):
            return {"accuracy": span_rates(table.sum(0))["recall"]}
        return class_rates(table, self.labels.index(self.positive or self.labels[-1]))

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Return the label and every class's probability."""
        chances = dict(zip(self.labels, logits[0].softmax(-1).tolist(), strict=True))
        return {"label": max(chances, key=chances.__getitem__), "probabilities": chances}


@dataclass(frozen=True)
class Regression(Task):
    """One score per text or pair (STS-B)."""

    @property
    def metric(self) -> str:
        """Pearson's correlation."""
        return "pearson"

    def encode(
        self, examples: Sequence[Example], tokenizer: Any, *, labelled: bool = True
    ) -> Table:
        """Tokens of every text, and its score."""
        table = encode_texts(examples, tokenizer, self.kind, self.max_length)
        if not labelled:
            return table
        found = [score_of(example, row) for row, example in enumerate(examples)]
        return Table(table.tokens, table.lengths, {"labels": torch.tensor(found).float()})

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Squared error."""
        return F.mse_loss(logits.float().squeeze(-1), batch["labels"], reduction=reduction)

    def decode(self, logits: Tensor, batch: Batch) -> list[float]:
        """Return the score of each text."""
        scores: list[float] = logits.float().squeeze(-1).tolist()
        return scores

    def score(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, float]:
        """Pearson and Spearman correlation."""
        gold = torch.cat([batch["labels"] for batch in batches]).numpy()
        predicted = torch.cat([z.squeeze(-1) for z in logits]).numpy()
        return {
            "pearson": metrics.pearson(gold, predicted),
            "spearman": metrics.spearman(gold, predicted),
        }

    def tally(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> Counts:
        """Moments of scores and guesses."""
        none = torch.zeros(0)
        gold = torch.cat([none, *(batch["labels"].cpu() for batch in batches)]).numpy()
        predicted = torch.cat([none, *(z.squeeze(-1) for z in logits)]).numpy()
        return {"moments": of_scores(gold, predicted)}

    def rates(self, counts: Counts) -> dict[str, float]:
        """Pearson's correlation; ranks do not follow from sums."""
        return score_rates(counts["moments"])

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Return the score."""
        return {"score": float(logits[0, 0])}


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


def score_of(example: Example, row: int) -> float:
    """Return a finite score."""
    label = example.label if isinstance(example, Text) else None
    try:
        value = float("nan" if label is None else label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            "the score is missing or is not a finite number",
            row=row,
            field="label",
            fix="give every example a number, or use kind 'classification'",
        ) from None
    return value


def class_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the labels that occur, sorted."""
    names = set()
    for row, example in enumerate(examples):
        expect(example, Text, row, "classification")
        names.add(label_name(example))
    return tuple(sorted(names - {""}))
