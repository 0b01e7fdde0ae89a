"""MHAT: the central model learns every party's answers at once, then teaches them.

Hu, Yan, Li, Pan, Liu, Zhang: MHAT: An efficient model-heterogenous aggregation training scheme
for federated learning. Information Sciences 560, 2021. The host's loss is the mean of its
cross-entropies to each party's labels. It is linear in them, so the sum of votes is all it needs.
"""

from __future__ import annotations

from typing import Literal

import torch

from secure_fl.algorithms.distilling import (
    Learner,
    Teaching,
    agree_on_ground,
    distil,
    ensemble_of,
    learn_alone,
    predicted,
)
from secure_fl.algorithms.ensembles import as_shares
from secure_fl.algorithms.public_records import PublicRecords, Targets, answers, logits
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort


class MHAT(Teaching):
    """Votes train the central model; its own predictions train the parties."""

    name: Literal["mhat"] = "mhat"
    targets: Targets = "hard"
    """Predictions that hospitals send. hard: votes. soft: probabilities."""


async def mhat(cohort: Cohort, site: Site, cfg: MHAT) -> None:
    """The program of every member: one is the host."""
    records = PublicRecords(site)
    ensemble = ensemble_of(cohort, site, cfg, records)
    await agree_on_ground(cohort, site, cfg, ensemble)
    model, host = site.model(), cohort.is_host
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        drawn = await ensemble.begin(round.number)
        if host:
            votes = as_shares(await ensemble.open())
            if cfg.labelled:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            distil(site, cfg, model, records, votes, round, learner.public)
            y = answers(logits(site, model, records, records.every()), "soft")
            await cohort.broadcast({"y": y.cpu().numpy()})
        else:
            if drawn:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            y = answers(predicted(site, cfg, model, records, records.every()), cfg.targets)
            await ensemble.send(y)
            taught = torch.as_tensor((await cohort.broadcast())["y"])
            if drawn:
                distil(site, cfg, model, records, taught, round, learner.public)
        site.score(model, round.number, "" if host else "local")
    site.deliver(model, "model" if host else "local", shared=host)
