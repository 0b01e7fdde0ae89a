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
from typing import Any

import torch
from torch import Tensor

from secure_fl.algorithms.inclusivefl.participants import (
    Participants,
    require_large_tiers,
    require_shared_layers,
)
from secure_fl.algorithms.inclusivefl.settings import MomentumSource, Tiered
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.server_optimizers import ServerAdam, ServerSGD
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort


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

    def own(self, who: Participants) -> set[str]:
        """Return the parameters with too few owners for a sum, which stay at this party."""
        tier = self.tier
        if tier is None:
            return set()
        return {name for name, part in self.parts.items() if who.stays(part, tier)}

    def last(self, who: Participants) -> dict[str, str]:
        """Map the isolated encoder layer's parameters: name in the layer -> name in the model."""
        return {} if self.tier is None else of_layer(who.ladder.last(self.tier), self.parts)


class Mixing(ABC):
    """One round at one party, between local training and the next model."""

    def __init__(
        self, party: PartyModel, server: ServerSGD, beta: float, source: MomentumSource
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
        groups[party.tier] = tuple(party.parts)
        own = party.own(who)
        return {about: tuple(n for n in names if n not in own) for about, names in groups.items()}

    @abstractmethod
    def check(self, who: Participants) -> None:
        """Refuse tiers that this mixing cannot sum, before any training."""

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


def server_of(cfg: Tiered) -> ServerSGD:
    """Make the server of these settings."""
    if cfg.server_optimizer == "linear":
        return ServerSGD(cfg.linear_rate)
    return ServerAdam(cfg.server_learning_rate, cfg.beta1, cfg.beta2, cfg.tau)


class SealedMixing(Mixing):
    """Mixing with one sealed result per layer and equal weights (`weights = "users"`).

    Its momentum is that of this party's own last update, by name in a layer. Layers with fewer
    owners than `min_cohort` are in no sum, and small tiers neither give nor take momentum.
    """

    def check(self, who: Participants) -> None:
        """Refuse a tier that would share nothing."""
        require_shared_layers(who, self._party.me, self._party.parts.values())

    async def step(
        self, cohort: Cohort, who: Participants, g: Update | None, weight: float
    ) -> Update:
        """Run lines 14-29 as one sum."""
        addends = {
            **(self._updates(g, who) if g is not None else {}),
            **self._momentum_addends(who),
        }
        needed = self._needed(who)
        if not self._sums_anything(who):
            return {}
        reads = {name: value for name, value in needed.items() if name not in addends}
        opened = await cohort.sum(addends, partial=True, read=reads, carry=True)
        mean = {}
        for name, part in self._party.parts.items():
            result, total = self._result(name, part, who)
            if result in opened:
                mean[name] = opened_mean(opened, result, total)
        self._store_momentum(g, mean, who)
        return self._server.step(mean)

    def _sums_anything(self, who: Participants) -> bool:
        """Return True if any party sums a part in this round; all parties find the same."""
        parts = self._party.parts.values()
        return any(
            who.summed(part, tier)
            for tier in who.ladder.tiers
            for part in who.ladder.parts(tier, embeddings="embeddings" in parts)
        )

    def _summed(self, who: Participants) -> dict[str, Part]:
        """Return this party's parameters that are summed in this round."""
        tier, parts = self._party.tier or "", self._party.parts
        return {name: part for name, part in parts.items() if who.summed(part, tier)}

    def _updates(self, g: Update, who: Participants) -> dict[str, Tensor | float]:
        """Scale this round's update, under the names of the results (lines 14, 17 and 26-27)."""
        j = self._party.tier or ""
        addends: dict[str, Tensor | float] = {}
        for name, part in self._summed(who).items():
            factor = 1.0
            if part == who.ladder.last(j) and self._has_teacher(j, who):
                factor = (1 - self._beta) / len(who.training(j))
            result, total = self._result(name, part, who)
            addends |= {result: factor * g[name], total: factor}
        return addends

    def _momentum_addends(self, who: Participants) -> dict[str, Tensor | float]:
        """Return line 17's β·m^k_{t-1}, which tier k adds to the smaller tier's last layer."""
        k = self._party.tier
        j = None if k is None else who.ladder.below(k)
        if j is None or self._party.me not in who.before or not self._has_teacher(j, who):
            return {}
        factor = self._beta / len(who.teachers(k or ""))
        names = PartyModel("", j, self._party.parts, self._party.weights).last(who)
        addends: dict[str, Tensor | float] = {f"{j}/last/weight": factor}
        for inner, value in self._momentum.items():
            if inner in names:  # a model's first layer may lack a norm that the others have
                addends[f"{j}/{names[inner]}"] = factor * value
        return addends

    def _has_teacher(self, j: str, who: Participants) -> bool:
        """Return True if tier j trains and the next larger tier has an update of the last round."""
        k = who.ladder.above(j)
        if k is None or who.small(j) or who.small(k):
            return False
        return self._source != "off" and bool(who.training(j) and who.teachers(k))

    def _result(self, name: str, part: Part, who: Participants) -> tuple[str, str]:
        """Name the sum that becomes this parameter's move, and the sum of its factors."""
        j, sharers = self._party.tier, who.ladder.sharers(part)
        if j in sharers:
            return f"shared/{name}", f"shared/{sharers[0]}/weight"
        inner = "last/weight" if part == who.ladder.last(j or "") else "weight"
        return f"{j}/{name}", f"{j}/{inner}"

    def _needed(self, who: Participants) -> dict[str, Any]:
        """List all results of this party's model, and all sums of factors."""
        needed: dict[str, Any] = {}
        for name, part in self._summed(who).items():
            needed[self._result(name, part, who)[0]] = self._party.weights[name]
        for tier in who.ladder.tiers:
            names = (f"shared/{tier}/weight", f"{tier}/weight", f"{tier}/last/weight")
            needed |= dict.fromkeys(names, 0.0)
        return needed

    def _store_momentum(self, g: Update | None, mean: Update, who: Participants) -> None:
        """Apply line 22 to this party's update; as printed, line 17 has replaced its last layer."""
        j = self._party.tier or ""
        if g is None or self._source == "off" or who.small(j):
            self._momentum = {}
            return
        if self._source == "mixed":
            g = g | {name: mean[name] for name in self._party.last(who).values()}
        self._momentum = momentum(g, who.ladder.distilled(j), self._party.parts)


class TierSums(Mixing):
    """Mixing by per-tier sums, FedAdam for each sub-model, and averages of shared layers.

    Its momentum is m^k_{t-1} of the next larger tier k, as last opened.
    """

    def check(self, who: Participants) -> None:
        """Refuse a tier with fewer members than `min_cohort`: every tier has a sum."""
        require_large_tiers(who, self._party.me)

    async def step(
        self, cohort: Cohort, who: Participants, g: Update | None, weight: float
    ) -> Update:
        """Run lines 14-29."""
        party, ladder, j = self._party, who.ladder, self._party.tier
        present = who.present(ladder.tiers)
        if not present:
            return {}
        addends: dict[str, Tensor | float] = {}
        if g is not None:
            addends = {name: weight * value for name, value in self._addends(g, who)}
            addends[f"{j}/weight"] = weight
        needed = self._needed(who) | {f"{tier}/weight": 0.0 for tier in present}
        reads = {name: value for name, value in needed.items() if name not in addends}
        sums = await cohort.sum(addends, partial=True, read=reads, carry=True)

        moves: dict[str, Update] = {}
        for tier in present:
            names = tuple(party.parts) if tier == j else party.shared_with(tier, who)
            mean = {n: opened_mean(sums, f"{tier}/{n}", f"{tier}/weight") for n in names}  # line 14
            # Differs: as printed, m = 0 would shrink round 1's last layers by 1-β.
            if tier == j and self._momentum:  # lines 15-18
                mean = mix(mean, self._momentum, self._beta, party.last(who))
            # Differs: parties repeat the server's step, since it cannot take √v of sealed sums.
            step = self._server.step({f"{tier}/{n}": δ for n, δ in mean.items()})  # line 19
            moves[tier] = {name: step[f"{tier}/{name}"] for name in names}
        self._store_momentum(sums, who)  # line 22, for the next round's line 17
        n = {tier: float(sums[f"{tier}/weight"]) for tier in present}  # line 7
        return self._average(moves, n, who)

    def _addends(self, g: Update, who: Participants) -> list[tuple[str, Tensor]]:
        """List this party's addends of lines 14 and 22; momentum is linear, so it is a sum too."""
        j, ladder = self._party.tier or "", who.ladder
        addends = [(f"{j}/{name}", value) for name, value in g.items()]
        if self._source != "off" and ladder.below(j) is not None:
            if self._source == "mixed" and self._momentum:  # line 17 has replaced g^{j,L_j}
                g = mix(g, self._momentum, self._beta, self._party.last(who))
            m = momentum(g, ladder.distilled(j), self._party.parts)
            addends += [(f"{j}/momentum/{inner}", value) for inner, value in m.items()]
        return addends

    def _needed(self, who: Participants) -> dict[str, Any]:
        """List the sums that this party's next model needs; the values are used for shapes only."""
        party, ladder = self._party, who.ladder
        needed: dict[str, Any] = {}
        for tier in who.present(ladder.tiers):
            names = party.parts if tier == party.tier else party.shared_with(tier, who)
            needed |= {f"{tier}/{name}": party.weights[name] for name in names}
        k = self._larger_tier(who)
        if k is not None and who.training(k):
            needed |= {f"{k}/momentum/{i}": party.weights[n] for i, n in party.last(who).items()}
        return needed

    def _store_momentum(self, sums: Mapping[str, Any], who: Participants) -> None:
        k = self._larger_tier(who)
        if k is not None and who.training(k):
            self._momentum = {
                inner: opened_mean(sums, f"{k}/momentum/{inner}", f"{k}/weight")
                for inner in self._party.last(who)
            }

    def _larger_tier(self, who: Participants) -> str | None:
        """Return line 16's k: the next larger tier than j."""
        j = self._party.tier
        return None if j is None or self._source == "off" else who.ladder.above(j)

    def _average(
        self, moves: Mapping[str, Update], n: Mapping[str, float], who: Participants
    ) -> Update:
        """Average shared layers over all tiers, isolated layers over the own tier (lines 26-29).

        Differs: moves are averaged, not weights. Shared weights are equal before, so the result is
        the same. An absent tier does not contribute to a mean, but applies it.
        """
        averaged: Update = dict(moves.get(self._party.tier or "", {}))
        for name, part in self._party.parts.items():
            tiers = [tier for tier in who.ladder.sharers(part) if tier in moves]
            if tiers and self._party.tier in who.ladder.sharers(part):
                total = sum(n[tier] for tier in tiers)
                terms = [(n[tier] / total) * moves[tier][name] for tier in tiers]
                averaged[name] = sum(terms[1:], terms[0])
        return averaged

    def state_dict(self) -> dict[str, Any]:
        """Return the server's state and the momentum."""
        return {"server": self._server.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self._server.load_state_dict(state["server"])
        super().load_state_dict(state)
