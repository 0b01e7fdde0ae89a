"""Adaptive federated optimisation.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, arXiv 2003.00295, Algorithm 2 (FedAdam).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

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
from secure_fl.learning.learning_rates import stride_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.settings import ModelSettings, TrainingSettings

Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]

STRIDES = 15  # members' steps in one of the server's: about as far as FedAvg moves a value
ADAPTIVITY = 0.5  # τ/η: moves far below τ are taken as far as they went, as by FedAvg


class FedAdam(Algorithm):
    """FedAvg whose server step is Adam, replicated at the parties: ciphertexts have no roots."""

    name: Literal["fedadam"] = "fedadam"
    server_learning_rate: Rate | None = None  # η; left out: 15 of the members' steps
    beta1: Decay = 0.0  # β₁; the paper's 0.9 is a mean of some ten rounds: all that many runs have
    beta2: Decay = 0.99  # β₂
    tau: Rate | None = None  # τ, the degree of adaptivity; left out: η/2

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and one sum of updates in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)


class ServerAdam:
    """The server's optimiser: deterministic, so that every party can run its own copy of it."""

    def __init__(self, η: float, β1: float, β2: float, τ: float) -> None:
        self._η, self._β1, self._β2, self._τ = η, β1, β2, τ
        self._m: dict[str, Tensor] = {}
        self._v: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """How the weights move, given the parties' mean move."""
        η, β1, β2, τ, move = self._η, self._β1, self._β2, self._τ, {}
        for name, δ in Δ.items():
            m = self._m.setdefault(name, torch.zeros_like(δ))
            # Differs: v₀ = τ² as in the paper's experiments; its algorithm allows any v₀ ≥ τ².
            v = self._v.setdefault(name, torch.full_like(δ, τ**2))
            # One operation at a time: some machines round two in one once, others twice.
            m.mul_(β1).add_(δ * (1 - β1))  # line 11
            v.mul_(β2).add_(δ * δ * (1 - β2))  # line 14
            move[name] = η * m / (root(v) + τ)  # line 15
        return move

    def state_dict(self) -> dict[str, Any]:
        """Both moments, for checkpoints."""
        return {"m": self._m, "v": self._v}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._m, self._v = dict(state["m"]), dict(state["v"])


def server_of(cfg: FedAdam, stride: float) -> ServerAdam:
    """The server's optimiser for members whose steps are of this length."""
    η = cfg.server_learning_rate or STRIDES * stride
    return ServerAdam(η, cfg.beta1, cfg.beta2, cfg.tau or ADAPTIVITY * η)


async def fedadam(cohort: Cohort, site: Site, cfg: FedAdam) -> None:
    """The party program."""
    model = site.model()
    server = server_of(cfg, stride_of(model, site.training))
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
