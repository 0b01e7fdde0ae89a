"""InclusiveFL with a sum per tier: Algorithm 1, lines 14-29, replicated at every party.

Liu et al.: No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices. KDD 2022,
arXiv 2202.08036. Names in sums are "tier/parameter". A party opens what its model needs: all of its
own tier, of others the layers that both share, and the next larger tier's momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from secure_fl.algorithms.inclusive.mixing import Opened, Own, Reading, common_parts
from secure_fl.algorithms.inclusive.server import Server, mix, momentum
from secure_fl.algorithms.inclusive.turn import Turn
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort


class TierSums:
    """Per-tier sums; FedAdam for each sub-model; averages of what the sub-models share."""

    def __init__(self, own: Own, server: Server, beta: float, reading: Reading) -> None:
        self._own, self._server, self._beta, self._reading = own, server, beta, reading
        self._m: Update = {}  # m^k_{t-1} of the next larger tier k, the last that was seen

    def trains(self, turn: Turn) -> bool:
        """Who is drawn trains, if its tier does not sit this round out."""
        return self._own.tier is not None and self._own.me in turn.training(self._own.tier)

    async def step(self, cohort: Cohort, turn: Turn, g: Update | None, weight: float) -> Update:
        """Lines 14-29."""
        own, ladder, j = self._own, turn.ladder, self._own.tier
        present = turn.present(ladder.tiers)
        if not present:
            return {}
        gives: dict[str, Tensor | float] = {}
        if g is not None:
            gives = {name: weight * value for name, value in self._gives(g, turn)}
            gives[f"{j}/weight"] = weight
        wants = self._wants(turn) | {f"{tier}/weight": 0.0 for tier in present}
        reads = {name: value for name, value in wants.items() if name not in gives}
        opened = Opened(await cohort.sum(gives, partial=True, read=reads, carry=True))

        moves: dict[str, Update] = {}
        for tier in present:
            names = tuple(own.parts) if tier == j else own.shared_with(tier, turn)
            mean = {name: opened.mean(f"{tier}/{name}", f"{tier}/weight") for name in names}  # 14
            # Differs: as printed, m = 0 would shrink round 1's last layers by 1-β.
            if tier == j and self._m:  # lines 15-18
                mean = mix(mean, self._m, self._beta, own.last(turn))
            # Differs: parties repeat the server's step, for sums that it cannot read have no √v.
            step = self._server.step({f"{tier}/{n}": δ for n, δ in mean.items()})  # line 19
            moves[tier] = {name: step[f"{tier}/{name}"] for name in names}
        self._remember(opened, turn)  # line 22, for the next round's line 17
        n = {tier: opened.total(f"{tier}/weight") for tier in present}  # line 7
        return self._average(moves, n, turn)

    def _gives(self, g: Update, turn: Turn) -> list[tuple[str, Tensor]]:
        """The own addends of lines 14 and 22; the momentum is linear, so it is a sum too."""
        j, ladder = self._own.tier or "", turn.ladder
        gives = [(f"{j}/{name}", value) for name, value in g.items()]
        if self._reading != "off" and ladder.below(j) is not None:
            if self._reading == "mixed" and self._m:  # line 17 has overwritten g^{j,L_j} before
                g = mix(g, self._m, self._beta, self._own.last(turn))
            m = momentum(g, ladder.distilled(j), self._own.parts)
            gives += [(f"{j}/momentum/{inner}", value) for inner, value in m.items()]
        return gives

    def _wants(self, turn: Turn) -> dict[str, Any]:
        """List the sums that this party's next model needs; the values give shapes only."""
        own, ladder = self._own, turn.ladder
        wants: dict[str, Any] = {}
        for tier in turn.present(ladder.tiers):
            names = own.parts if tier == own.tier else own.shared_with(tier, turn)
            wants |= {f"{tier}/{name}": own.weights[name] for name in names}
        k = self._teacher(turn)
        if k is not None and turn.training(k):
            wants |= {f"{k}/momentum/{i}": own.weights[n] for i, n in own.last(turn).items()}
        return wants

    def _remember(self, opened: Opened, turn: Turn) -> None:
        k = self._teacher(turn)
        if k is not None and turn.training(k):
            last = self._own.last(turn)
            self._m = {i: opened.mean(f"{k}/momentum/{i}", f"{k}/weight") for i in last}

    def _teacher(self, turn: Turn) -> str | None:
        """Line 16: k, the tier that is greater than j."""
        j = self._own.tier
        return None if j is None or self._reading == "off" else turn.ladder.above(j)

    def _average(self, moves: Mapping[str, Update], n: Mapping[str, float], turn: Turn) -> Update:
        """Lines 26-29: shared layers by heterogeneous averaging, isolated ones of the own tier.

        Differs: moves are averaged, not weights; shared weights were equal before, so it is the
        same. A tier that is absent has no part in a mean, and takes the mean all the same.
        """
        averaged: Update = dict(moves.get(self._own.tier or "", {}))
        for name, part in self._own.parts.items():
            tiers = [tier for tier in turn.ladder.sharers(part) if tier in moves]
            if tiers and self._own.tier in turn.ladder.sharers(part):
                total = sum(n[tier] for tier in tiers)
                terms = [(n[tier] / total) * moves[tier][name] for tier in tiers]
                averaged[name] = sum(terms[1:], terms[0])
        return averaged

    def common(self, turn: Turn) -> Mapping[str, tuple[str, ...]]:
        """All but a party's own head."""
        return common_parts(self._own, turn)

    def state_dict(self) -> dict[str, Any]:
        """The server's state and the momentum."""
        return {"server": self._server.state_dict(), "momentum": self._m}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._server.load_state_dict(state["server"])
        self._m = dict(state["momentum"])
