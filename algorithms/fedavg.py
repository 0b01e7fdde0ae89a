"""Federated averaging, with any server's step and any correction of the local steps.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, arXiv 1602.05629, Algorithm 1.

`server_optimizers` has the steps of FedAdam, FedYogi, FedAvgM and FedExP, `drift` the corrections
of FedProx and SCAFFOLD.
"""

from __future__ import annotations

from secure_fl.algorithms.drift import Drift
from secure_fl.algorithms.server_optimizers import ModelAverage, server_of
from secure_fl.algorithms.settings import Averaging, FedAvg
from secure_fl.algorithms.updates import (
    add_,
    agree_on,
    local_update,
    shared_and_local,
    weighted_mean,
)
from secure_fl.learning.learning_rates import stride_of
from secure_fl.learning.models import averaging_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful

__all__ = ["FedAvg", "fedavg"]


async def fedavg(cohort: Cohort, site: Site, cfg: Averaging) -> None:
    """Run FedAvg, or a relative of it, at one party."""
    model = site.model()
    if (program := averaging_of(site.model_settings)) is not None:
        await program(cohort, site, model, cfg)
        return
    await cohort.agree(site.fingerprint(), "task")
    shared, local = shared_and_local(site, model)
    server, drift = server_of(cfg, stride_of(model, site.training)), Drift(cfg, shared)
    average = ModelAverage(model, shared.names, cfg.average)
    keep: dict[str, Stateful] = {"head": local, "variate": drift.own}
    common: dict[str, Stateful] = {"model": shared, "server": server, "average": average}
    common["variates"] = drift.common
    async for round in cohort.rounds(cfg.rounds, keep=keep, shared=common):
        optimizer = drift.optimizer(site)
        Δ = local_update(site, model, cfg.epochs, round, optimizer=optimizer)  # ClientUpdate
        values = {**Δ, **drift.variates(Δ), **server.asks(Δ)}
        # Differs: updates are averaged, not weights. In exact arithmetic the result is the same,
        # and updates have less quantisation error.
        mean = await weighted_mean(cohort, values, site.records)
        drift.receive(mean)
        add_(model, server.step(mean))  # w_{t+1} ← Σ (n_k/n)·w^k_{t+1}, if the server adds the mean
        await agree_on(cohort, model, Δ)
        average.take()
        site.score(average.model, round.number)
    site.deliver(average.model, shared=not site.local_head)
