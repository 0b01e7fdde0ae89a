"""Reference points: training alone, pooled training, and federations with one model depth.

Local trains each hospital alone. Centralized pools all records on one machine: its program is
Local's, at one site that holds the records of all. AllLarge, AllSmall and ExclusiveFL are
InclusiveFL's baselines (arXiv 2202.08036, Sec. 4), with its server and its local training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from secure_fl.algorithms.base import Algorithm, WholeModel
from secure_fl.algorithms.inclusivefl.ladder import Ladder
from secure_fl.algorithms.inclusivefl.settings import Tiered

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.party.cohort import Cohort

ONE_TIER = "all"  # the tier's name where all parties train one size


class Local(WholeModel):
    """Each party trains on its own records alone; nothing is sent."""

    name: Literal["local"] = "local"


class Centralized(WholeModel):
    """One model is trained on the records of all parties, which must be on one machine."""

    name: Literal["centralized"] = "centralized"


class AllLarge(Tiered):
    """Every party trains the largest model; the difference to tiers is the cost of tiers."""

    name: Literal["alllarge"] = "alllarge"


class AllSmall(Tiered):
    """Every party trains the smallest model, which all can hold."""

    name: Literal["allsmall"] = "allsmall"


class ExclusiveFL(Tiered):
    """Only the largest tier trains; other parties hold no model and are not measured."""

    name: Literal["exclusivefl"] = "exclusivefl"


async def local(cohort: Cohort, site: Site, cfg: Algorithm) -> None:
    """Train at one party, without any sum."""
    model = site.model()
    optimizer = site.optimizer(model)
    async for round in cohort.rounds(cfg.rounds, {"model": model, "optimizer": optimizer}):
        site.fit(model, cfg.epochs, round, optimizer=optimizer)
        site.score(model, round.number)
    site.deliver(model, shared=False)


async def one_size(cohort: Cohort, site: Site, cfg: AllLarge | AllSmall) -> None:
    """Run AllLarge or AllSmall at one party."""
    from secure_fl.algorithms.inclusivefl.algorithm import by_tiers

    depths = cfg.ladder.depths.values()
    depth = max(depths) if isinstance(cfg, AllLarge) else min(depths)
    await by_tiers(cohort, site, cfg, ONE_TIER, Ladder({ONE_TIER: depth}))


async def exclusivefl(cohort: Cohort, site: Site, cfg: ExclusiveFL) -> None:
    """Run ExclusiveFL at one party."""
    from secure_fl.algorithms.inclusivefl.algorithm import by_tiers
    from secure_fl.algorithms.inclusivefl.participants import tier_of

    largest = cfg.ladder.tiers[-1]
    tier = tier_of(cohort, site, cfg.ladder.tiers, cfg.shares)
    only = Ladder({largest: cfg.ladder.depths[largest]})
    await by_tiers(cohort, site, cfg, largest if tier == largest else None, only)
