"""FedID: parties and a host learn from each other's predictions on public records.

Ma, Liu, Wang, Zhang: FedID: Federated Interactive Distillation for Large-Scale Pretraining
Language Models. EMNLP 2023, Algorithm 1. The ensemble (Eq. 10) is in `algorithms/ensembles.py`,
the host's step and its feedback (Eqs. 11, 12, 14) in `feedback`, a party's step (Eqs. 13 to 15) in
`party_step`. Every member chooses its own model and tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from secure_fl.algorithms.ensembles import Ensemble, as_shares
from secure_fl.algorithms.fedid.party_step import (
    EnsembleDrift,
    FeedbackUnits,
    StepInputs,
    StepMetrics,
    ensemble_step,
    exact_feedback,
    party_step,
    scalar_feedback,
)
from secure_fl.algorithms.fedid.settings import FEW, FedID
from secure_fl.algorithms.public_distillation import (
    Learner,
    PublicRecords,
    Rows,
    agree_on_ensemble,
    answers,
    groups,
    learn_alone,
    party_logits,
    public_optimizer,
)
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import Optimizer, endless
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Round


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
                inputs = StepInputs(y.to(site.device), mine, h.to(site.device))
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
