"""Adaptive federated optimisation.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, arXiv 2003.00295, Algorithm 2 (FedAdam).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from secure_fl.algorithms.exact import root
from secure_fl.algorithms.settings import FedAdam
from secure_fl.algorithms.updates import (
    Update,
    add_,
    agree_on,
    local_update,
    shared_and_local,
    weighted_mean,
)
from secure_fl.learning.learning_rates import stride_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful

__all__ = ["FedAdam", "ServerAdam", "fedadam"]

STRIDES = 15  # the parties' steps in a server's step: about FedAvg's move of one value
ADAPTIVITY = 0.5  # τ/η: moves far below τ are applied in full, as by FedAvg


class ServerAdam:
    """The server's optimiser, which every party runs: sealed sums have no square roots."""

    def __init__(self, η: float, β1: float, β2: float, τ: float) -> None:
        self._η, self._β1, self._β2, self._τ = η, β1, β2, τ
        self._m: dict[str, Tensor] = {}
        self._v: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the weights' moves, given the parties' mean update."""
        η, β1, β2, τ, move = self._η, self._β1, self._β2, self._τ, {}
        for name, δ in Δ.items():
            m = self._m.setdefault(name, torch.zeros_like(δ))
            # Differs: v₀ = τ² as in the paper's experiments; its algorithm allows any v₀ ≥ τ².
            v = self._v.setdefault(name, torch.full_like(δ, τ**2))
            # One operation at a time: fused operations round differently on some machines.
            m.mul_(β1).add_(δ * (1 - β1))  # line 11
            v.mul_(β2).add_(δ * δ * (1 - β2))  # line 14
            move[name] = η * m / (root(v) + τ)  # line 15
        return move

    def state_dict(self) -> dict[str, Any]:
        """Return both moments for a checkpoint."""
        return {"m": self._m, "v": self._v}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the moments from `state_dict`."""
        self._m, self._v = dict(state["m"]), dict(state["v"])


def server_of(cfg: FedAdam, stride: float) -> ServerAdam:
    """Make the server's optimiser for parties with steps of this length."""
    η = cfg.server_learning_rate or STRIDES * stride
    return ServerAdam(η, cfg.beta1, cfg.beta2, cfg.tau or ADAPTIVITY * η)


async def fedadam(cohort: Cohort, site: Site, cfg: FedAdam) -> None:
    """Run FedAdam at one party."""
    model = site.model()
    server = server_of(cfg, stride_of(model, site.training))
    await cohort.agree(site.fingerprint(), "task")
    shared, local = shared_and_local(site, model)
    states: dict[str, Stateful] = {"model": shared, "server": server}
    async for round in cohort.rounds(cfg.rounds, keep={"head": local}, shared=states):
        Δ = local_update(site, model, cfg.epochs, round)  # lines 4-9
        mean = await weighted_mean(cohort, Δ, site.records)  # line 10
        add_(model, server.step(mean))
        await agree_on(cohort, model, Δ)
        site.score(model, round.number)
    site.deliver(model, shared=not site.local_head)
