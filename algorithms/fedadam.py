"""Adaptive federated optimisation.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, arXiv 2003.00295, Algorithm 2 (FedAdam).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.exact import root
from secure_fl.algorithms.updates import (
    Update,
    add_,
    agree_on,
    common_and_own,
    local_update,
    weighted_mean,
)
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.settings import ModelSettings, TrainingSettings

Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class FedAdam(Algorithm):
    """FedAvg whose server step is Adam, replicated at the parties: ciphertexts have no roots."""

    name: Literal["fedadam"] = "fedadam"
    server_learning_rate: Rate = 2e-3  # η; 2τ is FedAvg's length where moves are far below τ
    beta1: Decay = 0.9  # β₁
    beta2: Decay = 0.99  # β₂
    tau: Rate = 1e-3  # τ, the degree of adaptivity

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and one sum of updates in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)


class AdamSettings(Protocol):
    """What the server's step needs to know, whichever algorithm takes it."""

    @property
    def server_learning_rate(self) -> float:
        """η."""

    @property
    def beta1(self) -> float:
        """β₁."""

    @property
    def beta2(self) -> float:
        """β₂."""

    @property
    def tau(self) -> float:
        """τ."""


class ServerAdam:
    """The server's optimiser: deterministic, so that every party can run its own copy of it."""

    def __init__(self, cfg: AdamSettings) -> None:
        self._cfg = cfg
        self._m: dict[str, Tensor] = {}
        self._v: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """How the weights move, given the parties' mean move."""
        cfg, move = self._cfg, {}
        for name, δ in Δ.items():
            m = self._m.setdefault(name, torch.zeros_like(δ))
            # Differs: v₀ = τ² as in the paper's experiments; its algorithm allows any v₀ ≥ τ².
            v = self._v.setdefault(name, torch.full_like(δ, cfg.tau**2))
            # One operation at a time: some machines round two in one once, others twice.
            m.mul_(cfg.beta1).add_(δ * (1 - cfg.beta1))  # line 11
            v.mul_(cfg.beta2).add_(δ * δ * (1 - cfg.beta2))  # line 14
            move[name] = cfg.server_learning_rate * m / (root(v) + cfg.tau)  # line 15
        return move

    def state_dict(self) -> dict[str, Any]:
        """Both moments, for checkpoints."""
        return {"m": self._m, "v": self._v}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._m, self._v = dict(state["m"]), dict(state["v"])


async def fedadam(cohort: Cohort, site: Site, cfg: FedAdam) -> None:
    """The party program."""
    model, server = site.model(), ServerAdam(cfg)
    await cohort.agree(site.fingerprint(), "task")
    common, own = common_and_own(site, model)
    shared: dict[str, Stateful] = {"model": common, "server": server}
    async for round in cohort.rounds(cfg.rounds, keep={"head": own}, shared=shared):
        Δ = local_update(site, model, cfg.epochs, round)  # lines 4-9
        mean = await weighted_mean(cohort, Δ, site.records)  # line 10
        add_(model, server.step(mean))
        await agree_on(cohort, model, Δ)
        site.score(model, round.number)
    site.deliver(model, shared=not site.local_head)
