"""A probe's steps under differential privacy: gradients of single records, and public settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from secure_fl.algorithms.exact import Matrix
from secure_fl.algorithms.probe import fits
from secure_fl.algorithms.probe.features import CONSTANT, Rows
from secure_fl.learning.dp.noised_steps import NoisedSteps, per_patient
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort

BOUND = 0.5  # of a record's gradient: features of length 1 give no longer ones at the start
SLOWEST, FASTEST = 3.0, 20.0  # rates for features of length 1, C = 0.5 and momentum 0.9
AT_ONCE = 1 << 22  # values of single gradients in memory


def steps_of(cohort: Cohort, site: Site, units: float) -> NoisedSteps:
    """Make the noised steps of a run over so many units of all hospitals."""
    assert site.training.dp is not None  # noqa: S101 - checked before the run
    most = math.ceil(CONSTANT * units)  # only the constant is equal in all records
    return NoisedSteps(cohort, site, units, min(BOUND, site.training.dp.max_grad_norm), most)


async def private_gradient(steps: NoisedSteps, rows: Rows, W: Matrix, classes: int) -> Matrix:
    """Return the noised mean gradient of all records of all hospitals."""
    site = steps.site
    assert site.privacy is not None  # noqa: S101 - checked before the run
    units, patients = site.privacy.units, site.privacy.settings.unit == "patient"

    def gradients(sample: Sequence[int], _: Any) -> Iterator[Tensor]:
        errors = fits.errors(rows, W, classes)
        size = max(1, AT_ONCE // W.size)
        for start in range(0, len(sample), size):
            members = [units[unit] for unit in sample[start : start + size]]
            of = [row for unit in members for row in unit]
            each = rows.x[of].double()[:, :, None] * errors[of][:, None, :]
            flat = each.flatten(1)
            yield per_patient(flat, [len(unit) for unit in members]) if patients else flat

    mean: Matrix = await steps.mean(W.tobytes(), W.size, gradients)
    return mean.reshape(W.shape)


def counts_from(first: Matrix, bound: float, n: float, classes: int) -> Matrix:
    """Estimate the records of each class from the first noised mean gradient, at weights of 0.

    There, the errors of a record depend on its class alone, and so does the factor by which its
    gradient is clipped. So the constant's gradient counts classes, and the estimate costs no ε.
    """
    length = np.sqrt(1 + CONSTANT**2)
    error = 0.5 if classes == 2 else np.sqrt(1 - 1 / classes)
    clipped = min(1.0, bound / (length * error))
    shares = 1 / classes - first[-1] / (CONSTANT * clipped)
    shares = np.clip(np.append(1 - shares, shares) if classes == 2 else shares, 0.5 / n, 1)
    counts: Matrix = shares / shares.sum() * n
    return counts


def private_rate(steps: NoisedSteps, rounds: int) -> float:
    """Return the learning rate by the ratio of gradients to noise, which is public.

    Three digits, so that machines that round differently have the same.
    """
    rate = steps.signal_to_noise(rounds) * steps.expected / 300
    return float(f"{min(max(rate, SLOWEST), FASTEST):.3g}")
