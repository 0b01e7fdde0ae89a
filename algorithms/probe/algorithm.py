"""A linear probe on a frozen encoder: the baseline that takes seconds.

No weight of the encoder changes. Its last three layers give each text a vector of features, and the
hospitals fit a linear model on all their records together. A ridge regression needs one sum, and
its result does not depend on how records are spread over the hospitals. A logistic regression needs
one sum for each step, and can protect records by differential privacy.

Alain, Bengio: Understanding intermediate layers using linear classifier probes. arXiv 1610.01644.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secure_fl.algorithms.exact import Matrix
from secure_fl.algorithms.probe import fits
from secure_fl.algorithms.probe.features import (
    CONSTANT,
    Probing,
    Rows,
    probe_of,
    public_directions,
    training_rows,
)
from secure_fl.algorithms.public_student import PublicStudent, require_public
from secure_fl.algorithms.settings import Probe
from secure_fl.algorithms.updates import SavedDict, digest
from secure_fl.learning.dp.noised_steps import NoisedSteps, per_patient
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round
from secure_fl.protocol.sum_names import RECORDS

__all__ = ["Probe", "probe"]

SCORED = 6  # times that a logistic fit is measured
MOMENTS = "ridge"  # the question that all sums over the records at weights of zero answer


async def probe(cohort: Cohort, site: Site, cfg: Probe) -> None:
    """Run a probe at one party."""
    require_public(site)
    model, state, rows = probe_of(site, cfg.components), SavedDict(), None
    student = PublicStudent.of(site, cfg)
    await cohort.agree(settings_of(site, cfg), "task, public texts or settings")
    async for round in cohort.rounds(cfg.rounds, shared={"probe": state}):
        if "center" not in state:  # a checkpoint or another member may have given it
            state.update(await public_directions(cohort, site, model))
        if rows is None:
            load(model, state)
            rows = training_rows(site, model)
        if cfg.fit == "ridge":
            state["weights"] = await ridge(cohort, site, rows)
        else:
            await logistic_step(cohort, site, rows, state, round)
        if round.measured(SCORED):
            load(model, state)
            site.score(model, round.number)
        if student is not None and round.number == round.total:
            load(model, state)
            student.score(model, round.number)
    load(model, state)
    await cohort.agree(digest(model.classifier.state_dict()), "model")
    model.forget()
    site.deliver(model)
    if student is not None:
        student.deliver(model)


async def ridge(cohort: Cohort, site: Site, rows: Rows) -> Matrix:
    """Fit by one sum over all records."""
    d, classes = rows.x.shape[1], len(site.task.labels)
    with site.recorder.phase("train"):
        own = fits.moments(rows, classes)
    sums = await cohort.sum({"moments": own}, questions=(site.question(MOMENTS),))
    with site.recorder.phase("train"):
        balanced, exclusive = balances(site), site.task.exclusive
        return fits.ridge(sums["moments"], d, classes, balanced=balanced, exclusive=exclusive)


async def logistic_start(cohort: Cohort, site: Site, rows: Rows, steps: int) -> dict[str, Any]:
    """Return weights of zero, the learning rate, and the records of each class.

    Without DP, the rate is the inverse of a bound on the mean curvature of the records. Curvature
    and counts of classes are not private, so under DP neither is summed.
    """
    classes, exclusive = len(site.task.labels), site.task.exclusive
    state = fits.start(rows.x.shape[1], classes, exclusive=exclusive)
    if site.privacy is not None:
        units = float(len(site.privacy.units))
        state["units"] = float((await cohort.sum({RECORDS: units}))[RECORDS])
        rate = private_rate(steps_of(cohort, site, state["units"]), steps)
    else:
        counts = torch.bincount(rows.y, minlength=classes) if exclusive else rows.y.sum(0)
        own = {"classes": counts.double(), "curvature": fits.curvature(rows), RECORDS: len(rows.y)}
        sums = await cohort.sum(own, questions=(site.question(MOMENTS),))
        state["counts"] = fits.require_classes(sums["classes"], exclusive=exclusive)
        rate = float(np.rint(sums[RECORDS]) / sums["curvature"])
    return state | {"rate": site.training.learning_rate or rate}


async def logistic_step(
    cohort: Cohort, site: Site, rows: Rows, state: SavedDict, round: Round
) -> None:
    """Make one step of gradient descent on all records, by one sum."""
    if "rate" not in state:
        state.update(await logistic_start(cohort, site, rows, round.total))
    classes = len(site.task.labels)
    if site.privacy is None:
        with site.recorder.phase("train"):
            g = fits.gradient(rows, state["W"], classes)
        values = {"gradient": g, RECORDS: float(len(rows.y))}
        sums = await cohort.sum(values, carry=True, questions=(question_at(site, state["W"]),))
        mean = sums["gradient"] / float(sums[RECORDS])
    else:
        steps = steps_of(cohort, site, state["units"])
        mean = await private_gradient(steps, rows, state["W"], classes)
        if balances(site) and "counts" not in state:
            state["counts"] = counts_from(mean, steps.bound, steps.expected, classes)
    state.update(fits.step(state, mean, classes, average=round.progress > 1 - fits.TAIL))
    if balances(site):
        equal, own = (fits.log_priors(state["counts"], balanced=b) for b in (True, False))
        state["weights"][-1] += (equal - own) / CONSTANT


def question_at(site: Site, W: Matrix) -> str:
    """Name the question of a step; at weights of zero, the moments of a ridge answer it too."""
    return site.question("logistic", W.tobytes()) if W.any() else site.question(MOMENTS)


def load(model: Probing, state: SavedDict) -> None:
    """Set the model to a state; the constant's weights are its biases."""
    model.center.copy_(state["center"])
    if model.basis is not None:
        model.basis.copy_(state["basis"])
    if "weights" in state:
        weights = torch.from_numpy(state["weights"])
        model.classifier.weight.copy_(weights[:-1].T)
        model.classifier.bias.copy_(weights[-1] * CONSTANT)


def balances(site: Site) -> bool:
    """Return true if classes count alike, as in other algorithms: by default for a rare class."""
    given = site.training.class_weights
    return given == "balanced" or (given is None and site.task.positive is not None)


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


def settings_of(site: Site, cfg: Probe) -> bytes:
    """Encode what all parties must have alike."""
    public = site.public_digest.hex() if site.silo.public else ""
    training = site.training.model_dump(mode="json", include={"learning_rate", "class_weights"})
    return json.dumps([site.fingerprint().decode(), public, cfg.model_dump(), training]).encode()
