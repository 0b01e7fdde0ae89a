"""Lines 15-23 of Algorithm 1: how a sub-model moves, and what a smaller one learns from it.

Liu et al., KDD 2022, Sec. 3.2. Momentum distillation mixes the mean update of a larger model's
upper layers into a smaller one; the server (line 19) moves by FedAdam, or by the mean alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Any, Protocol

from torch import Tensor

from secure_fl.algorithms.fedadam import ServerAdam
from secure_fl.algorithms.inclusive.settings import Tiered
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.updates import Update


def of_layer(layer: int, parts: Mapping[str, Part]) -> dict[str, str]:
    """Name within a layer ("attention.self.query.weight") -> the parameter's whole name."""
    mine = [name for name, part in parts.items() if part == layer]
    return {name.partition(f".{layer}.")[2]: name for name in mine}


def momentum(g: Mapping[str, Tensor], layers: Iterable[int], parts: Mapping[str, Part]) -> Update:
    """Line 22: m = 1/(L_j - L_- + 1) · Σ_{l ∈ [L_- : L_j]} g^{j,l}, by name within a layer."""
    stacks: dict[str, list[Tensor]] = {}
    for layer in layers:
        for inner, name in of_layer(layer, parts).items():
            stacks.setdefault(inner, []).append(g[name])
    return {inner: reduce(add, values) / len(values) for inner, values in stacks.items()}


def mix(
    g: Mapping[str, Tensor], m: Mapping[str, Tensor], beta: float, last: Mapping[str, str]
) -> Update:
    """Line 17: g^{j,L_j} ← β·m^k_{t-1} + (1 - β)·g^{j,L_j}; the rest of g stays."""
    mixed = {name: beta * m[inner] + (1 - beta) * g[name] for inner, name in last.items()}
    return {**g, **mixed}


class Server(Protocol):
    """The step that every party repeats for itself."""

    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """How the weights move, given the parties' mean move."""

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""


class ServerSGD:
    """The linear server: it remembers nothing."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """η·Δ."""
        return {name: self._rate * δ for name, δ in Δ.items()}

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


def server_of(cfg: Tiered) -> Server:
    """The settings' server."""
    if cfg.server_optimizer == "linear":
        return ServerSGD(cfg.linear_rate)
    return ServerAdam(cfg.server_learning_rate, cfg.beta1, cfg.beta2, cfg.tau)
