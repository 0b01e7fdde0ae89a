"""FedKD by Gong et al.: one exchange of predictions, one-way, to the central model.

Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje: Preserving Privacy in Federated Learning with
Ensemble Cross-Domain Knowledge Distillation. AAAI 2022, arXiv 2209.04599. It is called FedKD in
FedID's tables, and has nothing to do with `fedkd`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch.nn.functional as F  # noqa: N812 - torch's own habit
from pydantic import Field
from torch import Tensor

from secure_fl.algorithms.distilling import (
    Distilling,
    Learner,
    agree_on_ground,
    distil,
    ensemble_of,
    predicted,
)
from secure_fl.algorithms.public_records import PublicRecords
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Positive


class Gong(Distilling):
    """Parties train alone, then the host learns the mean of their logits."""

    name: Literal["gong"] = "gong"
    rounds: Literal[1] = 1
    """The method has one exchange."""
    epochs: Positive = 30
    """Local passes; as many as other algorithms make in ten rounds."""
    distill_epochs: Positive = 10
    distance: Literal["mse", "l1"] = "mse"
    """Distance of the host's logits from the mean."""
    logit_bound: Annotated[float, Field(gt=0)] = 20.0
    """Logits are clipped to ± this bound before they are sent."""


async def gong(cohort: Cohort, site: Site, cfg: Gong) -> None:
    """The program of every member: one is the host."""
    records = PublicRecords(site)
    ensemble = ensemble_of(cohort, site, cfg, records, bound=cfg.logit_bound + 1)
    await agree_on_ground(cohort, site, cfg, ensemble)
    model, host = site.model(), cohort.is_host
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        drawn = await ensemble.begin(round.number)
        if host:
            z = await ensemble.open()
            if cfg.labelled:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            loss = F.mse_loss if cfg.distance == "mse" else F.l1_loss
            distil(site, cfg, model, records, z, round, learner.public, loss)
        else:
            if drawn:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            await ensemble.send(bounded(predicted(site, cfg, model, records, records.every()), cfg))
        site.score(model, round.number, "" if host else "local")
    site.deliver(model, "model" if host else "local", shared=host)


def bounded(z: Tensor, cfg: Gong) -> Tensor:
    """Logits within what a sum can carry."""
    return z.clamp(-cfg.logit_bound, cfg.logit_bound)
