"""InclusiveFL with one sum per tier: Algorithm 1, lines 14-29, replicated at every party.

Names in sums are "tier/parameter". A party opens the sums that its model needs: all of its own
tier, the layers that other tiers share with it, and the next larger tier's momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from secure_fl.algorithms.inclusivefl.mixing import (
    Mixing,
    mix,
    momentum,
    opened_mean,
)
from secure_fl.algorithms.inclusivefl.participants import Participants
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort


class TierSums(Mixing):
    """Mixing by per-tier sums, FedAdam for each sub-model, and averages of shared layers.

    Its momentum is m^k_{t-1} of the next larger tier k, as last opened.
    """

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
