"""Server optimisers: the step from the mean update to the next model, and averages of models.

Every party repeats the server's step, because sealed sums have no square roots.

- FedAdam, FedYogi: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive
  Federated Optimization. ICLR 2021, arXiv 2003.00295, Algorithm 2.
- FedAvgM: Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated
  Visual Classification. 2019, arXiv 1909.06335.
- FedExP: Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation.
  ICLR 2023, arXiv 2301.09604, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.algorithms.exact import root, total
from secure_fl.algorithms.settings import (
    AdaptiveServer,
    Averaging,
    FedAvgM,
    FedExP,
    FedYogi,
    Scaffold,
)
from secure_fl.algorithms.updates import SavedDict, Update, Weights
from secure_fl.learning.anatomy import trainable

STRIDES = 15  # the parties' steps in a server's step: about FedAvg's move of one value
ADAPTIVITY = 0.5  # τ/η: moves far below τ are applied in full, as by FedAvg
SQUARES = "squares"  # the name under which squared norms of updates are summed


class ServerSGD(SavedDict):
    """The linear server, whose state is empty."""

    def __init__(self, η: float = 1.0) -> None:
        super().__init__()
        self._η = η

    def asks(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return a party's values, besides its update, whose means the step needs."""
        return {}

    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the weights' moves, given the parties' mean update."""
        return dict(Δ) if self._η == 1 else {name: self._η * δ for name, δ in Δ.items()}

    def moment(self, of: str, name: str, δ: Tensor, first: float = 0.0) -> Tensor:
        """Return a moment of a weight, which steps update in place."""
        moments = self.setdefault(of, {})
        if name not in moments:
            moments[name] = torch.full_like(δ, first)
        moments[name] = moments[name].to(δ.device)  # a checkpoint's is on the CPU
        found: Tensor = moments[name]
        return found


class ServerMomentum(ServerSGD):
    """FedAvgM: v ← β·v + Δ, w ← w + η·v."""

    def __init__(self, η: float, β: float) -> None:
        super().__init__(η)
        self._β = β

    @torch.no_grad()
    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the weights' moves, given the parties' mean update."""
        v = {name: self.moment("v", name, δ).mul_(self._β).add_(δ) for name, δ in Δ.items()}
        return {name: self._η * value for name, value in v.items()}


class ServerAdam(ServerSGD):
    """FedAdam."""

    def __init__(self, η: float, β1: float, β2: float, τ: float) -> None:
        super().__init__(η)
        self._β1, self._β2, self._τ = β1, β2, τ

    @torch.no_grad()
    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the weights' moves, given the parties' mean update."""
        η, β1, τ, move = self._η, self._β1, self._τ, {}
        for name, δ in Δ.items():
            m = self.moment("m", name, δ)
            # Differs: v₀ = τ² as in the paper's experiments; its algorithm allows any v₀ ≥ τ².
            v = self.moment("v", name, δ, τ**2)
            # One operation at a time: fused operations round differently on some machines.
            m.mul_(β1).add_(δ * (1 - β1))  # line 11
            self._second(v, δ)
            move[name] = η * m / (root(v) + τ)  # line 15
        return move

    def _second(self, v: Tensor, δ: Tensor) -> None:
        v.mul_(self._β2).add_(δ * δ * (1 - self._β2))  # line 14


class ServerYogi(ServerAdam):
    """FedYogi: v moves towards Δ² by at most (1 - β₂)·Δ², so a small Δ does not shrink it fast."""

    def _second(self, v: Tensor, δ: Tensor) -> None:
        square = δ * δ
        v.sub_(square * (1 - self._β2) * torch.sign(v - square))  # line 13


class ServerExP(ServerSGD):
    """FedExP: in each round η = max(1, mean ‖Δₖ‖² / (2·(‖mean Δₖ‖² + ε)))."""

    def __init__(self, ε: float) -> None:
        super().__init__()
        self._ε = ε

    def asks(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the squared norm of a party's update."""
        return {SQUARES: torch.tensor(squared_norm(Δ), dtype=torch.float64)}

    @torch.no_grad()
    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the weights' moves, given the means of updates and of their squared norms."""
        mean = {name: δ for name, δ in Δ.items() if name != SQUARES}
        # Differs: both means weight the parties by records, as the mean update of FedAvg does.
        η = max(1.0, float(Δ[SQUARES]) / (2 * (squared_norm(mean) + self._ε)))
        return {name: η * δ for name, δ in mean.items()}


def squared_norm(Δ: Mapping[str, Tensor]) -> float:
    """Compute ‖Δ‖², with the same bits on all machines."""
    return sum((total(δ.double() ** 2) for δ in Δ.values()), 0.0)


def server_of(cfg: Averaging, stride: float) -> ServerSGD:
    """Make the server's optimiser for parties with steps of this length."""
    match cfg:
        case AdaptiveServer():
            η = cfg.server_learning_rate or STRIDES * stride
            kind = ServerYogi if isinstance(cfg, FedYogi) else ServerAdam
            return kind(η, cfg.beta1, cfg.beta2, cfg.tau or ADAPTIVITY * η)
        case FedAvgM():
            return ServerMomentum(cfg.server_learning_rate, cfg.momentum)
        case FedExP():
            return ServerExP(cfg.damping)
        case Scaffold():
            return ServerSGD(cfg.server_learning_rate)
    return ServerSGD()


class ModelAverage:
    """An exponential moving average of the rounds' models, which every party computes.

    The model of t rounds ago has the weight decayᵗ, and the weights add up to 1.
    """

    def __init__(self, model: nn.Module, names: Iterable[str], decay: float) -> None:
        """`names`: the averaged weights; the average shares all others with the model."""
        self._of, self._decay, self._weight = Weights(model, names), decay, 0.0
        averaged = {id(weight) for weight in self._of.weights().values()}
        others = {id(p): p for p in model.parameters() if id(p) not in averaged}
        self.model = deepcopy(model, dict(others)) if decay else model

    @torch.no_grad()
    def take(self) -> None:
        """Add the model's current weights to the average."""
        if not self._decay:
            return
        self._weight = self._decay * self._weight + 1
        mean = trainable(self.model)
        for name, weight in self._of.weights().items():
            mean[name].add_((weight - mean[name]) / self._weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the average for a checkpoint."""
        if not self._decay:
            return {}
        return {"weight": self._weight, "mean": self._mean.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the average from `state_dict`."""
        if self._decay:
            self._weight = state["weight"]
            self._mean.load_state_dict(state["mean"])

    @property
    def _mean(self) -> Weights:
        return Weights(self.model, self._of.names)
