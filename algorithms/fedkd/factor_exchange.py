"""Exchanges of students' updates: as the aggregate's factors, as each party's factors, or in full.

Lines and equations are those of FedKD (Wu, Wu, Lyu, Huang, Xie: Nature Communications 13, 2032,
2022, arXiv 2108.13323), Algorithm 1. `lowrank` explains the factors. For one weight matrix,

    Δ   a party's update                    T   the share of the energy ‖G‖² that factors keep
    G   its weighted update w·Δ + residual  Ω   a public test matrix
    Y   its sketch G·Ω, then Σᵢ Yᵢ          U   an orthonormal basis of the range of Σᵢ Yᵢ
    B   its projection Uᵀ·G, then Σᵢ Bᵢ     g   the mean, about U·B / Σᵢ wᵢ

An exchange turns one party's Δ into the mean of all. Its state has a part that is equal at all
parties (`shared`) and a part of this party alone (`personal`): the *residual*, which is the part of
w·Δ that the model does not contain yet. It is added to the next update, so nothing is lost.
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
        """Return Σ wᵢ·Δᵢ / Σ wᵢ, with about a share T of its energy; the rest becomes residuals."""


class Residuals(SavedDict):
    """The part of this party's weighted updates that the model does not contain yet, by matrix."""

    def plus(self, Δ: Update, weight: float) -> Update:
        """Return the weighted update plus the residuals of earlier updates."""
        G = {name: (weight * δ).float().cpu() for name, δ in Δ.items()}
        return {name: g + self[name] if name in self else g for name, g in G.items()}


class Subspaces(dict[str, Subspace]):
    """The subspace of every factorised matrix, and the number of exchanges so far."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.count = seed, 0

    def next_exchange(self) -> None:
        """Begin an exchange, with new public randomness."""
        self.count += 1

    def generator(self, name: str) -> torch.Generator:
        """Seed this exchange's public randomness, which is equal at all parties."""
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
        """Run a randomised SVD on the aggregate, by three sums that replace lines 8-21.

        They are of ranks, of Y and of B. No party's factors gᵢ are revealed.
        """
        self.shared.next_exchange()
        G, records = self.personal.plus(Δ, weight), {RECORDS: torch.tensor(weight)}
        # 1. Agree on the number of columns of each Ω. Matrices without Ω are summed whole.
        widths = await self._widths(G, T)
        # 2. Sum Y = G·Ω.
        with self._recorder.phase("factorise"):
            Ω = {k: self.shared[k].probe(w, self.shared.generator(k)) for k, w in widths.items()}
            own_Y = {name: g @ Ω[name] if name in Ω else g for name, g in G.items()}
        Y, Y_errors = await self._sum(records | own_Y)
        # 3. Sum B = Uᵀ·G.
        with self._recorder.phase("factorise"):
            U = {name: orthonormal(Y[name]) for name in Ω}
            own_B = {name + PROJECTED: U[name].T @ G[name] for name in Ω}
        # Open both sums or neither: their difference would be Uᵀ·Gᵢ·Ω of a party that dropped out.
        B, B_errors = await self._sum(records | own_B, together=True) if own_B else ({}, {})
        # 4. Multiply U·B, and keep residuals.
        mean = {}
        with self._recorder.phase("factorise"):
            for name in G:
                projected = name + PROJECTED
                if name not in Ω:
                    self.personal[name] = Y_errors[name]
                    mean[name] = Y[name] / Y[RECORDS]
                elif projected not in B:  # a party dropped out: this matrix does not change
                    self.personal[name], mean[name] = G[name], torch.zeros_like(G[name])
                else:
                    sent = own_B[projected] - B_errors[projected]
                    self.personal[name] = G[name] - U[name] @ sent
                    self.shared[name].learn(B[projected])
                    mean[name] = product(U[name], B[projected]) / B[RECORDS]
        return {name: mean[name].to(δ) for name, δ in Δ.items()}

    async def _widths(self, G: Update, T: float) -> dict[str, int]:
        """Return the columns of Ω for each matrix that factors make smaller.

        They follow from the mean of Eq. 8's ranks over parties, so no party's rank is revealed.
        """
        with self._recorder.phase("factorise"):
            ranks = {name: energy_rank(singular_values(G[name]), T) for name in self.shared}
        values = {name + RANK: float(rank) for name, rank in ranks.items()}
        # Count parties, not records: a later sum over fewer parties must not reveal the records of
        # a party that dropped out.
        sums = await self._cohort.sum({PARTIES: 1.0, **values})
        means = {name: float(sums[name + RANK] / sums[PARTIES]) for name in ranks}
        widths = {name: self.shared[name].width(mean) for name, mean in means.items()}
        self._recorder.event(FactorWidths(round=self._recorder.round, energy=T, widths=widths))
        return {name: width for name, width in widths.items() if width is not None}

    async def _sum(self, values: Update, *, together: bool = False) -> tuple[Update, Update]:
        """Return the sums, and the errors of this party's values by rounding and clipping.

        `carry=True` makes the cohort keep these errors, and `leftover` takes them out again: they
        must not be added to the next value of the same name, which has another basis.
        """
        arrays = {name: value.numpy() for name, value in values.items()}
        sums = await self._cohort.sum(arrays, carry=True, together=together)
        errors = {}
        for name, value in values.items():
            left = self._cohort.leftover(name)
            errors[name] = torch.zeros_like(value) if left is None else torch.from_numpy(left)
        return {k: torch.from_numpy(np.asarray(v)).float() for k, v in sums.items()}, errors


class PerPartyFactors:
    """An exchange of each party's own factors, sealed for the parties, as Algorithm 1 is printed.

    All parties see all factors. The coordinator relays them and cannot open them. Each party then
    repeats the step of the paper's server.
    """

    def __init__(
        self, cohort: Cohort, recorder: EventLog, Θ: Update, seed: int, max_rank: int | None
    ) -> None:
        self._cohort, self._recorder = cohort, recorder
        self._max_ranks = {  # 0: the matrix is sent whole
            name: min(useful_rank(weight.shape), max_rank or useful_rank(weight.shape))
            for name, weight in Θ.items()
        }
        self.shared, self.personal = Subspaces(seed), Residuals()

    async def mean(self, Δ: Update, weight: float, T: float) -> Update:
        """Follow lines 8-21: truncate each party's matrix, add all, and truncate the sum."""
        self.shared.next_exchange()
        G = self.personal.plus(Δ, weight)
        with self._recorder.phase("factorise"):
            own = {name: self._parts(name, matrix, T) for name, matrix in G.items()}  # line 8
        for name in G:
            self.personal[name] = G[name] - _matrix(own[name])
        values = {RECORDS: np.array([weight])} | {
            f"{name}{PART}{part}": array.numpy()
            for name, parts in own.items()
            for part, array in parts.items()
        }
        everyone = await self._cohort.share(values)  # lines 9-11
        records = sum(float(theirs.pop(RECORDS)[0]) for theirs in everyone.values())
        with self._recorder.phase("factorise"):
            sums = {name: torch.zeros_like(matrix) for name, matrix in G.items()}  # line 13
            for theirs in everyone.values():
                for name, total in sums.items():
                    total += _matrix(_parts_of(theirs, name)).view_as(total)  # lines 12 and 15
            g = {name: _matrix(self._parts(name, total, T)) for name, total in sums.items()}  # 17
            # Line 17 cuts off a part of the sum. All residuals together must be what the model
            # lacks, so each party keeps a share of this part.
            for name in sums:
                self.personal[name] += (sums[name] - g[name]) * (weight / records)
        return {name: (g[name] / records).to(δ) for name, δ in Δ.items()}

    def _parts(self, name: str, matrix: Tensor, T: float) -> dict[str, Tensor]:
        """Return the named factors U, S and V of a matrix, or the `WHOLE` matrix."""
        if not self._max_ranks[name]:
            return {WHOLE: matrix}
        factors = factorise(matrix, T, self._max_ranks[name], self.shared.generator(name))
        return {part: value.contiguous() for part, value in factors._asdict().items()}


class FullMatrices:
    """An exchange of full updates: FedAvg of the student, for comparison with factors."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self.shared, self.personal = Residuals(), Residuals()  # empty: the cohort carries errors

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


def _matrix(parts: Mapping[str, Tensor]) -> Tensor:
    """Put a matrix together from its parts."""
    return parts[WHOLE] if WHOLE in parts else Factors(**parts).product()


def _parts_of(values: Mapping[str, NDArray[Any]], name: str) -> dict[str, Tensor]:
    """Select one tensor's parts from the values that a party shared."""
    head = f"{name}{PART}"
    parts = {n.removeprefix(head): v for n, v in values.items() if n.startswith(head)}
    return {part: torch.from_numpy(np.array(array)) for part, array in parts.items()}
