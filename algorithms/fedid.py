"""FedID: parties and a host learn from each other's predictions on public records.

Ma, Liu, Wang, Zhang: FedID: Federated Interactive Distillation for Large-Scale Pretraining
Language Models. EMNLP 2023, Algorithm 1. The ensemble (Eq. 10) is in `ensembles`, the central
model's step and its feedback (Eqs. 11, 12, 14) in `feedback`, a party's step (Eqs. 13 to 15) in
`rectifying`. Every member has the model and the tokenizer of its choice.
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
    Learner,
    OwnShares,
    Teaching,
    agree_on_ground,
    ensemble_of,
    learn_alone,
    optimizer_of,
    predicted,
)
from secure_fl.algorithms.ensembles import Ensemble, as_shares
from secure_fl.algorithms.feedback import Feedback, Scale, Units
from secure_fl.algorithms.public_records import PublicRecords, Rows, Targets, answers, lots
from secure_fl.algorithms.rectifying import Drift, Given, Rules, Watch, rectify
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import Optimizer, endless
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round
from secure_fl.settings import Positive, TrainingSettings

FEW = 64  # labelled records that all judge every step, unless the settings name a number


class FedID(Teaching):
    """The host's labelled records tell the parties which of their predictions helped."""

    name: Literal["fedid"] = "fedid"
    own_shares: OwnShares | None = None
    targets: Targets = "soft"  # hard: votes, as the host learns in the authors' code
    feedback: Feedback = "none"  # scalar: as in the authors' code; exact: the derivative
    feedback_scale: Scale = "unit"  # printed: as it comes, thousandths of the rest of Eq. 15
    feedback_weight: Annotated[float, Field(ge=0)] = 1.0  # of g_feedback in Eq. 15
    feedback_batch: Positive | None = None  # labelled records of a step; None: all, if 64 or a
    # batch of training.batch_size hold them, else so many
    distill: bool = True  # False: Table 4 without g_distill
    public_batch: Positive | None = None  # public records of a step; None: training.batch_size
    batches_per_exchange: Positive | None = None  # 1: as printed; None: a pass, so that nobody
    # moves before all have predicted
    fresh_optimizers: bool = False  # one for every step, as in the authors' code

    @model_validator(mode="after")
    def _something_to_learn(self) -> FedID:
        if not self.distill and self.feedback == "none":
            raise ValueError('distill = true or feedback = "scalar": parties would learn nothing')
        if self.feedback != "exact":
            return self
        if self.targets == "hard" or self.fresh_optimizers:
            raise ValueError(
                'targets = "soft" and fresh_optimizers = false where feedback is "exact": votes '
                "have no derivative, and the host's step is plain gradient descent"
            )
        if self.host_learning_rate is None:
            raise ValueError(
                'host_learning_rate, some 0.1, where feedback is "exact": the host\'s step is '
                "plain gradient descent, and at a rate for AdamW it would learn nothing"
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
        labelled = self.feedback_batch or (0 if self.feedback == "none" else FEW)
        own = (self.public_batch or training.batch_size, labelled)
        fit = Demands.of_fit(self, training)
        return replace(super().demands(training, values), batch=max(fit.batch, *own))

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        """A sum for every few batches."""
        batch = min(self.public_batch or batch, public)
        batches = public // batch
        together = min(self.batches_per_exchange or batches, batches)
        return together * batch, self.exchanging * self.distill_epochs * (batches // together)


async def fedid(cohort: Cohort, site: Site, cfg: FedID) -> None:
    """The program of every member: one is the host."""
    if site.training.dp is not None and cfg.labelled and cfg.feedback != "none":
        raise SettingsError(
            "feedback tells of the host's labelled records without noise, and DP-SGD would claim "
            "to cover them",
            fix='set algorithm.feedback = "none", or algorithm.labelled = false',
            field="algorithm.feedback",
        )
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
    rules = Rules(cfg.distill, cfg.feedback, cfg.feedback_scale, cfg.feedback_weight)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):  # line 3
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        drawn = await ensemble.begin(round.number)  # lines 4, 5
        if drawn:
            site.fit(model, cfg.epochs, round, optimizer=learner.own)  # line 7, Eq. 4
        watch = Watch()
        for rows, progress in passes(records, cfg, round):  # line 9
            z = predicted(site, cfg, model, records, torch.cat(tuple(rows)))
            own = answers(z, cfg.targets)  # line 12, Eq. 9
            await ensemble.send(own)  # line 13
            told = {name: torch.as_tensor(v) for name, v in (await cohort.broadcast()).items()}
            if not drawn:
                continue
            each = torch.split(own, records.batch)
            steps = zip(rows, progress, each, told["y"], told["h"], strict=True)
            for x0, at, mine, y, h in steps:  # line 21, Eq. 15
                optimizer = paced(site, cfg, learner, at)
                given = Given(y.to(site.device), mine, h.to(site.device))
                x = records.read(x0)
                rectify(site, model, optimizer, x, given, ensemble.weight, rules, watch)
        if drawn:
            watch.tell(site)
        site.score(model, round.number, "local")
    site.deliver(model, "local", shared=False)


async def host(
    cohort: Cohort, site: Site, cfg: FedID, records: PublicRecords, ensemble: Ensemble
) -> None:
    """Lines 2, 10 and 15-19: this party alone opens the ensemble, and holds labels for it."""
    size = 0 if cfg.feedback == "none" else labelled_batch(site, cfg)
    # The derivative along a direction is not there for fused attention.
    model = site.model(attention="eager" if cfg.feedback == "exact" else "sdpa")  # line 2
    learner, drift = Learner.of(site, cfg, model), Drift(len(records))
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        await ensemble.begin(round.number)
        labelled, units = endless(site, size) if size else None, Units(cfg.feedback_scale)
        for rows, progress in passes(records, cfg, round):  # lines 9, 10
            Y = torch.split(as_shares(await ensemble.open()), records.batch)  # line 15, Eq. 10
            drift.saw(torch.cat(tuple(rows)), torch.cat(Y))
            H = []
            with site.recorder.phase("train"):
                for x0, at, y in zip(rows, progress, Y, strict=True):
                    optimizer = paced(site, cfg, learner, at)
                    x, y = records.read(x0), y.to(site.device)
                    H.append(step(site, cfg, model, optimizer, x, y, labelled))
            h = units.of(torch.stack(H)).cpu()
            await cohort.broadcast({"y": torch.stack(Y).numpy(), "h": h.numpy()})
        drift.tell(site)
        if cfg.labelled:
            site.fit(model, cfg.epochs, round, optimizer=learner.own)
        site.score(model, round.number)
    site.deliver(model)


def step(
    site: Site,
    cfg: FedID,
    model: nn.Module,
    optimizer: Optimizer,
    x: Batch,
    y: Tensor,
    labelled: Iterator[Batch] | None,  # for who gives feedback
) -> Tensor:
    """Lines 16-18: Eq. 11, and what Eq. 12 makes of it."""
    if labelled is None:
        feedback.learn(site, model, optimizer, x, y)
        return y.new_zeros(())
    if cfg.feedback == "exact":
        rate = optimizer.param_groups[0]["lr"]
        return feedback.exact(site.task, model, rate, x, y, next(labelled))
    return feedback.scalar(site, model, optimizer, x, y, next(labelled))


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
    found = [
        lot for batches in every for lot in lots(batches, cfg.batches_per_exchange or len(batches))
    ]
    steps, done = sum(map(len, found)), 0
    for lot in found:
        yield lot, [round.at(done + at, steps) for at in range(len(lot))]
        done += len(lot)


def labelled_batch(site: Site, cfg: FedID) -> int:
    """How many labelled records judge a step."""
    size = cfg.feedback_batch or min(len(site.train), max(FEW, site.training.batch_size))
    if len(site.train) < size:
        raise DataError(
            f"the host has {len(site.train)} labelled records, and a batch takes {size}",
            fix="lower algorithm.feedback_batch, or give the host more",
            party=site.name,
            field="algorithm.feedback_batch",
        )
    return size
