"""FedID: parties and a host learn from each other's predictions on public records.

Ma, Liu, Wang, Zhang: FedID: Federated Interactive Distillation for Large-Scale Pretraining
Language Models. EMNLP 2023, Algorithm 1. The ensemble (Eq. 10) is in `ensembles`, the central
model's step and its feedback (Eqs. 11, 12, 14) in `feedback`. Every member has the model and the
tokenizer of its choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from secure_fl.algorithms import feedback
from secure_fl.algorithms.base import Demands
from secure_fl.algorithms.distilling import (
    Distilling,
    Learner,
    agree_on_ground,
    ensemble_of,
    optimizer_of,
)
from secure_fl.algorithms.ensembles import Ensemble, as_shares
from secure_fl.algorithms.feedback import Feedback
from secure_fl.algorithms.public_records import (
    PublicRecords,
    Rows,
    Targets,
    answers,
    cross_entropy,
    logits,
    lots,
    votes,
)
from secure_fl.errors import DataError
from secure_fl.learning.schedule import pace
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.learning.training import Optimizer, endless, public_step
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round
from secure_fl.settings import Positive, TrainingSettings


class FedID(Distilling):
    """The host's labelled records tell the parties which of their predictions helped."""

    name: Literal["fedid"] = "fedid"
    targets: Targets = "soft"  # hard: votes, as the host learns in the authors' code
    feedback: Feedback = "scalar"  # exact: the derivative; none: Table 4 without g_feedback
    feedback_weight: Annotated[float, Field(ge=0)] = 1.0  # of g_feedback in Eq. 15
    feedback_batch: Positive | None = None  # labelled records of a step; None: training.batch_size
    distill: bool = True  # False: Table 4 without g_distill
    public_batch: Positive | None = None  # public records of a step; None: training.batch_size
    batches_per_exchange: Positive = 1  # more: fewer messages, older predictions
    fresh_optimizers: bool = False  # one for every step, as in the authors' code

    @model_validator(mode="after")
    def _something_to_learn(self) -> FedID:
        if not self.distill and self.feedback == "none":
            raise ValueError('distill = true or feedback = "scalar": parties would learn nothing')
        if self.feedback == "exact" and (self.targets == "hard" or self.fresh_optimizers):
            raise ValueError(
                'targets = "soft" and fresh_optimizers = false where feedback is "exact": votes '
                "have no derivative, and the host's step is plain gradient descent"
            )
        return self

    @property
    def caveat(self) -> str:
        """What a reader of the result must know about who sees what."""
        if self.feedback == "none":
            return ""
        return (
            f"The host's feedback (feedback = {self.feedback}) lets parties work out the labels "
            "of the host's records, if it knows or guesses their texts."
        )

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """As all that distil, but for batches of its own: of public and of the host's records."""
        public, labelled = self.public_batch, self.feedback_batch
        own = (public or training.batch_size, labelled or training.batch_size)
        fit = Demands.of_fit(self, training)
        return replace(super().demands(training, values), batch=max(fit.batch, *own))

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        """A sum for every few batches."""
        batch = min(self.public_batch or batch, public)
        batches = public // batch
        together = min(self.batches_per_exchange, batches)
        return together * batch, self.rounds * self.distill_epochs * (batches // together)


async def fedid(cohort: Cohort, site: Site, cfg: FedID) -> None:
    """The program of every member: one is the host."""
    records = PublicRecords(site, cfg.public_batch)
    ensemble = ensemble_of(cohort, site, cfg, records)
    await agree_on_ground(cohort, site, cfg, ensemble)
    member = host if cohort.is_host else party
    await member(cohort, site, cfg, records, ensemble)


async def party(
    cohort: Cohort, site: Site, cfg: FedID, records: PublicRecords, ensemble: Ensemble
) -> None:
    """Lines 1, 6-8, 11-14 and 20-22."""
    model = site.model()  # line 1
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):  # line 3
        drawn = await ensemble.begin(round.number)  # lines 4, 5
        if drawn:
            site.fit(model, cfg.epochs, round, optimizer=learner.own)  # line 7, Eq. 4
        for rows, progress in passes(records, cfg, round):  # line 9
            z = logits(site, model, records, torch.cat(tuple(rows)))
            own = answers(z, cfg.targets)  # line 12, Eq. 9
            await ensemble.send(own)  # line 13
            told = {name: torch.as_tensor(v) for name, v in (await cohort.broadcast()).items()}
            if not drawn:
                continue
            each = torch.split(own, records.batch)
            steps = zip(rows, progress, each, told["y"], told["h"], strict=True)
            for x0, at, mine, y, h in steps:  # line 21, Eq. 15
                optimizer = paced(site, cfg, learner, at)
                given = y.to(site.device), mine, h.to(site.device)
                rectify(site, model, optimizer, records.read(x0), given, ensemble.weight, cfg)
        site.score(model, round.number, "local")
    site.deliver(model, "local", shared=False)


def rectify(
    site: Site,
    model: nn.Module,
    optimizer: Optimizer,
    x: Batch,
    given: tuple[Tensor, Tensor, Tensor],  # the ensemble, the own predictions, the feedback
    w: float,
    cfg: FedID,
) -> None:
    """Eq. 15: a step of a party's model against g_distill + g_feedback."""
    model.train()
    with site.recorder.phase("train"):
        public_step(site, optimizer, lambda: loss_of(site.task.forward(model, x), *given, w, cfg))


def loss_of(z: Tensor, y: Tensor, own: Tensor, h: Tensor, w: float, cfg: FedID) -> Tensor:
    """Compute the loss whose gradient is g_distill + g_feedback."""
    loss = z.new_zeros((), dtype=torch.float32)
    if cfg.distill:
        loss = loss + cross_entropy(z, y)  # Eq. 13
    if cfg.feedback == "scalar":
        # Differs: the likeliest class is strengthened even where probabilities are sent, for
        # towards its own probabilities a model has nowhere to go.
        loss = loss + cfg.feedback_weight * w * h * cross_entropy(z, votes(own))  # Eq. 14
    if cfg.feedback == "exact":
        loss = loss + cfg.feedback_weight * w * (h * z.float().softmax(-1)).sum()  # Eq. 14
    return loss


async def host(
    cohort: Cohort, site: Site, cfg: FedID, records: PublicRecords, ensemble: Ensemble
) -> None:
    """Lines 2, 10 and 15-19: this party alone opens the ensemble, and holds labels for it."""
    size = labelled_batch(site, cfg)
    # The derivative along a direction is not there for fused attention.
    model = site.model(attention="eager" if cfg.feedback == "exact" else "sdpa")  # line 2
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        await ensemble.begin(round.number)
        labelled = endless(site, size)
        for rows, progress in passes(records, cfg, round):  # lines 9, 10
            Y = torch.split(as_shares(await ensemble.open()), records.batch)  # line 15, Eq. 10
            H = []
            with site.recorder.phase("train"):
                for x0, at, y in zip(rows, progress, Y, strict=True):
                    optimizer = paced(site, cfg, learner, at)
                    x, y = records.read(x0), y.to(site.device)
                    H.append(step(site, cfg, model, optimizer, x, y, next(labelled)))
            await cohort.broadcast({"y": torch.stack(Y).numpy(), "h": torch.stack(H).cpu().numpy()})
        site.score(model, round.number)
    site.deliver(model)


def step(
    site: Site,
    cfg: FedID,
    model: nn.Module,
    optimizer: Optimizer,
    x: Batch,
    y: Tensor,
    val: Batch,
) -> Tensor:
    """Lines 16-18: Eq. 11, and what Eq. 12 makes of it."""
    if cfg.feedback == "exact":
        return feedback.exact(site.task, model, optimizer.param_groups[0]["lr"], x, y, val)
    if cfg.feedback == "scalar":
        return feedback.scalar(site, model, optimizer, x, y, val)
    feedback.learn(site, model, optimizer, x, y)
    return y.new_zeros(())


def paced(site: Site, cfg: FedID, learner: Learner, progress: float) -> Optimizer:
    """The optimiser of a step on public records, at its rate."""
    optimizer = optimizer_of(site, cfg, learner.model) if cfg.fresh_optimizers else learner.public
    pace(optimizer, site.training, progress)
    return optimizer


def passes(
    records: PublicRecords, cfg: FedID, round: Round
) -> Iterator[tuple[Sequence[Rows], Sequence[float]]]:
    """The batches of a round and how far the run is at each, as many as one exchange carries."""
    every = [records.batches(round.number, epoch) for epoch in range(cfg.distill_epochs)]
    found = [lot for batches in every for lot in lots(batches, cfg.batches_per_exchange)]
    steps, done = sum(map(len, found)), 0
    for lot in found:
        yield lot, [round.at(done + at, steps) for at in range(len(lot))]
        done += len(lot)


def labelled_batch(site: Site, cfg: FedID) -> int:
    """How many labelled records judge a step."""
    size = cfg.feedback_batch or site.training.batch_size
    if len(site.train) < size:
        raise DataError(
            f"the host has {len(site.train)} labelled records, and a batch takes {size}",
            fix="lower algorithm.feedback_batch, or give the host more",
            party=site.name,
            field="algorithm.feedback_batch",
        )
    return size
