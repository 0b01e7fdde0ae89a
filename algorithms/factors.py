"""Sends students' updates as the aggregate's factors, as each party's own, or whole.

Each way takes one party's update to the mean of all, and knows what is equal at all parties
(`shared`) and what is this party's alone (`personal`). Whatever did not get through is kept and
added to the next update (error feedback), so that over rounds nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.algorithms.exact import orthonormal, product
from secure_fl.algorithms.lowrank import (
    Factors,
    Subspace,
    energy_rank,
    factorise,
    singular_values,
)
from secure_fl.algorithms.lowrank import useful_rank as useful
from secure_fl.algorithms.updates import RECORDS, Update, weighted_mean
from secure_fl.events import EventLog, ExtensionEvent
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.seeds import seed_for

PARTIES = "parties"  # the name under which parties are counted

Way: TypeAlias = Literal["joint", "per_party", "none"]


class FactorWidths(ExtensionEvent, frozen=True, tag="factor_widths"):
    """The columns of each matrix's factors in this round; None for a matrix that is sent whole."""

    round: int
    energy: float
    """T of Eq. 8."""
    widths: dict[str, int | None]


class Exchange(Protocol):
    """One way for updates to become their mean."""

    @property
    def shared(self) -> Stateful:
        """What is equal at all parties."""

    @property
    def personal(self) -> Stateful:
        """What is this party's alone."""

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Σ wᵢ·Δᵢ / Σ wᵢ, of whose energy about a share T gets through."""


class Residuals(dict[str, Tensor]):
    """The part of this party's weighted updates that has not arrived in the model yet."""

    def plus(self, Δ: Update, weight: float) -> Update:
        """The weighted update, with what is left of earlier ones."""
        G = {name: (weight * δ).float().cpu() for name, δ in Δ.items()}
        return {name: g + self[name] if name in self else g for name, g in G.items()}

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.clear()
        self.update(state)


class Subspaces(dict[str, Subspace]):
    """The state of every matrix that is factorised, and how often all were."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.count = seed, 0

    def generator(self, name: str) -> torch.Generator:
        """Public randomness: the same at all parties, another in every exchange."""
        return torch.Generator().manual_seed(seed_for(self.seed, f"factors {self.count} {name}"))

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints and late joiners."""
        return {"count": self.count} | {name: s.state_dict() for name, s in self.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.count = int(state["count"])
        for name, subspace in self.items():
            subspace.load_state_dict(state[name])


class Joint:
    """The aggregate's own factors, by sealed sums (`lowrank`): no party's are ever seen."""

    def __init__(
        self, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
    ) -> None:
        self._cohort, self._recorder = cohort, recorder
        self.shared, self.personal = Subspaces(seed), Residuals()
        for name, weight in Θ.items():
            if useful(weight.shape):
                self.shared[name] = Subspace(weight.shape, max_rank)

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Alg. 1, lines 8-21, without one in which anyone holds gᵢ: sums of ranks, of Y, of B."""
        self.shared.count += 1
        G, n = self.personal.plus(Δ, weight), {RECORDS: torch.tensor(weight)}
        widths = await self._widths(G, T)
        with self._recorder.phase("factorise"):
            Ω = {n: self.shared[n].probe(w, self.shared.generator(n)) for n, w in widths.items()}
            Y = {name: g @ Ω[name] if name in Ω else g for name, g in G.items()}
        sums, lost = await self._sum(n | Y)
        with self._recorder.phase("factorise"):
            U = {name: orthonormal(sums[name]) for name in Ω}
            B = {_projected(name): U[name].T @ G[name] for name in Ω}
        # Both or neither: the sums over all and over some differ by Uᵀ·Gᵢ·Ω of whoever left.
        parts, missed = await self._sum(n | B, together=True) if B else ({}, {})
        mean = {}
        with self._recorder.phase("factorise"):
            for name in G:
                at = _projected(name)
                if name in Ω and at not in parts:  # somebody left: it waits for the next time
                    self.personal[name], mean[name] = G[name], torch.zeros_like(G[name])
                elif name in Ω:
                    self.personal[name] = G[name] - U[name] @ (B[at] - missed[at])
                    self.shared[name].learn(parts[at])
                    mean[name] = product(U[name], parts[at]) / parts[RECORDS]
                else:
                    self.personal[name] = lost[name]
                    mean[name] = sums[name] / sums[RECORDS]
        return {name: mean[name].to(δ) for name, δ in Δ.items()}

    async def _widths(self, G: Update, T: float) -> dict[str, int]:
        """The columns of each matrix's factors; a matrix that is no larger whole is left out.

        Eq. 8, by the mean of the ranks that the parties' own matrices ask for: nobody's is told.
        """
        with self._recorder.phase("factorise"):
            ranks = {name: energy_rank(singular_values(G[name]), T) for name in self.shared}
        values = {_rank(name): float(rank) for name, rank in ranks.items()}
        # Counts, not records: a later sum over fewer must not tell the records of who left.
        sums = await self._cohort.sum({PARTIES: 1.0, **values})
        means = {name: float(sums[_rank(name)] / sums[PARTIES]) for name in ranks}
        found = {name: self.shared[name].width(mean) for name, mean in means.items()}
        self._recorder.event(FactorWidths(round=self._recorder.round, energy=T, widths=found))
        return {name: width for name, width in found.items() if width is not None}

    async def _sum(self, values: Update, *, together: bool = False) -> tuple[Update, Update]:
        """The sums, and what of this party's values rounding and clipping left over.

        The leftovers do not wait for the next value of their name: that one has another basis.
        """
        sums = await self._cohort.sum(
            {n: v.numpy() for n, v in values.items()}, carry=True, together=together
        )
        lost = {name: self._cohort.leftover(name) for name in values}
        return (
            {name: torch.from_numpy(np.asarray(v)).float() for name, v in sums.items()},
            {
                name: torch.zeros_like(values[name]) if left is None else torch.from_numpy(left)
                for name, left in lost.items()
            },
        )


class PerParty:
    """Algorithm 1 line by line: every party's own factors travel sealed, and all parties see them.

    The coordinator relays what it cannot open; each party then does what the paper's server does.
    """

    def __init__(
        self, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
    ) -> None:
        self._cohort, self._recorder = cohort, recorder
        self._most = {
            name: min(useful(weight.shape), max_rank or useful(weight.shape))
            for name, weight in Θ.items()
        }
        self.shared, self.personal = Subspaces(seed), Residuals()

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Lines 8-21."""
        self.shared.count += 1
        G = self.personal.plus(Δ, weight)
        with self._recorder.phase("factorise"):
            mine = {name: self._factors(name, g, T) for name, g in G.items()}  # line 8
        for name in G:
            self.personal[name] = G[name] - _matrix(mine[name])
        values = {RECORDS: np.array([weight])} | {
            f"{name}|{part}": array.numpy()
            for name, parts in mine.items()
            for part, array in parts.items()
        }
        everyone = await self._cohort.share(values)  # lines 9-11
        total = sum(float(theirs.pop(RECORDS)[0]) for theirs in everyone.values())
        with self._recorder.phase("factorise"):
            whole = {name: torch.zeros_like(g) for name, g in G.items()}  # line 13
            for theirs in everyone.values():
                for name, sum_ in whole.items():
                    sum_ += _matrix(_taken(theirs, name)).view_as(sum_)  # lines 12 and 15
            g = {name: _matrix(self._factors(name, g, T)) for name, g in whole.items()}  # line 17
            for name in whole:  # what line 17 cuts off is kept in shares
                self.personal[name] += (whole[name] - g[name]) * (weight / total)
        return {name: (g[name] / total).to(δ) for name, δ in Δ.items()}

    def _factors(self, name: str, g: Tensor, T: float) -> dict[str, Tensor]:
        if not self._most[name]:
            return {"whole": g}
        found = factorise(g, T, self._most[name], self.shared.generator(name))
        return {part: value.contiguous() for part, value in found._asdict().items()}


class Whole:
    """FedAvg of the student: what factors are compared with."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self.shared, self.personal = Residuals(), Residuals()  # both stay empty: the door carries

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """One sum; T means nothing to it."""
        return await weighted_mean(self._cohort, Δ, weight)


def exchange_of(
    way: Way, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
) -> Exchange:
    """The way of this name, for a model with these weights."""
    if way == "none":
        return Whole(cohort)
    made = Joint if way == "joint" else PerParty
    return made(cohort, recorder, Θ, seed, max_rank)


def _projected(name: str) -> str:
    return f"{name}|B"


def _rank(name: str) -> str:
    return f"{name}|rank"


def _matrix(parts: Mapping[str, Tensor]) -> Tensor:
    return parts["whole"] if "whole" in parts else Factors(**parts).product()


def _taken(values: Mapping[str, NDArray[Any]], name: str) -> dict[str, Tensor]:
    """One tensor's parts out of what a party shared."""
    head = f"{name}|"
    found = {n.removeprefix(head): v for n, v in values.items() if n.startswith(head)}
    return {part: torch.from_numpy(np.array(array)) for part, array in found.items()}
