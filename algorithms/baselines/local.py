"""Local: every hospital for itself. What federation has to beat."""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.demands import Demands
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
    async for round in cohort.rounds(cfg.rounds, keep={"model": model}):
        site.fit(model, cfg.epochs)
        site.score(model, round.number)
    site.deliver(model, shared=False)
