"""FedID: parties and a host learn from each other's predictions on public records.

Ma, Liu, Wang, Zhang: FedID: Federated Interactive Distillation for Large-Scale Pretraining
Language Models. EMNLP 2023, Algorithm 1. The ensemble (Eq. 10) is in `algorithms/ensembles.py`.
Every member chooses its own model and tokenizer. The metrics of steps stay in the member's own log.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from secure_fl.algorithms.ensembles import Ensemble, as_shares
from secure_fl.algorithms.fedid.settings import FEW, FedID, FeedbackScale
from secure_fl.algorithms.public_distillation import (
    Learner,
    PublicRecords,
    Rows,
    agree_on_ensemble,
    answers,
    cross_entropy,
    groups,
    learn_alone,
    log_shares,
    party_logits,
    public_optimizer,
    votes,
)
from secure_fl.errors import DataError, SettingsError
from secure_fl.events import ExtensionEvent
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import Optimizer, endless, public_step
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch, Task
from secure_fl.learning.tasks.task import inference
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round

UNKNOWN = -1  # the class of a public record before its first prediction


async def fedid(cohort: Cohort, site: Site, cfg: FedID) -> None:
    """Run FedID at one member, as a party or as the host."""
    if site.training.dp is not None and cfg.labelled and cfg.feedback != "none":
        raise SettingsError(
            "the host's feedback depends on its labelled records without noise, so DP-SGD would "
            "not cover these records",
            fix='set algorithm.feedback = "none", or algorithm.labelled = false',
            field="algorithm.feedback",
        )
    records, ensemble = await agree_on_ensemble(cohort, site, cfg, batch=cfg.public_batch)
    member = host if cohort.is_host else party
    await member(cohort, site, cfg, records, ensemble)


async def party(
    cohort: Cohort, site: Site, cfg: FedID, records: PublicRecords, ensemble: Ensemble
) -> None:
    """Run lines 1, 6-8, 11-14 and 20-22."""
    model = site.model()  # line 1
    learner = Learner.of(site, cfg, model)
    offset = log_shares(site, cfg).to(site.device)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):  # line 3
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        drawn = await ensemble.begin(round.number)  # lines 4, 5
        if drawn:
            site.fit(model, cfg.epochs, round, optimizer=learner.own)  # line 7, Eq. 4
        metrics = StepMetrics()
        for rows, progress in exchanges(records, cfg, round):  # line 9
            z = party_logits(site, cfg, model, records, torch.cat(tuple(rows)))
            predictions = answers(z, cfg.targets)  # line 12, Eq. 9
            await ensemble.send(predictions)  # line 13
            reply = {name: torch.as_tensor(v) for name, v in (await cohort.broadcast()).items()}
            if not drawn:
                continue
            batches = torch.split(predictions, records.batch)
            steps = zip(rows, progress, batches, reply["y"], reply["h"], strict=True)
            for x0, at, mine, y, h in steps:  # line 21, Eq. 15
                optimizer = paced(site, cfg, learner, at)
                inputs = StepInputs(y.to(site.device), mine, h.to(site.device), offset)
                x = records.read(x0)
                party_step(site, cfg, model, optimizer, x, inputs, ensemble.weight, metrics)
        if drawn:
            metrics.report(site)
        site.score(model, round.number, "local")
    site.deliver(model, "local", shared=False)


async def host(
    cohort: Cohort, site: Site, cfg: FedID, records: PublicRecords, ensemble: Ensemble
) -> None:
    """Run lines 2, 10 and 15-19: only this member opens the ensemble and holds labels for it."""
    size = 0 if cfg.feedback == "none" else labelled_batch(site, cfg)
    # Fused attention has no derivative along a direction.
    model = site.model(attention="eager" if cfg.feedback == "exact" else "sdpa")  # line 2
    learner, drift = Learner.of(site, cfg, model), EnsembleDrift(len(records))
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        await ensemble.begin(round.number)
        labelled, units = endless(site, size) if size else None, FeedbackUnits(cfg.feedback_scale)
        for rows, progress in exchanges(records, cfg, round):  # lines 9, 10
            Y = torch.split(as_shares(await ensemble.open()), records.batch)  # line 15, Eq. 10
            drift.add(torch.cat(tuple(rows)), torch.cat(Y))
            H = []
            with site.recorder.phase("train"):
                for x0, at, y in zip(rows, progress, Y, strict=True):
                    optimizer = paced(site, cfg, learner, at)
                    x, y = records.read(x0), y.to(site.device)
                    H.append(host_step(site, cfg, model, optimizer, x, y, labelled))
            h = units.of(torch.stack(H)).cpu()
            await cohort.broadcast({"y": torch.stack(Y).numpy(), "h": h.numpy()})
        drift.report(site)
        if cfg.labelled:
            site.fit(model, cfg.epochs, round, optimizer=learner.own)
        site.score(model, round.number)
    site.deliver(model)


def host_step(
    site: Site,
    cfg: FedID,
    model: nn.Module,
    optimizer: Optimizer,
    x: Batch,
    y: Tensor,
    labelled: Iterator[Batch] | None,  # None: there is no feedback
) -> Tensor:
    """Run lines 16-18: make the step of Eq. 11, and return the feedback of Eq. 12."""
    if labelled is None:
        ensemble_step(site, model, optimizer, x, y)
        return y.new_zeros(())
    if cfg.feedback == "exact":
        rate = optimizer.param_groups[0]["lr"]
        return exact_feedback(site.task, model, rate, x, y, next(labelled))
    return scalar_feedback(site, model, optimizer, x, y, next(labelled))


def paced(site: Site, cfg: FedID, learner: Learner, progress: float) -> Optimizer:
    """Return the optimiser of a step on public records, at its learning rate."""
    fresh = cfg.fresh_optimizers
    optimizer = public_optimizer(site, cfg, learner.model) if fresh else learner.public
    pace(optimizer, site.training, progress)
    return optimizer


def exchanges(
    records: PublicRecords, cfg: FedID, round: Round
) -> Iterator[tuple[Sequence[Rows], Sequence[float]]]:
    """Yield the batches of each exchange of a round, with the run's progress at each batch."""
    passes = [records.batches(round.number, epoch) for epoch in range(cfg.distill_epochs)]
    parts = [
        part
        for batches in passes
        for part in groups(batches, cfg.batches_per_exchange or len(batches))
    ]
    steps, done = sum(map(len, parts)), 0
    for part in parts:
        yield part, [round.at(done + at, steps) for at in range(len(part))]
        done += len(part)


def labelled_batch(site: Site, cfg: FedID) -> int:
    """Return the number of the host's labelled records that judge a step."""
    size = cfg.feedback_batch or min(len(site.train), max(FEW, site.training.batch_size))
    if len(site.train) < size:
        raise DataError(
            f"the host has {len(site.train)} labelled records, and algorithm.feedback_batch needs "
            f"{size}",
            fix="lower algorithm.feedback_batch, or give the host more labelled records",
            party=site.name,
            field="algorithm.feedback_batch",
        )
    return size


class FeedbackUnits:
    """Feedback in units of its root mean square in this round so far.

    The printed feedback is so small that a weight of 1 changes nothing: a host's step changes its
    loss by thousandths, and g_distill is about 300 times g_feedback.
    """

    def __init__(self, scale: FeedbackScale) -> None:
        self._scale, self._squares, self._count = scale, 0.0, 0

    def of(self, h: Tensor) -> Tensor:
        """Scale the feedback of an exchange for sending."""
        if self._scale == "printed":
            return h
        self._squares += float(h.double().square().sum())
        self._count += h.numel()
        size = math.sqrt(self._squares / self._count)
        return h / size if size > 0 else h


def ensemble_step(site: Site, model: nn.Module, optimizer: Optimizer, x: Batch, y: Tensor) -> None:
    """Move the central model one step towards the ensemble (Eq. 11)."""
    model.train()
    public_step(site, optimizer, lambda: cross_entropy(site.task.forward(model, x), y))


def scalar_feedback(
    site: Site, model: nn.Module, optimizer: Optimizer, x: Batch, y: Tensor, val: Batch
) -> Tensor:
    """Return h = L_val(θ_{t-1}) - L_val(θ_t): Eq. 12 before and after the step, on equal records.

    Differs: the paper sends L_val(θ_t), whose gradient in θᵏ no party can compute. As in the
    authors' code (and Meta Pseudo Labels, arXiv 2003.10580), h is the improvement by the step.
    Every party strengthens or weakens its predictions by h.
    """
    before = validation_loss(site.task, model, val)
    ensemble_step(site, model, optimizer, x, y)
    return before - validation_loss(site.task, model, val)


def exact_feedback(
    task: Task, model: nn.Module, rate: float, x: Batch, y: Tensor, val: Batch
) -> Tensor:
    """Return Eq. 14 as a derivative: H with ∇_{θᵏ} L_val(θ_t) = wₖ · Σ H_c(x)·∇_{θᵏ} yᵏ_c(x).

    With θ_t = θ_{t-1} + (η/B)·Σ y_c(x)·∇log p_c(x; θ_{t-1}), the chain rule gives
    H_c(x) = (η/B)·⟨∇log p_c(x; θ_{t-1}), ∇L_val(θ_t)⟩: one derivative along one direction for
    all x and c at once. It is valid for this step only, so this function makes the step: plain
    gradient descent, not clipped, without dropout.
    """
    model.eval()
    loss = cross_entropy(task.forward(model, x), y)
    θ = {name: weight.detach().clone() for name, weight in trainable(model).items()}
    g = _gradients(loss, model)
    with torch.no_grad():  # one step of plain gradient descent
        for name, weight in trainable(model).items():
            weight.sub_(rate * g[name])
    v = _gradients(task.loss(task.forward(model, val), val), model)

    def log_p(θ: dict[str, Tensor]) -> Tensor:
        def at(**inputs: Tensor) -> object:
            return functional_call(model, θ, (), inputs)

        return task.forward(cast(nn.Module, at), x).log_softmax(-1)

    with warnings.catch_warnings():  # torch's jvp uses torch.jit.script, and warns about it
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
        h: Tensor = jvp(log_p, (θ,), (v,))[1]
    return rate / len(y) * h.detach()


def validation_loss(task: Task, model: nn.Module, val: Batch) -> Tensor:
    """Compute L_CE(y^val, f(x^val; θ)), without dropout."""
    with inference(model):
        return task.loss(task.forward(model, val), val)


def _gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    weights = trainable(model)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    return dict(zip(weights, gradients, strict=True))


class StepInputs(NamedTuple):
    """A party's inputs of one step: the results of Eqs. 10, 9 and 12."""

    y: Tensor  # the ensemble
    sent: Tensor  # the party's predictions, as it sent them
    h: Tensor  # the feedback
    offset: Tensor | float = 0.0  # subtracted from logits before they are sent: `log_shares`


def step_losses(z: Tensor, inputs: StepInputs, w: float, cfg: FedID) -> tuple[Tensor, Tensor]:
    """Compute the losses whose gradients are g_distill and g_feedback.

    As printed, the party's share w of all records weights the feedback. In units of its own root
    mean square, feedback counts alike at all parties.
    """
    zero, printed = z.new_zeros((), dtype=torch.float32), cfg.feedback_scale == "printed"
    distilled = cross_entropy(z, inputs.y) if cfg.distill else zero  # Eq. 13
    weight = cfg.feedback_weight * (w if printed else 1.0)
    if cfg.feedback == "exact":
        per_record = (inputs.h * (z.float() - inputs.offset).softmax(-1)).sum(-1)
        return distilled, weight * (per_record.sum() if printed else per_record.mean())  # Eq. 14
    if cfg.feedback == "scalar":
        # Differs: the likeliest class is strengthened even if probabilities are sent, since a
        # model already agrees with its own probabilities.
        return distilled, weight * inputs.h * cross_entropy(z, votes(inputs.sent))  # Eq. 14
    return distilled, zero


def party_step(
    site: Site,
    cfg: FedID,
    model: nn.Module,
    optimizer: Optimizer,
    x: Batch,
    inputs: StepInputs,
    w: float,
    metrics: StepMetrics,
) -> None:
    """Move a party's model against g_distill + g_feedback (Eq. 15)."""

    def loss() -> Tensor:
        z = site.task.forward(model, x)
        losses = step_losses(z, inputs, w, cfg)
        metrics.add(z, inputs, losses)
        return torch.stack(losses).sum()

    model.train()
    with site.recorder.phase("train"):
        public_step(site, optimizer, loss)


class PublicSteps(ExtensionEvent, frozen=True, tag="public_steps"):
    """Means over the steps of one round on public records."""

    round: int
    means: dict[str, float]


class EnsembleReport(ExtensionEvent, frozen=True, tag="ensemble"):
    """The host's measures of a collapse of the ensemble to one class."""

    round: int
    commonest: float
    """Fraction of records whose likeliest class is the commonest one."""
    changed: float | None = None
    """Fraction of records whose likeliest class changed since the last pass."""


class StepMetrics:
    """Metrics of a round's steps at one party: agreement of predictions, and gradient sizes."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, z: Tensor, inputs: StepInputs, losses: tuple[Tensor, Tensor]) -> None:
        """Measure a step before it is made."""
        predicted = z.detach().argmax(-1)
        for name, other in (("as_sent", inputs.sent), ("as_ensemble", inputs.y)):
            self._values[name].append(float((predicted == other.argmax(-1)).float().mean()))
        if all(loss.requires_grad for loss in losses):
            g_distill, g_feedback = (
                float(torch.autograd.grad(loss, z, retain_graph=True)[0].float().norm())
                for loss in losses
            )
            if g_distill > 0:
                self._values["feedback_to_distill"].append(g_feedback / g_distill)

    def report(self, site: Site) -> None:
        """Write the means over the round's steps to the party's log."""
        means = {name: fmean(values) for name, values in self._values.items()}
        site.recorder.event(PublicSteps(round=site.recorder.round, means=means))


class EnsembleDrift:
    """Changes of the ensemble between passes, at the host: a collapse starts with one class."""

    def __init__(self, records: int) -> None:
        self._classes = torch.full((records,), UNKNOWN)
        self._changed: list[float] = []

    def add(self, rows: Rows, y: Tensor) -> None:
        """Compare the likeliest classes with those of the records' previous predictions."""
        after, before = y.argmax(-1), self._classes[rows]
        known = before != UNKNOWN
        if known.any():
            self._changed.append(float((after != before)[known].float().mean()))
        self._classes[rows] = after

    def report(self, site: Site) -> None:
        """Log the share of changed classes, and the share of records in the commonest class."""
        known = self._classes[self._classes != UNKNOWN]
        commonest = float(known.bincount().max()) / len(known)
        changed = fmean(self._changed) if self._changed else None
        self._changed.clear()
        event = EnsembleReport(round=site.recorder.round, commonest=commonest, changed=changed)
        site.recorder.event(event)
