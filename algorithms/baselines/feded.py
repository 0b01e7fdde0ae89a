"""FedED: predictions go up, the central model's weights come down.

Sui, Chen, Zhao, Jia, Xie, Sun: FedED: Federated Learning via Ensemble Distillation for Medical
Relation Extraction. EMNLP 2020. Differs: over unlabelled public records, as FedID's paper does it.
"""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms.distilling import (
    Distilling,
    agree_on_ground,
    distil,
    ensemble_of,
    predicted,
)
from secure_fl.algorithms.ensembles import as_shares
from secure_fl.algorithms.host_sums import send_weights, take_weights
from secure_fl.algorithms.public_records import PublicRecords, answers
from secure_fl.algorithms.updates import Weights
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort


class FedED(Distilling):
    """Every round begins with the host's model at all parties; only predictions leave them."""

    name: Literal["feded"] = "feded"


async def feded(cohort: Cohort, site: Site, cfg: FedED) -> None:
    """The program of every member: one is the host."""
    records = PublicRecords(site)
    ensemble = ensemble_of(cohort, site, cfg, records)
    await agree_on_ground(cohort, site, cfg, ensemble, same_model=True)
    model = site.model()
    shared = {"model": Weights(model, trainable(model))}
    async for round in cohort.rounds(cfg.rounds, shared=shared):
        drawn = await ensemble.begin(round.number)
        if cohort.is_host:
            y = as_shares(await ensemble.open())
            if cfg.labelled:
                site.fit(model, cfg.epochs, round)
            distil(site, cfg, model, records, y, round)  # KL: its gradient is this
            await send_weights(cohort, model)
            site.score(model, round.number)
        else:
            if drawn:
                site.fit(model, cfg.epochs, round)
            await ensemble.send(
                answers(predicted(site, cfg, model, records, records.every()), "soft")
            )
            await take_weights(cohort, model)
    site.deliver(model)
