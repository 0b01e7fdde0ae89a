"""InclusiveFL for tiers that are too small for sums of their own.

A sum over fewer than `min_cohort` parties is never asked for, and no value enters two sums: out of
two that overlap follows their difference, over the few parties that are in one of them only.

- A shared layer is one sum over all parties that share it, whatever their tiers; with one party in
  each of three tiers these are the layers below the smallest model's last. A layer that too few
  share stays at home: averaged into a wider sum it would be mixed with layers of another place.
- A tier's isolated parts are summed if the tier is large enough, and else stay at home. A tier of
  one loses nothing: a sum over one hospital IS that hospital, and it knows its own update.
- Knowledge then flows upwards and downwards by *one* momentum sum over the parties whose tiers are
  too small: the mean update of what each keeps at home of the layers [L_- : L_j], which each mixes
  into its last layer by β. Differs: Algorithm 1 teaches the next smaller tier only; here all learn
  from all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from secure_fl.algorithms.inclusive.mixing import Opened, Own, Reading, common_parts
from secure_fl.algorithms.inclusive.server import Server, mix, momentum
from secure_fl.algorithms.inclusive.turn import Turn
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.updates import Update
from secure_fl.party.cohort import Cohort


class WideSums:
    """Sums as wide as they must be; the rest at home."""

    def __init__(self, own: Own, server: Server, beta: float, reading: Reading) -> None:
        self._own, self._server, self._beta, self._reading = own, server, beta, reading
        self._m: Update = {}  # the last momentum sum's mean

    def trains(self, turn: Turn) -> bool:
        """All who are drawn train: what cannot be sent is of use at home."""
        return self._own.me in turn.sample

    async def step(self, cohort: Cohort, turn: Turn, g: Update | None, weight: float) -> Update:
        """One round: what is sent, what comes back, and what stays."""
        own = self._own
        names = {name: _result(own, name, part, turn) for name, part in own.parts.items()}
        sent = {name: place for name, place in names.items() if place and _enough(place, turn)}
        gives, wants = self._addends(sent, g, weight, turn)
        reads = {name: value for name, value in wants.items() if name not in gives}
        sums = {}
        if _anything(turn, self._reading):
            sums = await cohort.sum(gives, partial=True, read=reads, carry=True)
        opened = Opened(sums)
        mean: Update = {}
        for name, place in names.items():
            if name in sent:
                mean[name] = opened.mean(f"{place}/{name}", f"{place}/weight")
            elif place is None and g is not None:
                mean[name] = g[name]
        last = own.last(turn)
        if self._m and all(name in mean and names[name] is None for name in last.values()):
            mean = mix(mean, self._m, self._beta, last)
        if last and any(f"momentum/{inner}" in opened for inner in last):
            self._m = {i: opened.mean(f"momentum/{i}", "momentum/weight") for i in last}
        step = self._server.step({f"{names[n] or 'home'}/{n}": δ for n, δ in mean.items()})
        return {name: step[f"{names[name] or 'home'}/{name}"] for name in mean}

    def _addends(
        self, sent: Mapping[str, str], g: Update | None, weight: float, turn: Turn
    ) -> tuple[dict[str, Tensor | float], dict[str, Any]]:
        """Collect this party's terms, and the shapes of the sums that it reads."""
        own = self._own
        wants: dict[str, Any] = {f"{p}/{n}": own.weights[n] for n, p in sent.items()}
        wants |= dict.fromkeys((f"{p}/weight" for p in _places(turn)), 0.0)
        gives: dict[str, Tensor | float] = {}
        if g is not None:
            gives = {f"{place}/{name}": weight * g[name] for name, place in sent.items()}
            gives |= {f"{place}/weight": weight for place in sent.values()}
        if self._reading != "off" and _enough("momentum", turn):
            wants["momentum/weight"] = 0.0
            if own.me in _alone(turn):
                last = own.last(turn)
                wants |= {f"momentum/{i}": own.weights[n] for i, n in last.items()}
                if g is not None:
                    m = momentum(self._at_home(g, turn), self._taught(turn), own.parts)
                    gives |= {f"momentum/{inner}": weight * value for inner, value in m.items()}
                    gives["momentum/weight"] = weight
        return gives, wants

    def _taught(self, turn: Turn) -> list[int]:
        """Select the layers of [L_- : L_j] that are in no other sum."""
        tier = self._own.tier or ""
        layers = turn.ladder.distilled(tier)
        return [layer for layer in layers if _place(tier, layer, turn) is None]

    def _at_home(self, g: Update, turn: Turn) -> Update:
        """Mix line 17's momentum into the last layer, if line 22 is read as it is printed."""
        if self._reading == "mixed" and self._m:
            return mix(g, self._m, self._beta, self._own.last(turn))
        return g

    def common(self, turn: Turn) -> Mapping[str, tuple[str, ...]]:
        """What went through sums."""
        places = {name: _result(self._own, name, p, turn) for name, p in self._own.parts.items()}
        every = common_parts(self._own, turn)
        return {about: tuple(n for n in names if places[n]) for about, names in every.items()}

    def state_dict(self) -> dict[str, Any]:
        """The server's state and the momentum."""
        return {"server": self._server.state_dict(), "momentum": self._m}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._server.load_state_dict(state["server"])
        self._m = dict(state["momentum"])


def _result(own: Own, name: str, part: Part, turn: Turn) -> str | None:
    return None if own.tier is None else _place(own.tier, part, turn)


def _place(tier: str, part: Part, turn: Turn) -> str | None:
    """The sum that a part goes into: "shared/TIER" or "TIER"; None: it stays at home.

    That depends on who is there, not on who was drawn: what is at home in one round is in all.
    """
    sharers = turn.ladder.sharers(part)
    place = f"shared/{sharers[0]}" if tier in sharers else tier
    return place if len(_owners(place, turn)) >= turn.min_cohort else None


def _owners(place: str, turn: Turn) -> tuple[str, ...]:
    """Who contributes to a sum, if drawn."""
    if place == "momentum":
        return _alone(turn)
    tiers = turn.ladder.tiers
    if place.startswith("shared/"):
        smallest = place.removeprefix("shared/")
        tiers = tiers[tiers.index(smallest) :]
        return tuple(p for tier in tiers for p in turn.members.get(tier, ()))
    return turn.members.get(place, ())


def _alone(turn: Turn) -> tuple[str, ...]:
    """The parties of tiers that are too small."""
    small = [t for t in turn.ladder.tiers if len(turn.members.get(t, ())) < turn.min_cohort]
    return tuple(party for tier in small for party in turn.members.get(tier, ()))


def _enough(place: str, turn: Turn) -> bool:
    """Whether enough of a sum's contributors were drawn in this round."""
    return len(turn.sample & set(_owners(place, turn))) >= turn.min_cohort


def _places(turn: Turn) -> list[str]:
    """All sums of this round but the momentum's."""
    tiers = turn.ladder.tiers
    every = (*(f"shared/{tier}" for tier in tiers), *tiers)
    return [place for place in every if _enough(place, turn)]


def _anything(turn: Turn, reading: Reading) -> bool:
    """Whether there is a sum at all."""
    return bool(_places(turn)) or (reading != "off" and _enough("momentum", turn))
