"""Updates that parties exchange through the real door, for tests of the ways of factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.algorithms.fedkd.factor_exchange import factor_exchange
from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.algorithms.updates import Update
from secure_fl.events import EventLog
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate
from tests.support.event_documents import into

NAMES = ("east", "north", "south", "west")
WAYS: tuple[FactorMode, ...] = get_args(FactorMode)
MODES: tuple[Protection, ...] = get_args(Protection)
Matrix = NDArray[np.float64]


@dataclass
class Log:
    """What one party gave, the mean it got, what it kept, and how wide the factors were."""

    given: list[Update] = field(
        default_factory=list
    )  # weighted, with what was left of earlier ones
    mean: list[Update] = field(default_factory=list)
    kept: list[Update] = field(default_factory=list)
    width: list[dict[str, int | None]] = field(default_factory=list)  # None: travelled whole


@dataclass
class Sum:
    """One party's part in one sum, and what it saw of all parts."""

    party: str
    given: dict[str, NDArray[Any]]
    opened: dict[str, Any] = field(default_factory=dict)


def exchanged(
    updates: Mapping[str, Sequence[Update]],
    way: FactorMode = "joint",
    *,
    T: float = 0.95,
    max_rank: int | None = None,
    weights: Mapping[str, float] | None = None,
    **options: Any,
) -> dict[str, Log]:
    """Let every party exchange its updates, one after the other, through the real door."""

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Log:
            log, mine = Log(), updates[name]
            weight = (weights or {}).get(name, 1.0)
            events: list[dict[str, Any]] = []
            recorder = EventLog(name, into(events))
            ready = factor_exchange(way, cohort, recorder, mine[0], 5, max_rank)
            for Δ in mine:
                personal = ready.personal.state_dict()
                log.given.append(
                    {n: weight * δ + personal.get(n, torch.zeros(())) for n, δ in Δ.items()}
                )
                log.mean.append(await ready.mean(Δ, weight, T))
                log.kept.append(
                    {n: torch.zeros_like(δ) for n, δ in Δ.items()} | ready.personal.state_dict()
                )
            log.width = [e["widths"] for e in events if e["event"] == "factor_widths"]
            return log

        return run

    return federate({name: program(name) for name in updates}, **options).results


def summed(updates: Sequence[Update]) -> dict[str, Matrix]:
    return {n: sum(u[n].double().numpy() for u in updates) for n in updates[0]}  # type: ignore[misc]


def aggregate(logs: Mapping[str, Log], round: int) -> dict[str, Matrix]:
    return summed([log.given[round] for log in logs.values()])


def drawn(seed: int, *shape: int) -> Matrix:
    return np.random.default_rng(seed).normal(size=shape)


def basis(M: Matrix) -> Matrix:
    Q: Matrix = np.linalg.qr(M)[0]
    return Q


def tensor(M: Any) -> Tensor:
    return torch.from_numpy(np.asarray(M, np.float32))


SHAPES = {"tall": (40, 24), "wide": (24, 40), "bias": (30,), "row": (1, 20), "scale": ()}


def mixed(seed: int, names: Sequence[str] = NAMES, rounds: int = 3) -> dict[str, list[Update]]:
    """Updates of every shape, each party's its own, with a common part of rank two."""
    updates: dict[str, list[Update]] = {}
    for number, name in enumerate(names):
        updates[name] = []
        for t in range(rounds):
            rng = np.random.default_rng([seed, number, t])
            Δ = {n: rng.normal(size=shape) for n, shape in SHAPES.items()}
            for n in ("tall", "wide"):
                P, Q = SHAPES[n]
                Δ[n] = 0.05 * Δ[n] + drawn(seed, P, 2) @ drawn(seed + 1, 2, Q)
            updates[name].append({n: tensor(δ) for n, δ in Δ.items()})
    return updates


def of_rank(seed: int, P: int, Q: int, rank: int) -> Matrix:
    """A matrix with so many singular values, all 1."""
    A: Matrix = basis(drawn(seed, P, rank)) @ basis(drawn(seed + 1, Q, rank)).T
    return A
