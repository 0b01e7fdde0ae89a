"""Local and Centralized: what federation has to beat, and what it tries to come near to.

Local is every hospital for itself. Centralized is all records in one place: a yardstick on one
machine only. Its program is Local's, at one site that holds the records of all; every hospital's
own dev and test records measure the one model.
"""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, TrainingSettings


class Local(Algorithm):
    """Train on the own records only; nothing is sent."""

    name: Literal["local"] = "local"

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and no sum in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)


async def local(cohort: Cohort, site: Site, cfg: Algorithm) -> None:
    """The party program."""
    model = site.model()
    optimizer = site.optimizer(model)
    async for round in cohort.rounds(cfg.rounds, {"model": model, "optimizer": optimizer}):
        site.fit(model, cfg.epochs, round, optimizer=optimizer)
        site.score(model, round.number)
    site.deliver(model, shared=False)


class Centralized(Algorithm):
    """Pool the records of all parties (only where they already lie on one machine) and train."""

    name: Literal["centralized"] = "centralized"

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and no sum in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)
