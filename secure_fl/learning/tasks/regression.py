"""Scores of texts, or of pairs of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.data.examples import Example, Text
from secure_fl.errors import DataError
from secure_fl.learning import metrics
from secure_fl.learning.counts import Counts, Rows
from secure_fl.learning.intervals import Interval, delta, fisher, of_squares
from secure_fl.learning.rates import (
    GRID,
    bin_of,
    pearson_slope,
    rank_extremes,
    rank_rate,
    score_rates,
)
from secure_fl.learning.tasks.base import Batch, Reduction, Task
from secure_fl.learning.tasks.binned import joined
from secure_fl.learning.tasks.table import Table
from secure_fl.learning.tasks.text import encode_texts

MOMENTS = "moments"  # [n, Σx, Σy, Σx², Σy², Σxy] of scores x and their guesses y
RANKS = "ranks"  # records by the bins of both


@dataclass(frozen=True)
class Regression(Task):
    """One score per text or pair (STS-B)."""

    score_range: tuple[float, float] | None = None  # bins of ranks lie in it

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

    def added(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> dict[str, Rows]:
        """Moments of scores and guesses; with a range, the bins that both fall into."""
        x = joined(batch["labels"].cpu() for batch in batches).astype(float)
        y = joined(z.squeeze(-1) for z in logits).astype(float)
        columns = [np.ones_like(x), x, y, x * x, y * y, x * y]
        found = {MOMENTS: Rows.of_values(np.stack(columns, axis=1))}
        if self.score_range is not None:
            low, high = self.score_range
            middle, reach = (low + high) / 2, (high - low) / 2
            at, of = (bin_of(values - middle, reach, GRID) for values in (x, y))
            found[RANKS] = Rows.of_cells(GRID * at + of, GRID * GRID)
        return found

    def rates(self, counts: Counts) -> dict[str, float]:
        """Pearson's correlation and the mean squared error; with a range, Spearman's by bins."""
        found = score_rates(counts[MOMENTS]) if MOMENTS in counts else {}
        return found | (rank_rate(counts[RANKS]) if RANKS in counts else {})

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Fisher's z, normal residuals', and the delta method's over bins of ranks."""
        n, rates = counts[MOMENTS][0], self.rates(counts)
        by_law = {"pearson": fisher(rates["pearson"], n), "mse": of_squares(rates["mse"], n)}
        found = {name: interval for name, interval in by_law.items() if interval is not None}
        ranks = {RANKS: counts[RANKS]} if RANKS in counts else {}
        return found | delta(self.rates, ranks, ["spearman"], within=(-1.0, 1.0))

    def closed_slopes(self, counts: Counts) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Pearson's."""
        return {"pearson": {MOMENTS: pearson_slope(counts[MOMENTS])}}

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """Of Spearman's correlation."""
        return {"spearman": rank_extremes(counts[RANKS])} if RANKS in counts else {}

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Return the score."""
        return {"score": float(logits[0, 0])}


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
