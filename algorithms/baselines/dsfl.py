"""DS-FL: predictions are averaged, sharpened, and learned by everybody.

Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated Learning
for Communication-Efficient Collaborative Training with Non-IID Private Data. IEEE Transactions on
Mobile Computing 22(1), 2023, arXiv 2008.06180, Sec. 3.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

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
from secure_fl.algorithms.public_records import PublicRecords, answers
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort


class DSFL(Teaching):
    """One-way distillation to the host and to the parties, from an average of low entropy."""

    name: Literal["dsfl"] = "dsfl"
    temperature: Annotated[float, Field(gt=0)] = 0.1
    """Temperature T; the default is the paper's."""


async def dsfl(cohort: Cohort, site: Site, cfg: DSFL) -> None:
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
            y = sharpened(as_shares(await ensemble.open()), cfg.temperature)
            await cohort.broadcast({"y": y.numpy()})
            if cfg.labelled:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
        else:
            if drawn:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            await ensemble.send(
                answers(predicted(site, cfg, model, records, records.every()), "soft")
            )
            y = torch.as_tensor((await cohort.broadcast())["y"])
        if host or drawn:
            distil(site, cfg, model, records, y, round, learner.public)
        site.score(model, round.number, "" if host else "local")
    site.deliver(model, "model" if host else "local", shared=host)


def sharpened(y: Tensor, temperature: float) -> Tensor:
    """Entropy reduction aggregation: softmax(y/T)."""
    return (y / temperature).softmax(-1)
