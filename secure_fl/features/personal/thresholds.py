"""Thresholds on probabilities, one for each hospital, from sealed sums of risk curves.

An answer has all labels whose probability reaches a threshold. A record's loss is 1 if its true
label is missing; with several labels, the share of its labels that are missing. A hospital's risk
curve is the mean loss of its dev records at each of many thresholds (Angelopoulos, Bates, Fisch,
Lei, Schuster: Conformal Risk Control, arXiv 2208.02814).

One threshold from all records misses the wanted coverage at hospitals that differ. A threshold from
few own records is inaccurate. So each hospital mixes its own curve r with the pooled curve R:

    w·r(t) + (1 − w)·R(t),    w = max(0, 1 − R(1 − R) / (n·(r − R)²)) at the pooled threshold

w is the part of the squared distance from R that n records do not explain by chance (as Breiman's
garrote, 1995): a hospital like the others has w = 0. It needs no sums of squares, from which
members could compute single hospitals' curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from secure_fl.features.personal.curve_sums import Array, CurveSums, own_weight
from secure_fl.learning.tasks import Batch, Task

GRID = np.linspace(-8.0, 8.0, 129)  # log-odds of thresholds
KINDS = ("classification", "pair", "multilabel")


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
class RiskSums(CurveSums):
    """Sums of records, and of their losses at each threshold of the grid."""

    @classmethod
    def of(cls, own: TrueOdds | None) -> RiskSums:
        """Return the sums that one hospital adds; zeros without records."""
        if own is None:
            return cls(0.0, np.zeros(GRID.size))
        return cls(float(own.records), own.losses())

    @property
    def valid(self) -> bool:
        """True if losses grow with the threshold, from 0 to at most the number of records."""
        curve = np.concatenate([[0.0], self.losses, [self.records]])
        return bool(self.records >= 1 and (np.diff(curve) >= -1e-6 * self.records).all())

    def pooled(self, coverage: float) -> float:
        """Return the log-odds of the threshold that is right over the records of all hospitals."""
        return _threshold(self.losses, self.records, coverage)

    def weight(self, own: TrueOdds, coverage: float) -> float:
        """Return w: how much one hospital's own curve counts."""
        at = int(np.argmin(np.abs(GRID - self.pooled(coverage))))
        risk = float(self.losses[at]) / self.records
        apart = float(own.losses()[at]) / own.records - risk
        return own_weight(apart, risk * (1 - risk) / own.records)

    def own(self, own: TrueOdds, coverage: float) -> float:
        """Return the log-odds of one hospital's threshold."""
        w = self.weight(own, coverage)
        records = w * own.records + (1 - w) * self.records
        risks = w * own.losses() / own.records + (1 - w) * self.losses / self.records
        return _threshold(risks * records, records, coverage)


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
