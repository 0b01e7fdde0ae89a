"""Local: every hospital for itself. What federation has to beat."""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms.base import Algorithm
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort


class Local(Algorithm):
    """Train on the own records only; nothing is sent."""

    name: Literal["local"] = "local"


async def local(cohort: Cohort, site: Site, cfg: Algorithm) -> None:
    """The party program."""
    model = site.model()
    async for round in cohort.rounds(cfg.rounds, keep={"model": model}):
        site.fit(model, cfg.epochs)
        site.score(model, round.number)
    site.deliver(model, shared=False)
