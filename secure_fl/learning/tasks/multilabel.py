"""Zero or more labels per text, as in the coding of diagnoses.

Every label is a decision of its own, with a probability of its own. A record contributes to its
sums of hits, false alarms and misses over all labels, to these counts of each label, to bins of the
labels' log-odds, and to the number of right labels among the likeliest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError
from secure_fl.learning.metric_counts import ROW, SCORED, Contributions, Counts, by_name, products
from secure_fl.learning.metrics import (
    BINS,
    NO_WIDTH,
    Interval,
    Slopes,
    Z,
    delta,
    odds_bin,
    separation,
    slopes,
    span_rates,
)
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.class_counts import (
    MAX_SCORED,
    Array,
    joined,
    mean_bounds,
    mean_separation,
    outcome_rows,
    separable,
)
from secure_fl.learning.tasks.task import (
    Batches,
    Examples,
    Logits,
    Reduction,
    Rows,
    Task,
    expect,
    wrong_label,
)
from secure_fl.learning.tasks.token_table import Table, encode_texts

OUTCOMES = "outcomes"  # [hits, false alarms, misses] over all labels
SQUARES = "squares"  # the sums of products of a record's outcomes
FIRST = "first "  # before k: records by how many of their k likeliest labels are right
DEPTHS = (1, 5)  # k of precision at k; the task has more labels than this
MICRO = "micro_"  # before a metric over all decisions
OF_LABEL = "f1/"  # before a label


@dataclass(frozen=True)
class MultiLabel(Task):
    """Zero or more labels per text."""

    exclusive: ClassVar[bool] = False
    metric: ClassVar[str] = "micro_f1"  # F1 over all decisions

    @property
    def decisions(self) -> int:
        """One for each label."""
        return len(self.labels)

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Table:
        """Tokenise every text, and mark its labels."""
        table = encode_texts(examples, tokenizer, self)
        return table.with_values(labels=self._truth(examples)) if labelled else table

    def check_labels(self, examples: Examples) -> None:
        """Refuse a record whose labels are missing or are not the task's."""
        self._truth(examples)

    def _truth(self, examples: Examples) -> Tensor:
        """Return a row of decisions for each record."""
        places = {label: place for place, label in enumerate(self.labels)}
        truth = torch.zeros(len(examples), len(self.labels), dtype=torch.bool)
        for row, example in enumerate(examples):
            for name in labels_at(example, row):
                if name not in places:
                    raise wrong_label(row, "label", self.labels)
                truth[row, places[name]] = True
        return truth

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """The sum over labels of the binary cross-entropy: minus the log-probability of all."""
        truth = batch["labels"].float()
        losses = F.binary_cross_entropy_with_logits(logits.float(), truth, reduction="none").sum(-1)
        return losses if reduction == "none" else losses.mean()

    def decode(self, logits: Tensor, batch: Batch) -> list[tuple[str, ...]]:
        """The labels of each text with a probability above 0.5."""
        rows = (logits > 0).cpu()
        return [tuple(self.labels[k] for k in row.nonzero().flatten().tolist()) for row in rows]

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Outcomes over all labels and of each, bins of scores, and hits of the likeliest."""
        width = len(self.labels)
        nothing = np.zeros((0, width), bool)
        actual = np.concatenate([nothing, *(batch["labels"].cpu().numpy() for batch in batches)])
        guessed = np.concatenate([nothing, *((z > 0).cpu().numpy() for z in logits)])
        counted = (actual & guessed, guessed & ~actual, actual & ~guessed)
        sums = np.stack([cells.sum(1) for cells in counted], axis=1).astype(float)
        parts = {OUTCOMES: Contributions.of_values(sums), SQUARES: products(sums)}
        if not by_label:
            return parts
        rows = {n: outcome_rows(actual[:, k], guessed[:, k]) for k, n in enumerate(self.labels)}
        scored = self.labels if width <= MAX_SCORED else ()
        odds = joined(logits, width) if scored else None
        return {
            **parts,
            **by_name(rows, by_label=True),
            **{FIRST + str(k): first_hits(logits, batches, k) for k in self.depths},
            **{
                SCORED + name: Contributions.of_cells(
                    odds_bin(odds[:, k]) + BINS * ~actual[:, k], 2 * BINS
                )
                for k, name in enumerate(scored)
                if odds is not None
            },
        }

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of likeliest labels whose precision is measured."""
        return tuple(k for k in DEPTHS if k < len(self.labels))

    def rates(self, counts: Counts) -> dict[str, float]:
        """Micro and macro F1, precision at k, and the means over labels of scores in bins.

        With at most 30 labels, also the F1 of each label that occurs. A label that no record has
        and the model never gives is not in macro F1.
        """
        rates: dict[str, float] = {}
        if OUTCOMES in counts:
            rates = {MICRO + name: x for name, x in span_rates(counts[OUTCOMES]).items()}
        rows = outcomes_by_label(counts)
        f1 = {name: span_rates(row)["f1"] for name, row in rows.items()}
        if rows:
            rates["macro_f1"] = float(np.mean([*f1.values()]))
        if len(self.labels) <= MAX_SCORED:
            rates |= {OF_LABEL + n: f1[n] for n, row in rows.items() if row[0] + row[2]}
        for k in self.depths:
            if FIRST + str(k) in counts and (cells := counts[FIRST + str(k)]).sum():
                rates[f"precision_at_{k}"] = float(cells @ np.arange(k + 1) / (k * cells.sum()))
        return rates | mean_separation(counts)

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """The delta method's over records; means over labels as if labels were independent."""
        sums = {name: counts[name] for name in (OUTCOMES, SQUARES)}
        names = [MICRO + name for name in ("precision", "recall", "f1")]
        intervals = delta(self.rates, sums, names, SQUARES, OUTCOMES)
        firsts = {name: counts[name] for name in counts if name.startswith(FIRST)}
        intervals |= delta(self.rates, firsts, [f"precision_at_{k}" for k in self.depths])
        rates = self.rates(counts)
        for name, slope in self._slopes_of_labels(counts).items():
            half = Z * float(np.sqrt(sum(counts[at] @ by**2 for at, by in slope.items())))
            if half > NO_WIDTH:
                intervals[name] = max(0.0, rates[name] - half), min(1.0, rates[name] + half)
        return intervals

    def slopes(self, counts: Counts) -> Slopes:
        """As of other tasks, but label by label: there may be thousands."""
        rest = {n: row for n, row in counts.items() if not n.startswith((ROW, SCORED))}
        return super().slopes(rest) | self._slopes_of_labels(counts)

    def _slopes_of_labels(self, counts: Counts) -> Slopes:
        """The derivatives of means over labels, and of each label's F1."""
        rows = {ROW + name: row for name, row in outcomes_by_label(counts).items()}
        bins = {name: counts[name] for name in separable(counts)}
        found = mean_slopes(span_rates, rows, {"f1": "macro_f1"})
        for name in self.rates(rows):
            if name.startswith(OF_LABEL):
                at = ROW + name.removeprefix(OF_LABEL)
                found[name] = {at: found["macro_f1"][at] * len(rows)}
        named = {name: name for name in ("auroc", "average_precision")}
        return found | mean_slopes(separation, bins, named)

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """The bounds of the means of AUROC and average precision."""
        return mean_bounds(counts)

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """The labels that reach the threshold (default: above 0.5), and all probabilities."""
        shares = (logits[0] / self.temperature).sigmoid().tolist()
        chances = dict(zip(self.labels, shares, strict=True))
        given = list(self.decode(logits, batch)[0])
        if self.threshold is not None:
            given = [name for name, p in chances.items() if p >= self.threshold]
        return {"labels": given, "probabilities": chances}


def labels_at(example: Example, row: int) -> tuple[str, ...]:
    """The labels of a record; refuse an unlabelled one, or one with a single class."""
    label = expect(example, Text, row, "multilabel").label
    if not isinstance(label, tuple):
        raise DataError(
            "the labels are missing, or they are not a list",
            record=row + 1,
            field="label",
            fix='give a list, as in ["I10", "E11"]; [] is a record without any label (in Python, '
            'tuples: Text(..., label=("I10", "E11")) or label=())',
        )
    return label


def occurring_labels(examples: Examples) -> tuple[str, ...]:
    """The labels that occur, sorted."""
    named = (labels_at(example, row) for row, example in enumerate(examples))
    return tuple(sorted(set(chain.from_iterable(named))))


def first_hits(logits: Logits, batches: Batches, k: int) -> Contributions:
    """Records by how many of their k likeliest labels are right."""
    hits = [
        batch["labels"].cpu().gather(-1, z.cpu().topk(k).indices).sum(-1)
        for z, batch in zip(logits, batches, strict=True)
    ]
    return Contributions.of_cells(joined(hits).astype(np.int64), k + 1)


def outcomes_by_label(counts: Counts) -> dict[str, Array]:
    """[hits, false alarms, misses] of the labels that a record has or gets."""
    rows = {name: row for name, row in counts.items() if name.startswith(ROW)}
    return {name.removeprefix(ROW): row for name, row in rows.items() if row.any()}


def mean_slopes(
    rates: Callable[[Array], Mapping[str, float]], rows: Counts, names: Mapping[str, str]
) -> Slopes:
    """The derivatives of means over labels of metrics that follow from each label's cells.

    `names`: each metric's name as a mean.
    """
    found: Slopes = {mean: {} for mean in names.values()} if rows else {}
    for at, row in rows.items():
        moved = slopes(lambda counts, at=at: rates(counts[at]), {at: row}, list(names))  # type: ignore[misc]
        for name, mean in names.items():
            found[mean][at] = moved[name][at] / len(rows)
    return found
