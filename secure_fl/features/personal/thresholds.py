"""Thresholds on probabilities, one for each hospital, from sealed sums of risk curves.

An answer has all labels whose probability reaches a threshold. A record's loss is 1 if its true
label is missing; with several labels, the share of its labels that are missing. A hospital's risk
curve is the mean loss of its dev records at each of many thresholds (Angelopoulos, Bates, Fisch,
Lei, Schuster: Conformal Risk Control, arXiv 2208.02814).

One threshold from all records misses the wanted coverage at hospitals that differ. A threshold from
few own records is inaccurate. So each hospital adds m records of the pooled curve R to its own:

    (nₖ·rₖ + m·R) / (nₖ + m)

m follows from the spread of the curves between hospitals, beyond chance (method of moments, as
DerSimonian and Laird 1986): hospitals that are alike share one threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.learning.metric_counts import Counts, from_pieces, pieces
from secure_fl.learning.tasks import Batch, Task
from secure_fl.party.cohort import Cohort

GRID = np.linspace(-8.0, 8.0, 129)  # log-odds of thresholds
KINDS = ("classification", "pair", "multilabel")

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrueOdds:
    """The log-odds of each true label, with its record and its share of the record's labels."""

    records: int
    odds: Array
    share: Array

    def losses(self) -> Array:
        """Return the sum of the records' losses at each threshold of the grid."""
        order = np.argsort(self.odds)
        missed = np.append(0.0, np.cumsum(self.share[order]))
        losses: Array = missed[np.searchsorted(self.odds[order], GRID, side="left")]
        return losses

    def coverage(self, threshold: float) -> float:
        """Return the mean share of true labels that reach a log-odds threshold."""
        return 1 - float(self.share[self.odds < threshold].sum()) / self.records


def true_odds(task: Task, logits: Sequence[Tensor], batches: Sequence[Batch]) -> TrueOdds:
    """Measure the true labels of all records."""
    odds, share = [], []
    for raw, batch in zip(logits, batches, strict=True):
        z, labels = raw.double().numpy(), batch["labels"].numpy()
        if task.exclusive:
            rows = np.arange(len(z))
            others = z.copy()
            others[rows, labels] = -np.inf
            odds.append(z[rows, labels] - np.logaddexp.reduce(others, axis=1))
            share.append(np.ones(len(z)))
        else:
            odds.append(z[labels])
            share.append((labels / np.maximum(labels.sum(1, keepdims=True), 1))[labels])
    return TrueOdds(sum(map(len, logits)), np.concatenate(odds), np.concatenate(share))


@dataclass(frozen=True, slots=True)
class RiskSums:
    """Sums over hospitals: of records n, of n², of losses L at each threshold, and of L²/n."""

    hospitals: float
    records: float
    squares: float
    losses: Array
    spread: Array

    @classmethod
    def of(cls, own: TrueOdds | None) -> RiskSums:
        """Return what one hospital adds; zeros without records."""
        if own is None:
            return cls(0.0, 0.0, 0.0, np.zeros(GRID.size), np.zeros(GRID.size))
        losses, n = own.losses(), float(own.records)
        return cls(1.0, n, n * n, losses, losses**2 / n)

    def counts(self) -> Counts:
        """Return the sums under names, for `pieces`."""
        sizes = np.array([self.hospitals, self.records, self.squares])
        return {"sizes": sizes, "losses": self.losses, "spread": self.spread}

    @classmethod
    def from_counts(cls, counts: Counts) -> RiskSums:
        """Return the inverse of `counts`."""
        hospitals, records, squares = map(float, counts["sizes"])
        return cls(hospitals, records, squares, counts["losses"], counts["spread"])

    def pooled(self, coverage: float) -> float:
        """Return the log-odds of the threshold that is right over the records of all hospitals."""
        return _threshold(self.losses, self.records, coverage)

    def strength(self, coverage: float) -> float:
        """Return m: how many records of the pooled curve each hospital adds to its own."""
        at = int(np.argmin(np.abs(GRID - self.pooled(coverage))))
        risk = float(self.losses[at]) / self.records
        chance = risk * (1 - risk)
        excess = float(self.spread[at]) - self.records * risk**2 - (self.hospitals - 1) * chance
        between = excess / (self.records - self.squares / self.records or np.inf)
        return max(chance / between - 1, 0.0) if between > 0 else float("inf")

    def own(self, own: TrueOdds, coverage: float) -> float:
        """Return the log-odds of one hospital's threshold."""
        m = min(self.strength(coverage), 1e6 * self.records)
        losses, records = own.losses() + m * self.losses / self.records, own.records + m
        real = min(records, self.records)  # no more is known than all records show
        return _threshold(losses * real / records, real, coverage)


def _threshold(losses: Array, records: float, coverage: float) -> float:
    """Return the largest threshold whose risk, with one more lost record, is not too large.

    It is interpolated between two points of the grid. If even the smallest threshold loses too
    much, all labels are answers.
    """
    allowed = (1 - coverage) * (records + 1) - 1
    above = int(np.searchsorted(losses, allowed, side="right"))  # losses grow with the threshold
    if above == 0:
        return -float("inf")
    if above == GRID.size:
        return float(GRID[-1])
    part = (allowed - losses[above - 1]) / (losses[above] - losses[above - 1])
    return float(GRID[above - 1] + part * (GRID[above] - GRID[above - 1]))


def probability(odds: float) -> float:
    """Return the probability of log-odds."""
    return float(1 / (1 + np.exp(-odds)))


async def sum_risks(cohort: Cohort, own: TrueOdds | None) -> RiskSums | None:
    """Sum the risk curves over the members of the last sum; None: one has left."""
    opened = await cohort.sum(pieces(RiskSums.of(own).counts()), together=True)
    return RiskSums.from_counts(from_pieces(opened)) if opened else None


def describe(sums: RiskSums, coverage: float) -> dict[str, Any]:
    """Return the pooled threshold as result.json has it."""
    strength = sums.strength(coverage)
    return {
        "coverage": coverage,
        "pooled": probability(sums.pooled(coverage)),
        "strength": strength if np.isfinite(strength) else None,
        "hospitals": round(sums.hospitals),
        "records": round(sums.records),
    }
