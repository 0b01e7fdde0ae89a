"""Lines 15-23 of Algorithm 1: mixing of tiers, momentum distillation and the server's step.

Liu et al., KDD 2022, Sec. 3.2. Momentum distillation mixes the mean update of a larger model's
upper layers into a smaller model. The server (line 19) moves by FedAdam, or by the mean alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Protocol

import torch
from torch import Tensor

from secure_fl.algorithms.fedadam import ServerAdam
from secure_fl.algorithms.inclusivefl.participants import Participants
from secure_fl.algorithms.inclusivefl.settings import MomentumSource, Tiered
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.updates import SavedDict, Update
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful


@dataclass(frozen=True)
class PartyModel:
    """One party's tier, and the parameters of its model that take part in sums."""

    me: str
    tier: str | None  # None: the party holds no model
    parts: Mapping[str, Part]
    weights: Mapping[str, Tensor]  # the same names; read for shapes only

    def shared_with(self, tier: str, who: Participants) -> tuple[str, ...]:
        """List the parameters that this party's tier shares with another tier."""
        both = {tier, self.tier}
        return tuple(n for n, part in self.parts.items() if both <= {*who.ladder.sharers(part)})

    def last(self, who: Participants) -> dict[str, str]:
        """Map the isolated encoder layer's parameters: name in the layer -> name in the model."""
        return {} if self.tier is None else of_layer(who.ladder.last(self.tier), self.parts)


class Mixing(ABC):
    """One round at one party, between local training and the next model."""

    def __init__(
        self, party: PartyModel, server: Server, beta: float, source: MomentumSource
    ) -> None:
        self._party, self._server, self._beta, self._source = party, server, beta, source
        self._momentum: Update = {}

    def trains(self, who: Participants) -> bool:
        """Return True if this party is drawn and its tier does not skip the round."""
        return self._party.tier is not None and self._party.me in who.training(self._party.tier)

    def common(self, who: Participants) -> dict[str, tuple[str, ...]]:
        """Group the parameters that must be equal at all parties that hold them.

        Shared parameters are grouped by the smallest tier that has them; a party's own head is in
        no group.
        """
        party, ladder = self._party, who.ladder
        if party.tier is None:
            return {}
        upto = ladder.tiers[: ladder.tiers.index(party.tier) + 1]
        groups = {f"shared from {tier}": party.shared_with(tier, who) for tier in upto}
        return groups | {party.tier: tuple(party.parts)}

    @abstractmethod
    async def step(
        self, cohort: Cohort, who: Participants, g: Update | None, weight: float
    ) -> Update:
        """Send g (None: this party does not train in this round); return the weights' moves."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"momentum": self._momentum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self._momentum = dict(state["momentum"])


def opened_mean(sums: Mapping[str, Any], name: str, weight: str) -> Tensor:
    """Divide an opened sum by the sum of its weights, on the CPU, alike at all parties."""
    return torch.as_tensor(sums[name] / float(sums[weight]), dtype=torch.float32)


def of_layer(layer: int, parts: Mapping[str, Part]) -> dict[str, str]:
    """Map names within a layer ("attention.self.query.weight") to names in the model."""
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
    """Line 17: g^{j,L_j} ← β·m^k_{t-1} + (1 - β)·g^{j,L_j}; the rest of g is unchanged."""
    mixed = {name: beta * m[inner] + (1 - beta) * g[name] for inner, name in last.items()}
    return {**g, **mixed}


class Server(Stateful, Protocol):
    """The server's step, which every party repeats."""

    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return the weights' moves, given the parties' mean update."""


class ServerSGD(SavedDict):
    """The linear server, whose state is empty."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate

    def step(self, Δ: Mapping[str, Tensor]) -> Update:
        """Return η·Δ."""
        return {name: self._rate * δ for name, δ in Δ.items()}


def server_of(cfg: Tiered) -> Server:
    """Make the server of these settings."""
    if cfg.server_optimizer == "linear":
        return ServerSGD(cfg.linear_rate)
    return ServerAdam(cfg.server_learning_rate, cfg.beta1, cfg.beta2, cfg.tau)
