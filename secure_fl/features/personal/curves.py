"""Temperatures and thresholds, one of each for every hospital, from sealed sums of loss curves.

A hospital's curve is the mean loss of its dev records at each point of a fixed grid. A value from
the records of all hospitals is wrong at hospitals that differ, and one from few own records is
inaccurate. So each hospital mixes its own curve r with the pooled curve R:

    w·r + (1 − w)·R,    w = max(0, 1 − variance / distance²) at the pooled value (`own_weight`)

Temperatures. Logits are divided by T before they become probabilities (Guo, Pleiss, Sun,
Weinberger: On Calibration of Modern Neural Networks. ICML 2017, arXiv 1706.04599). T > 1 makes a
model less certain; the order of the labels stays. A hospital takes the lowest point of the mixture.
Distances are between slopes r' and R', and the variance is s²/n, with s² that of the slopes of its
n records' losses. It stays at the hospital.

Thresholds. An answer has all labels whose probability reaches a threshold. A record's loss is 1 if
its true label is missing; with several labels, the share of its labels that are missing
(Angelopoulos, Bates, Fisch, Lei, Schuster: Conformal Risk Control, arXiv 2208.02814). The variance
is R(1 − R)/n: it needs no sums of squares, from which members could compute single hospitals'
curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.learning.metric_counts import Counts, from_pieces, pieces
from secure_fl.learning.tasks import Batch, Task
from secure_fl.party.cohort import Cohort

Array = NDArray[np.float64]
STEP = 1 / 16
TEMPERATURES = np.arange(-2.0, 2.0 + STEP / 2, STEP)  # their logarithms
THRESHOLDS = np.linspace(-8.0, 8.0, 129)  # their log-odds
KINDS = ("classification", "pair", "multilabel")


@dataclass(frozen=True, slots=True)
class CurveSums:
    """Sums over hospitals: of records, and of their losses at each point of a grid."""

    records: float
    losses: Array

    def counts(self) -> Counts:
        """Return the sums under names, for `pieces`."""
        return {"records": np.array([self.records]), "losses": self.losses}

    @classmethod
    def from_counts(cls, counts: Counts) -> Self:
        """Return the inverse of `counts`."""
        return cls(float(counts["records"][0]), counts["losses"])

    @property
    def valid(self) -> bool:
        """True if hospitals with such records can exist."""
        finite = np.isfinite(self.records) and np.isfinite(self.losses).all()
        return bool(finite and self.records >= 1 and (self.losses >= -1e-6 * self.records).all())

    async def over(self, cohort: Cohort) -> Self | None:
        """Add the members of the last opened sum; None: one has left, or lied."""
        opened = await cohort.sum(pieces(self.counts()), together=True)
        sums = self.from_counts(from_pieces(opened)) if opened else None
        return sums if sums is not None and sums.valid else None


def own_weight(apart: float, variance: float) -> float:
    """Weigh a hospital's own curve by its distance from the pooled one, as Breiman's garrote.

    `variance`: of the distance, by the chance of which records the hospital has. A hospital like
    the others has weight 0, and one with few records a low one.
    """
    return max(0.0, 1 - variance / apart**2) if apart else 0.0


def losses_at(
    task: Task, logits: Sequence[Tensor], batches: Sequence[Batch], temperature: float
) -> Array:
    """Return each record's loss if the logits are divided by a temperature."""
    losses: Array = task.losses(cooled(logits, temperature), batches).double().numpy()
    return losses


def cooled(logits: Sequence[Tensor], temperature: float) -> list[Tensor]:
    """Divide logits by a temperature."""
    return [z / temperature for z in logits]


@dataclass(frozen=True, slots=True)
class LossCurves:
    """One hospital's losses: a row for each record, and a column for each temperature."""

    rows: Array

    @classmethod
    def of(cls, task: Task, logits: Sequence[Tensor], batches: Sequence[Batch]) -> LossCurves:
        """Measure all records at all temperatures."""
        columns = [losses_at(task, logits, batches, T) for T in np.exp(TEMPERATURES).tolist()]
        return cls(np.stack(columns, axis=1))

    def sums(self) -> LossSums:
        """Return the sums that this hospital adds."""
        return LossSums(float(len(self.rows)), self.rows.sum(0))


@dataclass(frozen=True, slots=True)
class LossSums(CurveSums):
    """Sums of records, and of their losses at each temperature of the grid."""

    @property
    def pooled(self) -> float:
        """The temperature that is best over the records of all hospitals."""
        return _lowest(self.losses)

    def weight(self, own: LossCurves) -> float:
        """Return w: how much one hospital's own curve counts."""
        count = len(own.rows)
        if count < 2:
            return 0.0
        at = int(np.clip(np.argmin(self.losses), 1, TEMPERATURES.size - 2))
        slopes = (own.rows[:, at + 1] - own.rows[:, at - 1]) / (2 * STEP)
        pooled = (self.losses[at + 1] - self.losses[at - 1]) / (2 * STEP * self.records)
        return own_weight(float(slopes.mean() - pooled), float(slopes.var(ddof=1)) / count)

    def own(self, own: LossCurves) -> float:
        """Return one hospital's temperature."""
        w = self.weight(own)
        return _lowest(w * own.rows.mean(0) + (1 - w) * self.losses / self.records)


NOTHING = LossSums(0.0, np.zeros(TEMPERATURES.size))  # the sums of a hospital without records


def _lowest(curve: Array) -> float:
    """Return the temperature of a curve's lowest point, between three points of the grid."""
    at = int(np.argmin(curve))
    shift = 0.0
    if 0 < at < TEMPERATURES.size - 1:
        left, middle, right = curve[at - 1 : at + 2]
        bend = left - 2 * middle + right
        shift = float((left - right) / (2 * bend)) if bend > 0 else 0.0
    return float(np.exp(TEMPERATURES[at] + shift * STEP))


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
        losses: Array = missed[np.searchsorted(self.odds[order], THRESHOLDS, side="left")]
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
            return cls(0.0, np.zeros(THRESHOLDS.size))
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
        at = int(np.argmin(np.abs(THRESHOLDS - self.pooled(coverage))))
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
    """Return the grid's largest threshold whose risk, with one more lost record, is not too large.

    If even the smallest threshold loses too much, all labels are answers.
    """
    allowed = (1 - coverage) * (records + 1) - 1
    above = int(np.searchsorted(losses, allowed, side="right"))  # losses grow with the threshold
    return float(THRESHOLDS[above - 1]) if above else -float("inf")


def probability(odds: float) -> float:
    """Return the probability of log-odds."""
    return float(1 / (1 + np.exp(-odds)))
