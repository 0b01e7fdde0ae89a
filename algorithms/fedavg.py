"""Federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, arXiv 1602.05629, Algorithm 1.
"""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms import products
from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.updates import add_, agree_on, common_and_own, local_update, weighted_mean
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, TrainingSettings


class FedAvg(Algorithm):
    """Every party trains the shared model; the mean of their moves, by records, is the next."""

    name: Literal["fedavg"] = "fedavg"

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and one sum of updates in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)


async def fedavg(cohort: Cohort, site: Site, cfg: FedAvg) -> None:
    """The party program."""
    model = site.model()
    if products.wanted(site):  # adapters, of which not the factors are averaged
        return await products.average(cohort, site, model, cfg)
    await cohort.agree(site.fingerprint(), "task")
    common, own = common_and_own(site, model)
    async for round in cohort.rounds(cfg.rounds, keep={"head": own}, shared={"model": common}):
        Δ = local_update(site, model, cfg.epochs, round)  # ClientUpdate(k, w_t)
        # Differs: moves are averaged, not weights; the same in exact arithmetic, and they
        # quantise better.
        add_(model, await weighted_mean(cohort, Δ, site.records))  # w_{t+1} ← Σ (n_k/n)·w^k_{t+1}
        await agree_on(cohort, model, Δ)
        site.score(model, round.number)
    site.deliver(model, shared=not site.local_head)
