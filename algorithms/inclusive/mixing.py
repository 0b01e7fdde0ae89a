"""What the two ways of mixing tiers have in common.

`tier_sums`: a sum per tier, as Algorithm 1 prints it. `sealed_mixing`: one sum per result, mixed
under encryption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from secure_fl.algorithms.inclusive.server import of_layer
from secure_fl.algorithms.inclusive.turn import Turn
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort

Reading = Literal["unmixed", "mixed", "off"]


@dataclass(frozen=True)
class Own:
    """What one party brings: its tier, and the parameters of its model that are not its own."""

    me: str
    tier: str | None  # None: it holds no model, and only follows
    parts: Mapping[str, Part]
    weights: Mapping[str, Tensor]  # the same names; read for shapes only

    def shared_with(self, tier: str, turn: Turn) -> tuple[str, ...]:
        """The names of what both this party's tier and another share."""
        both = {tier, self.tier}
        return tuple(n for n, part in self.parts.items() if both <= {*turn.ladder.sharers(part)})

    def last(self, turn: Turn) -> dict[str, str]:
        """The isolated encoder layer: name within the layer -> name in the model."""
        return {} if self.tier is None else of_layer(turn.ladder.last(self.tier), self.parts)


class Mixing(Protocol):
    """One round between local training and the next model, at one party."""

    def trains(self, turn: Turn) -> bool:
        """Whether this party's update is of use in this round."""

    async def step(self, cohort: Cohort, turn: Turn, g: Update | None, weight: float) -> Update:
        """Send g (None: this party does not train in this round); return how the weights move."""

    def common(self, turn: Turn) -> Mapping[str, tuple[str, ...]]:
        """What must be equal at whoever holds it: a name for it -> the parameters' names."""

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""


def common_parts(own: Own, turn: Turn) -> dict[str, tuple[str, ...]]:
    """All shared parts, by the smallest tier that has them, and the isolated ones of this tier."""
    if own.tier is None:
        return {}
    ladder, found = turn.ladder, {}
    for tier in ladder.tiers[: ladder.tiers.index(own.tier) + 1]:
        found[f"shared from {tier}"] = own.shared_with(tier, turn)
    found[own.tier] = tuple(own.parts)
    return found


class Opened:
    """Opened sums, as means."""

    def __init__(self, sums: Mapping[str, Any]) -> None:
        self._sums = sums

    def __contains__(self, name: object) -> bool:
        return name in self._sums

    def total(self, name: str) -> float:
        """A sum of weights."""
        return float(self._sums[name])

    def mean(self, name: str, weight: str) -> Tensor:
        """A sum over the sum of its weights; computed alike, on the CPU, by every party."""
        return torch.as_tensor(self._sums[name] / self.total(weight), dtype=torch.float32)
