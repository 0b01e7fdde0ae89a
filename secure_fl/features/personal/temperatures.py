"""Temperatures that calibrate probabilities, one for each hospital, from sealed sums of losses.

Logits are divided by a temperature T before they become probabilities (Guo, Pleiss, Sun,
Weinberger: On Calibration of Modern Neural Networks. ICML 2017, arXiv 1706.04599). T > 1 makes a
model less certain. The order of the labels stays.

A hospital's curve is the mean loss of its dev records at each temperature of a grid. The hospital
mixes its own curve r with the pooled curve R, and takes the lowest point of the mixture:

    w·r(T) + (1 − w)·R(T),    w = max(0, 1 − s²/(n·(r' − R')²)) at the pooled temperature

s² is the variance of the slopes of its n records' losses. It stays at the hospital.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from secure_fl.features.personal.curve_sums import Array, CurveSums, own_weight
from secure_fl.learning.tasks import Batch, Task

STEP = 1 / 16
GRID = np.arange(-2.0, 2.0 + STEP / 2, STEP)  # logarithms of temperatures


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
        columns = [losses_at(task, logits, batches, T) for T in np.exp(GRID).tolist()]
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
        at = int(np.clip(np.argmin(self.losses), 1, GRID.size - 2))
        slopes = (own.rows[:, at + 1] - own.rows[:, at - 1]) / (2 * STEP)
        pooled = (self.losses[at + 1] - self.losses[at - 1]) / (2 * STEP * self.records)
        return own_weight(float(slopes.mean() - pooled), float(slopes.var(ddof=1)) / count)

    def own(self, own: LossCurves) -> float:
        """Return one hospital's temperature."""
        w = self.weight(own)
        return _lowest(w * own.rows.mean(0) + (1 - w) * self.losses / self.records)


NOTHING = LossSums(0.0, np.zeros(GRID.size))  # the sums of a hospital without records


def _lowest(curve: Array) -> float:
    """Return the temperature of a curve's lowest point, between three points of the grid."""
    at = int(np.argmin(curve))
    shift = 0.0
    if 0 < at < GRID.size - 1:
        left, middle, right = curve[at - 1 : at + 2]
        bend = left - 2 * middle + right
        shift = float((left - right) / (2 * bend)) if bend > 0 else 0.0
    return float(np.exp(GRID[at] + shift * STEP))
