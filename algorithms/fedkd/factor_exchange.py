"""Exchanges of students' updates: as the aggregate's factors, as each party's factors, or in full.

An exchange turns one party's update into the mean of all. Its state has a part that is equal at
all parties (`shared`) and a part of this party alone (`personal`). Error feedback keeps the part
of an update that was not transmitted and adds it to the next update, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.algorithms.exact import orthonormal, product
from secure_fl.algorithms.fedkd.lowrank import (
    Factors,
    Subspace,
    energy_rank,
    factorise,
    singular_values,
    useful_rank,
)
from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.algorithms.updates import SavedDict, Update, weighted_mean
from secure_fl.events import EventLog, ExtensionEvent
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.protocol.sum_names import PART, PARTIES, PROJECTED, RANK, RECORDS, WHOLE
from secure_fl.seeds import seed_for


class FactorWidths(ExtensionEvent, frozen=True, tag="factor_widths"):
    """The columns of each matrix's factors in this round; None for a matrix that is sent whole."""

    round: int
    energy: float
    """T of Eq. 8."""
    widths: dict[str, int | None]


class FactorExchange(Protocol):
    """A protocol that turns the parties' updates into their mean."""

    @property
    def shared(self) -> Stateful:
        """The state that is equal at all parties."""

    @property
    def personal(self) -> Stateful:
        """The state of this party alone."""

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Return Σ wᵢ·Δᵢ / Σ wᵢ, with about a share T of its energy."""


class Residuals(SavedDict):
    """The part of this party's weighted updates that the model does not contain yet."""

    def plus(self, Δ: Update, weight: float) -> Update:
        """Return the weighted update plus the residuals of earlier updates."""
        G = {name: (weight * δ).float().cpu() for name, δ in Δ.items()}
        return {name: g + self[name] if name in self else g for name, g in G.items()}


class Subspaces(dict[str, Subspace]):
    """The subspace of every factorised matrix, and the number of exchanges so far."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.count = seed, 0

    def generator(self, name: str) -> torch.Generator:
        """Seed public randomness: equal at all parties, new in every exchange."""
        return torch.Generator().manual_seed(seed_for(self.seed, f"factors {self.count} {name}"))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for parties that join late."""
        return {"count": self.count} | {name: s.state_dict() for name, s in self.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.count = int(state["count"])
        for name, subspace in self.items():
            subspace.load_state_dict(state[name])


class JointFactors:
    """An exchange of the aggregate's factors by sealed sums; nobody sees one party's factors."""

    def __init__(
        self, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
    ) -> None:
        self._cohort, self._recorder = cohort, recorder
        self.shared, self.personal = Subspaces(seed), Residuals()
        for name, weight in Θ.items():
            if useful_rank(weight.shape):
                self.shared[name] = Subspace(weight.shape, max_rank)

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Replace lines 8-21 by sums of ranks, of Y and of B, so that nobody holds another gᵢ."""
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
        # Open both sums or neither: their difference would be Uᵀ·Gᵢ·Ω of a party that dropped out.
        parts, missed = await self._sum(n | B, together=True) if B else ({}, {})
        mean = {}
        with self._recorder.phase("factorise"):
            for name in G:
                at = _projected(name)
                if name in Ω and at not in parts:  # a party dropped out: keep G for the next sum
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
        """Return the columns of each matrix's factors, without matrices that they do not shrink.

        Eq. 8, with the mean of the ranks of the parties' matrices: no party's rank is revealed.
        """
        with self._recorder.phase("factorise"):
            ranks = {name: energy_rank(singular_values(G[name]), T) for name in self.shared}
        values = {_rank(name): float(rank) for name, rank in ranks.items()}
        # Count parties, not records: a later sum over fewer parties must not reveal the records of
        # a party that dropped out.
        sums = await self._cohort.sum({PARTIES: 1.0, **values})
        means = {name: float(sums[_rank(name)] / sums[PARTIES]) for name in ranks}
        widths = {name: self.shared[name].width(mean) for name, mean in means.items()}
        self._recorder.event(FactorWidths(round=self._recorder.round, energy=T, widths=widths))
        return {name: width for name, width in widths.items() if width is not None}

    async def _sum(self, values: Update, *, together: bool = False) -> tuple[Update, Update]:
        """Return the sums, and the part of this party's values that rounding and clipping removed.

        The next value of the same name has another basis, so these leftovers are not carried over.
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


class PerPartyFactors:
    """An exchange of each party's own factors, sealed for the parties, as Algorithm 1 is printed.

    All parties see all factors. The coordinator relays them and cannot open them. Each party then
    repeats the step of the paper's server.
    """

    def __init__(
        self, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
    ) -> None:
        self._cohort, self._recorder = cohort, recorder
        self._most = {
            name: min(useful_rank(weight.shape), max_rank or useful_rank(weight.shape))
            for name, weight in Θ.items()
        }
        self.shared, self.personal = Subspaces(seed), Residuals()

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Follow lines 8-21."""
        self.shared.count += 1
        G = self.personal.plus(Δ, weight)
        with self._recorder.phase("factorise"):
            mine = {name: self._factors(name, g, T) for name, g in G.items()}  # line 8
        for name in G:
            self.personal[name] = G[name] - _matrix(mine[name])
        values = {RECORDS: np.array([weight])} | {
            f"{name}{PART}{part}": array.numpy()
            for name, parts in mine.items()
            for part, array in parts.items()
        }
        everyone = await self._cohort.share(values)  # lines 9-11
        total = sum(float(theirs.pop(RECORDS)[0]) for theirs in everyone.values())
        with self._recorder.phase("factorise"):
            sums = {name: torch.zeros_like(g) for name, g in G.items()}  # line 13
            for theirs in everyone.values():
                for name, sum_ in sums.items():
                    sum_ += _matrix(_parts_of(theirs, name)).view_as(sum_)  # lines 12 and 15
            g = {name: _matrix(self._factors(name, g, T)) for name, g in sums.items()}  # line 17
            for name in sums:  # each party keeps its share of the energy that line 17 cuts off
                self.personal[name] += (sums[name] - g[name]) * (weight / total)
        return {name: (g[name] / total).to(δ) for name, δ in Δ.items()}

    def _factors(self, name: str, g: Tensor, T: float) -> dict[str, Tensor]:
        if not self._most[name]:
            return {WHOLE: g}
        factors = factorise(g, T, self._most[name], self.shared.generator(name))
        return {part: value.contiguous() for part, value in factors._asdict().items()}


class FullMatrices:
    """An exchange of full updates: FedAvg of the student, for comparison with factors."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self.shared, self.personal = Residuals(), Residuals()  # stay empty: the cohort keeps them

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Sum the updates once; T has no effect."""
        return await weighted_mean(self._cohort, Δ, weight)


def factor_exchange(
    mode: FactorMode, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
) -> FactorExchange:
    """Make the exchange of this mode, for a model with these weights."""
    if mode == "none":
        return FullMatrices(cohort)
    kind = JointFactors if mode == "joint" else PerPartyFactors
    return kind(cohort, recorder, Θ, seed, max_rank)


def _projected(name: str) -> str:
    return f"{name}{PROJECTED}"


def _rank(name: str) -> str:
    return f"{name}{RANK}"


def _matrix(parts: Mapping[str, Tensor]) -> Tensor:
    return parts[WHOLE] if WHOLE in parts else Factors(**parts).product()


def _parts_of(values: Mapping[str, NDArray[Any]], name: str) -> dict[str, Tensor]:
    """Select one tensor's parts from the values that a party shared."""
    head = f"{name}{PART}"
    parts = {n.removeprefix(head): v for n, v in values.items() if n.startswith(head)}
    return {part: torch.from_numpy(np.array(array)) for part, array in parts.items()}
