"""Scores of texts, or of pairs of texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError
from secure_fl.learning.metric_counts import Contributions, Counts
from secure_fl.learning.metrics import (
    GRID,
    Interval,
    bin_of,
    delta,
    fisher,
    moments,
    of_squares,
    pearson_slope,
    rank_bounds,
    rank_rate,
    score_rates,
    spearman,
)
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.class_counts import joined
from secure_fl.learning.tasks.task import Batches, Examples, Logits, Reduction, Rows, Task
from secure_fl.learning.tasks.token_table import Table, encode_texts

MOMENTS = "moments"  # [n, Σx, Σy, Σx², Σy², Σxy] of scores x and predictions y, from the middle
RANKS = "ranks"  # records by the bins of both


@dataclass(frozen=True)
class Regression(Task):
    """One score per text or pair (STS-B)."""

    metric: ClassVar[str] = "pearson"
    score_range: tuple[float, float] | None = None  # the bins of ranks; moments are from its middle

    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Table:
        """Tokenise every text, with its score."""
        table = encode_texts(examples, tokenizer, self)
        if not labelled:
            return table
        return table.with_values(labels=torch.tensor(self._scores(examples)).float())

    def check_labels(self, examples: Examples) -> None:
        """Refuse a record without a score."""
        self._scores(examples)

    def _scores(self, examples: Examples) -> list[float]:
        return [score_of(example, row) for row, example in enumerate(examples)]

    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Squared error."""
        return F.mse_loss(logits.float().squeeze(-1), batch["labels"], reduction=reduction)

    def decode(self, logits: Tensor, batch: Batch) -> list[float]:
        """The score of each text."""
        scores: list[float] = logits.float().squeeze(-1).tolist()
        return scores

    def exact(self, logits: Logits, batches: Batches) -> dict[str, float]:
        """Spearman's correlation of the scores themselves."""
        gold = joined(batch["labels"].cpu() for batch in batches)
        return {"spearman": spearman(gold, joined(z.squeeze(-1) for z in logits))}

    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Moments of scores and predictions; with a range, the bins of both."""
        x = joined(batch["labels"].cpu() for batch in batches)
        y = joined(z.squeeze(-1) for z in logits)
        low, high = self.score_range or (0.0, 0.0)
        x, y = (values - (low + high) / 2 for values in (x, y))
        parts = {MOMENTS: Contributions.of_values(moments(x, y))}
        if self.score_range is not None:
            at, of = (bin_of(values, (high - low) / 2, GRID) for values in (x, y))
            parts[RANKS] = Contributions.of_cells(GRID * at + of, GRID * GRID)
        return parts

    def rates(self, counts: Counts) -> dict[str, float]:
        """Pearson's correlation and the mean squared error; with a range, Spearman's by bins."""
        rates = score_rates(counts[MOMENTS]) if MOMENTS in counts else {}
        return rates | (rank_rate(counts[RANKS]) if RANKS in counts else {})

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Fisher's z, that of normal residuals, and the delta method's over bins of ranks."""
        by_law: dict[str, Interval | None] = {}
        if MOMENTS in counts:
            n, rates = counts[MOMENTS][0], self.rates(counts)
            by_law = {"pearson": fisher(rates["pearson"], n), "mse": of_squares(rates["mse"], n)}
        intervals = {name: interval for name, interval in by_law.items() if interval is not None}
        ranks = {RANKS: counts[RANKS]} if RANKS in counts else {}
        return intervals | delta(self.rates, ranks, ["spearman"], within=(-1.0, 1.0))

    def closed_slopes(self, counts: Counts) -> dict[str, dict[str, NDArray[np.float64]]]:
        """The derivatives of Pearson's correlation."""
        return {"pearson": {MOMENTS: pearson_slope(counts[MOMENTS])}} if MOMENTS in counts else {}

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """The bounds of Spearman's correlation."""
        return {"spearman": rank_bounds(counts[RANKS])} if RANKS in counts else {}

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """The score."""
        return {"score": float(logits[0, 0])}


def score_of(example: Example, row: int) -> float:
    """The score of an example; refuse one that is missing or infinite."""
    label = example.label if isinstance(example, Text) else None
    try:
        value = float("nan" if label is None else label)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            "the score is missing or is not a finite number",
            record=row + 1,
            field="label",
            fix="give every example a number, or use kind 'classification'",
        ) from None
    return value
