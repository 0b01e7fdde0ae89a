"""Tiers whose parameters are a few numbers, and Algorithm 1 once more, as plainly as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secure_fl.algorithms.inclusivefl.ladder import Ladder
from secure_fl.algorithms.inclusivefl.mixing import PartyModel
from secure_fl.algorithms.inclusivefl.participants import Participants, TierMembers
from secure_fl.party.cohort import Cohort
from secure_fl.testing.harness import Federated, Program, federate

Updates = Mapping[str, Sequence[Mapping[str, Any] | None]]  # party -> g of each round


def names_of(depth: int) -> list[str]:
    """Embeddings, so many layers of two parameters, a pooler and a head."""
    layers = [f"enc.{layer}.{p}" for layer in range(depth) for p in ("w", "b.weight")]
    return ["emb.w", *layers, "pooler.w", "head.w"]


def part(name: str) -> Any:
    known: dict[str, Any] = {"emb.w": "embeddings", "pooler.w": "pooler", "head.w": "head"}
    return known[name] if name in known else int(name.split(".")[1])


def own_of(party: str, tier: str, depths: Mapping[str, int], size: int) -> PartyModel:
    names = names_of(depths[tier])
    return PartyModel(
        party, tier, {n: part(n) for n in names}, {n: torch.zeros(size) for n in names}
    )


def play(
    way: Any,
    tiers: Mapping[str, str],
    depths: Mapping[str, int],
    updates: Updates,
    *,
    server: Any,
    beta: float = 0.5,
    reading: Any = "unmixed",
    size: int = 1,
    weights: Mapping[str, float] | None = None,
    share: float = 1.0,
    min_cohort: int = 2,
    **options: Any,
) -> Federated:
    """Run one way of mixing at real parties; each returns its model after every round."""
    ladder = Ladder.of(depths).only(tuple(tiers.values()))

    def program(party: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            own = own_of(party, tiers[party], depths, size)
            mixing = way(own, server(), beta, reading)
            members, before = TierMembers(ladder, tiers), list[str]()
            model: dict[str, Tensor] = {n: torch.zeros(size) for n in own.parts}
            history = []
            for number, g in enumerate(updates[party], 1):
                who: Participants = members.draw(cohort, 0, number, share, before)
                who = as_given(who, updates, number)
                mine = None
                if g is not None and mixing.trains(who):
                    mine = {
                        n: torch.as_tensor(v, dtype=torch.float32).reshape(size)
                        for n, v in g.items()
                    }
                moves = await mixing.step(cohort, who, mine, (weights or {}).get(party, 1.0))
                before = who.contributing
                model = {n: w + moves[n] if n in moves else w for n, w in model.items()}
                history.append(model)
            return history

        return run

    return federate({p: program(p) for p in tiers}, min_cohort=min_cohort, **options)


def as_given(who: Participants, updates: Updates, number: int) -> Participants:
    """The participants of a round in which exactly those train who have an update."""
    drawn = frozenset(p for p, rounds in updates.items() if rounds[number - 1] is not None)
    return Participants(who.ladder, who.members, drawn, who.before, who.min_cohort)


@dataclass
class Reference:
    """Algorithm 1, lines 14-29, for a server that sees everything."""

    tiers: Mapping[str, str]
    depths: Mapping[str, int]
    server: Any  # makes an optimiser: step(name -> tensor) -> name -> tensor
    beta: float
    reading: str
    weights: Mapping[str, float] | None = None

    def run(self, updates: Updates) -> list[dict[str, dict[str, Tensor]]]:
        """Every tier's model after each round, in float64."""
        order = sorted(set(self.tiers.values()), key=lambda t: self.depths[t])
        size = next(
            torch.as_tensor(v).numel() for r in updates.values() for g in r if g for v in g.values()
        )
        w: dict[str, dict[str, Any]] = {
            t: {n: torch.zeros(size, dtype=torch.float64) for n in names_of(self.depths[t])}
            for t in order
        }
        servers = {t: self.server() for t in order}
        m: dict[str, dict[str, Any]] = {}
        history = []
        for number in range(len(next(iter(updates.values())))):
            m_before, m = m, dict(m)
            n: dict[str, float] = {}
            new: dict[str, dict[str, Any]] = {}
            for at, j in enumerate(order):
                users = [
                    p for p, t in self.tiers.items() if t == j and updates[p][number] is not None
                ]
                if not users:
                    continue
                weight = {p: (self.weights or {}).get(p, 1.0) for p in users}
                n[j] = sum(weight.values())
                g: dict[str, Any] = {}
                for name in w[j]:  # line 14
                    given = {p: updates[p][number] or {} for p in users}
                    g[name] = (
                        sum(
                            weight[p]
                            * torch.as_tensor(given[p][name], dtype=torch.float64).reshape(size)
                            for p in users
                        )
                        / n[j]
                    )
                unmixed = dict(g)
                top = self.depths[j] - 1
                k = order[at + 1] if at + 1 < len(order) else None
                if k in m_before and self.reading != "off":  # lines 15-18
                    for inner in ("w", "b.weight"):
                        name = f"enc.{top}.{inner}"
                        g[name] = self.beta * m_before[k][inner] + (1 - self.beta) * g[name]
                move = servers[j].step(g)  # line 19
                new[j] = {name: w[j][name] + move[name] for name in g}
                if at > 0:  # lines 20-23
                    read = unmixed if self.reading == "unmixed" else g
                    layers = range(self.depths[order[at - 1]] - 1, self.depths[j])
                    m[j] = {
                        inner: sum(read[f"enc.{layer}.{inner}"] for layer in layers) / len(layers)
                        for inner in ("w", "b.weight")
                    }
            for j in order:  # lines 26-29
                for name in w[j]:
                    place = part(name)
                    shared = place == "embeddings" or (
                        isinstance(place, int) and place < self.depths[j] - 1
                    )
                    if not shared:
                        w[j][name] = new.get(j, w[j])[name]
                        continue
                    having = [i for i in new if place == "embeddings" or place < self.depths[i] - 1]
                    if having:
                        total = sum(n[i] for i in having)
                        w[j][name] = sum(n[i] / total * new[i][name] for i in having)
            history.append({j: dict(w[j]) for j in order})
        return history
