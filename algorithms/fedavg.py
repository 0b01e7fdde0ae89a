"""Federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, arXiv 1602.05629, Algorithm 1.
"""

from __future__ import annotations

from secure_fl.algorithms.settings import FedAvg
from secure_fl.algorithms.updates import (
    add_,
    agree_on,
    local_update,
    shared_and_local,
    weighted_mean,
)
from secure_fl.learning.models import averaging_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort

__all__ = ["FedAvg", "fedavg"]


async def fedavg(cohort: Cohort, site: Site, cfg: FedAvg) -> None:
    """Run FedAvg at one party."""
    model = site.model()
    if (program := averaging_of(site.model_settings)) is not None:
        await program(cohort, site, model, cfg)
        return
    await cohort.agree(site.fingerprint(), "task")
    shared, local = shared_and_local(site, model)
    async for round in cohort.rounds(cfg.rounds, keep={"head": local}, shared={"model": shared}):
        Δ = local_update(site, model, cfg.epochs, round)  # ClientUpdate(k, w_t)
        # Differs: updates are averaged, not weights. In exact arithmetic the result is the same,
        # and updates have less quantisation error.
        add_(model, await weighted_mean(cohort, Δ, site.records))  # w_{t+1} ← Σ (n_k/n)·w^k_{t+1}
        await agree_on(cohort, model, Δ)
        site.score(model, round.number)
    site.deliver(model, shared=not site.local_head)
