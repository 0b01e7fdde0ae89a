"""FedDF: federated averaging, then the host distils the parties' mean prediction into the mean.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020, arXiv 2006.07242, Algorithm 1, with one architecture for all.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from secure_fl.algorithms.distilling import (
    Distilling,
    agree_on_ground,
    distil,
    ensemble_of,
    predicted,
)
from secure_fl.algorithms.host_sums import mean_at_host, send_update, send_weights, take_weights
from secure_fl.algorithms.public_records import PublicRecords
from secure_fl.algorithms.updates import Weights, add_, local_update, still
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort


class FedDF(Distilling):
    """The host opens the mean of models and of logits, and gives back what it makes of both."""

    name: Literal["feddf"] = "feddf"
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the mean logits; the default is the paper's."""
    logit_bound: Annotated[float, Field(gt=0)] = 20.0
    """Logits are clipped to ± this bound before they are sent."""


async def feddf(cohort: Cohort, site: Site, cfg: FedDF) -> None:
    """The program of every member: one is the host."""
    records = PublicRecords(site)
    ensemble = ensemble_of(cohort, site, cfg, records, bound=cfg.logit_bound + 1)
    await agree_on_ground(cohort, site, cfg, ensemble, same_model=True)
    model = site.model()
    shared = {"model": Weights(model, trainable(model))}
    async for round in cohort.rounds(cfg.rounds, shared=shared):
        drawn = await ensemble.begin(round.number)
        if cohort.is_host:
            add_(model, await mean_at_host(cohort, model))  # line 7: the mean of the models
            z = await ensemble.open()
            if cfg.labelled:
                site.fit(model, cfg.epochs, round)
            y = (z / cfg.temperature).softmax(-1)
            distil(site, cfg, model, records, y, round)  # lines 8-11
            await send_weights(cohort, model)
            site.score(model, round.number)
        else:
            Δ = (
                local_update(site, model, cfg.epochs, round) if drawn else still(model)
            )  # lines 4, 5
            await send_update(cohort, Δ, ensemble.weight)
            add_(model, Δ)
            z = predicted(site, cfg, model, records, records.every())
            await ensemble.send(z.clamp(-cfg.logit_bound, cfg.logit_bound))
            await take_weights(cohort, model)
    site.deliver(model)
