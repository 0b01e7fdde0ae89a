"""InclusiveFL with a linear server: the coordinator mixes what it cannot read.

Without a square root in the server's step, lines 14-29 of Algorithm 1 are one linear map from the
parties' updates to the next models. Each party scales its addends by public factors *before*
sealing and contributes them under the name of the *result*, so the coordinator's addition of
ciphertexts is all the mixing there is: of a tier's last layer, (1-β)·g^j + β·m^k; of a shared
layer, the mean over all that have it. No tier's mean of either is ever opened.

The factors are applied before sealing because integers in BFV have no room for a multiplication. A
party's own last update stands for the coordinator's memory of old ciphertexts, so a run survives
its coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from secure_fl.algorithms.inclusive.mixing import Opened, Own, Reading, common_parts
from secure_fl.algorithms.inclusive.server import Server, momentum
from secure_fl.algorithms.inclusive.turn import Turn
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort


class SealedMixing:
    """One sealed result per layer; parties weigh alike (`weights = "users"`)."""

    def __init__(self, own: Own, server: Server, beta: float, reading: Reading) -> None:
        self._own, self._server, self._beta, self._reading = own, server, beta, reading
        self._last_momentum: Update = {}  # of this party's own last update, by name in a layer

    def trains(self, turn: Turn) -> bool:
        """Who is drawn trains, if its tier does not sit this round out."""
        return self._own.tier is not None and self._own.me in turn.training(self._own.tier)

    async def step(self, cohort: Cohort, turn: Turn, g: Update | None, weight: float) -> Update:
        """Lines 14-29, as one sum."""
        gives = {**(self._updates(g, turn) if g is not None else {}), **self._lesson(turn)}
        wants = self._wants(turn)
        if not turn.present(turn.ladder.tiers):
            return {}
        reads = {name: value for name, value in wants.items() if name not in gives}
        opened = Opened(await cohort.sum(gives, partial=True, read=reads, carry=True))
        mean = {}
        for name, part in self._own.parts.items():
            result, total = self._result(name, part, turn)
            if result in opened:
                mean[name] = opened.mean(result, total)
        self._remember(g, mean, turn)
        return self._server.step(mean)

    def _updates(self, g: Update, turn: Turn) -> dict[str, Tensor | float]:
        """Lines 14, 17 and 26-27: this round's update under the names of the results."""
        j = self._own.tier or ""
        gives: dict[str, Tensor | float] = {}
        for name, part in self._own.parts.items():
            factor = 1.0
            if part == turn.ladder.last(j) and self._taught(j, turn):
                factor = (1 - self._beta) / len(turn.training(j))
            result, total = self._result(name, part, turn)
            gives |= {result: factor * g[name], total: factor}
        return gives

    def _lesson(self, turn: Turn) -> dict[str, Tensor | float]:
        """Line 17's β·m^k_{t-1}: what a party of tier k adds to the smaller tier's last layer."""
        k = self._own.tier
        j = None if k is None else turn.ladder.below(k)
        if j is None or self._own.me not in turn.before or not self._taught(j, turn):
            return {}
        factor = self._beta / len(turn.teachers(k or ""))
        names = Own("", j, self._own.parts, self._own.weights).last(turn)
        gives: dict[str, Tensor | float] = {f"{j}/last/weight": factor}
        for inner, value in self._last_momentum.items():
            gives[f"{j}/{names[inner]}"] = factor * value
        return gives

    def _taught(self, j: str, turn: Turn) -> bool:
        """Whether tier j trains, and the next larger one has an update of the last round."""
        k = turn.ladder.above(j)
        taught = k is not None and turn.training(j) and turn.teachers(k)
        return self._reading != "off" and bool(taught)

    def _result(self, name: str, part: Part, turn: Turn) -> tuple[str, str]:
        """The names of the sum that becomes this parameter's move, and of its factors' sum."""
        j, sharers = self._own.tier, turn.ladder.sharers(part)
        if j in sharers:
            return f"shared/{name}", f"shared/{sharers[0]}/weight"
        inner = "last/weight" if part == turn.ladder.last(j or "") else "weight"
        return f"{j}/{name}", f"{j}/{inner}"

    def _wants(self, turn: Turn) -> dict[str, Any]:
        """All results of the own model, and all factors' sums; what nobody gives is left out."""
        wants: dict[str, Any] = {}
        for name, part in self._own.parts.items():
            wants[self._result(name, part, turn)[0]] = self._own.weights[name]
        for tier in turn.ladder.tiers:
            names = (f"shared/{tier}/weight", f"{tier}/weight", f"{tier}/last/weight")
            wants |= dict.fromkeys(names, 0.0)
        return wants

    def _remember(self, g: Update | None, mean: Update, turn: Turn) -> None:
        """Line 22, of the own update; as printed, line 17 has overwritten its last layer."""
        if g is None or self._reading == "off":
            self._last_momentum = {}
            return
        j = self._own.tier or ""
        if self._reading == "mixed":
            g = g | {name: mean[name] for name in self._own.last(turn).values()}
        self._last_momentum = momentum(g, turn.ladder.distilled(j), self._own.parts)

    def common(self, turn: Turn) -> Mapping[str, tuple[str, ...]]:
        """All but a party's own head."""
        return common_parts(self._own, turn)

    def state_dict(self) -> dict[str, Any]:
        """What this party still has to teach."""
        return {"momentum": self._last_momentum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._last_momentum = dict(state["momentum"])
