"""Nested sub-models as regions: every region is what the same tiers own, so it has one sum.

A tier's slices lie inside those of every wider tier. What a tier owns and the next narrower one
does not is a region of its own; parties send a region only if they own it, and never a zero for
what they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secure_fl.algorithms.baselines.heterofl.narrow import Places
from secure_fl.algorithms.updates import digest

Block = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """How one parameter is cut: with its places in this order, every tier's slice comes first."""

    orders: Places  # by axis
    sizes: Sequence[tuple[int, ...]]  # tier -> by axis

    @classmethod
    def of(cls, own: Places, tiers: Sequence[Places]) -> Nest:
        """Order the places of `own` by the first tier, from the narrowest, that has them."""
        orders = []
        for axis, mine in enumerate(own):
            lacking = sum(~torch.isin(mine, theirs[axis]) for theirs in tiers)
            orders.append(torch.argsort(torch.as_tensor(lacking), stable=True))
        return cls(tuple(orders), [tuple(len(kept) for kept in at) for at in tiers])

    def blocks(self, tier: int) -> Iterator[Block]:
        """Where, in this order, the region of a tier lies: its slice less the narrower one's."""
        size = self.sizes[tier]
        inner = self.sizes[tier - 1] if tier else (0,) * len(size)
        for axis in range(len(size)):
            block = (
                *(slice(inner[a]) for a in range(axis)),
                slice(inner[axis], size[axis]),
                *(slice(size[a]) for a in range(axis + 1, len(size))),
            )
            if all(part.start != part.stop and part.stop for part in block):
                yield block

    def ordered(self, value: Tensor, *, back: bool = False) -> Tensor:
        """The value with its places in this order, or put back from it."""
        for axis, order in enumerate(self.orders):
            if not torch.equal(order, torch.arange(len(order))):
                places = torch.argsort(order) if back else order
                value = value.index_select(axis, places.to(value.device))
        return value


@dataclass(frozen=True, slots=True)
class Regions:
    """A party's parameters, cut where fewer tiers own them."""

    tiers: Sequence[str]  # the party's own and all narrower ones, from the narrowest
    nests: Mapping[str, Nest]

    @classmethod
    def of(cls, own: str, places: Mapping[str, Mapping[str, Places]]) -> Regions:
        """The regions of the tier `own`; `places` are those of each tier, narrowest first."""
        tiers = list(places)[: list(places).index(own) + 1]
        nests = {
            name: Nest.of(at, [places[tier][name] for tier in tiers])
            for name, at in places[own].items()
        }
        return cls(tiers, nests)

    def cut(self, values: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Tier -> the values of its regions, by parameter and tier."""
        found: dict[str, dict[str, Tensor]] = {tier: {} for tier in self.tiers}
        for name, value in values.items():
            nest = self.nests[name]
            ordered = nest.ordered(value)
            for at, tier in enumerate(self.tiers):
                parts = [ordered[block].flatten() for block in nest.blocks(at)]
                if parts:
                    found[tier][f"{name}#{tier}"] = torch.cat(parts)
        return found

    @torch.no_grad()
    def add_(self, weights: Mapping[str, Tensor], moves: Mapping[str, Tensor]) -> None:
        """Move every region that `moves` has."""
        for name, weight in weights.items():
            nest, ordered = self.nests[name], torch.zeros_like(weight)
            for at, tier in enumerate(self.tiers):
                rest = moves.get(f"{name}#{tier}", torch.zeros(0))
                for block in nest.blocks(at) if len(rest) else ():
                    place = ordered[block]
                    place.copy_(rest[: place.numel()].view_as(place))
                    rest = rest[place.numel() :]
            weight.add_(nest.ordered(ordered, back=True))

    def digest(self, weights: Mapping[str, Tensor]) -> bytes:
        """A fingerprint of what the narrowest tier owns, and so everybody."""
        return digest(self.cut(weights)[self.tiers[0]])
