"""Hospitals whose losses are quadratic, so that a few lines of numpy repeat an algorithm's paper.

Hospital k minimises fₖ(w) = ½·Σ aₖ·(w - bₖ)². The optimum of all is Σ nₖaₖbₖ / Σ nₖaₖ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from secure_fl.algorithms.fedavg import fedavg
from secure_fl.algorithms.settings import Averaging
from secure_fl.learning.local_training import make_optimizer
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, TrainingSettings
from secure_fl.testing.harness import Program, federate

Vector = NDArray[np.float64]
RATE, STEPS = 0.1, 8  # of local SGD
SGD = TrainingSettings(
    optimizer="sgd", learning_rate=RATE, weight_decay=0.0, schedule="constant", max_grad_norm=None
)


class Point(nn.Module):
    """A model of four weights in two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(12)) for _ in range(2))


@dataclass
class Hospital:
    """A site with a quadratic loss, as `fedavg` uses sites."""

    a: Vector
    b: Vector
    records: float
    training: TrainingSettings = SGD
    steps: int = STEPS
    local_head: bool = False
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    history: list[Vector] = field(default_factory=list)  # the scored weights of each round

    def model(self) -> Point:
        return Point()

    def fingerprint(self) -> bytes:
        return b"quadratic"

    def fit(self, model: Any, epochs: int, round: Any, *, steps: Any, optimizer: Any) -> float:
        optimizer = optimizer or make_optimizer(model, self.training)
        a, b = (torch.tensor(v, dtype=torch.float32) for v in (self.a, self.b))
        for _ in range(self.steps * epochs):
            optimizer.zero_grad()
            w = torch.cat([model.first, model.second])
            (0.5 * a * (w - b) ** 2).sum().backward()
            optimizer.step()
        return 0.0

    def score(self, model: Any, round: int) -> None:
        w = torch.cat([model.first, model.second]).detach()
        self.history.append(w.double().numpy().copy())

    def deliver(self, model: Any, *, shared: bool) -> None:
        assert shared


def hospitals(**changes: Any) -> dict[str, Hospital]:
    """Four hospitals with unlike curvatures and optima."""
    rng = np.random.default_rng(3)
    return {
        name: Hospital(rng.uniform(0.1, 3, 24), rng.normal(0, 1, 24), records, **changes)
        for name, records in (("east", 40.0), ("north", 10.0), ("south", 25.0), ("west", 15.0))
    }


def optimum(sites: Mapping[str, Hospital]) -> Vector:
    weight: Vector = sum((s.records * s.a for s in sites.values()), np.zeros(24))
    return sum((s.records * s.a * s.b for s in sites.values()), np.zeros(24)) / weight


def trained(
    cfg: Averaging, sites: Mapping[str, Hospital], mode: Any = "none", **options: Any
) -> list[Vector]:
    """Run the algorithm at all hospitals; return the weights after each round."""

    def program(site: Any) -> Program:
        async def run(cohort: Cohort) -> None:
            await fedavg(cohort, site, cfg)

        return run

    given = {"mode": mode, "bits": 16} | options
    federate({name: program(site) for name, site in sites.items()}, **given)
    return next(iter(sites.values())).history
