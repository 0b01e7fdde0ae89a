"""InclusiveFL with a linear server: the coordinator mixes ciphertexts that it cannot read.

Without a square root in the server's step, lines 14-29 of Algorithm 1 are one linear map from the
parties' updates to the next models. Each party scales its addends by public factors *before*
sealing and contributes them under the name of the *result*. The coordinator's addition of
ciphertexts then does all the mixing: (1-β)·g^j + β·m^k for a tier's last layer, and the mean over
all tiers that have it for a shared layer. No tier's own mean is ever opened.

Factors are applied before sealing because BFV's integers leave no room for a multiplication. Each
party keeps its own last update, so the coordinator needs no old ciphertexts and can be restarted.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from secure_fl.algorithms.inclusivefl.mixing import (
    Mixing,
    PartyModel,
    momentum,
    opened_mean,
)
from secure_fl.algorithms.inclusivefl.participants import Participants
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort


class SealedMixing(Mixing):
    """Mixing with one sealed result per layer and equal weights (`weights = "users"`).

    Its momentum is that of this party's own last update, by name in a layer.
    """

    async def step(
        self, cohort: Cohort, who: Participants, g: Update | None, weight: float
    ) -> Update:
        """Run lines 14-29 as one sum."""
        addends = {
            **(self._updates(g, who) if g is not None else {}),
            **self._momentum_addends(who),
        }
        needed = self._needed(who)
        if not who.present(who.ladder.tiers):
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

    def _updates(self, g: Update, who: Participants) -> dict[str, Tensor | float]:
        """Scale this round's update, under the names of the results (lines 14, 17 and 26-27)."""
        j = self._party.tier or ""
        addends: dict[str, Tensor | float] = {}
        for name, part in self._party.parts.items():
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
            addends[f"{j}/{names[inner]}"] = factor * value
        return addends

    def _has_teacher(self, j: str, who: Participants) -> bool:
        """Return True if tier j trains and the next larger tier has an update of the last round."""
        k = who.ladder.above(j)
        has_update = k is not None and who.training(j) and who.teachers(k)
        return self._source != "off" and bool(has_update)

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
        for name, part in self._party.parts.items():
            needed[self._result(name, part, who)[0]] = self._party.weights[name]
        for tier in who.ladder.tiers:
            names = (f"shared/{tier}/weight", f"{tier}/weight", f"{tier}/last/weight")
            needed |= dict.fromkeys(names, 0.0)
        return needed

    def _store_momentum(self, g: Update | None, mean: Update, who: Participants) -> None:
        """Apply line 22 to this party's update; as printed, line 17 has replaced its last layer."""
        if g is None or self._source == "off":
            self._momentum = {}
            return
        j = self._party.tier or ""
        if self._source == "mixed":
            g = g | {name: mean[name] for name in self._party.last(who).values()}
        self._momentum = momentum(g, who.ladder.distilled(j), self._party.parts)
