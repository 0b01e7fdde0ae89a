"""AllLarge, AllSmall and ExclusiveFL: federations that know one depth only.

Baselines of InclusiveFL (arXiv 2202.08036, Sec. 4), with its server and its local training.
"""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms.inclusive.settings import Ladder, Tiered
from secure_fl.algorithms.inclusivefl import by_tiers
from secure_fl.algorithms.tiers import tier_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort

EVERYBODY = "all"  # the only tier where all parties train one size


class AllLarge(Tiered):
    """Every party trains the largest model, as if all could: what tiers cost is measured by it."""

    name: Literal["alllarge"] = "alllarge"


class AllSmall(Tiered):
    """Every party trains the smallest model: nobody is left out, and nobody gets more."""

    name: Literal["allsmall"] = "allsmall"


class ExclusiveFL(Tiered):
    """Only the largest tier takes part; the others hold no model, and are not measured."""

    name: Literal["exclusivefl"] = "exclusivefl"


async def one_size(cohort: Cohort, site: Site, cfg: AllLarge | AllSmall) -> None:
    """The party program of AllLarge and AllSmall."""
    depths = cfg.ladder.depths.values()
    depth = max(depths) if isinstance(cfg, AllLarge) else min(depths)
    await by_tiers(cohort, site, cfg, EVERYBODY, Ladder({EVERYBODY: depth}))


async def exclusivefl(cohort: Cohort, site: Site, cfg: ExclusiveFL) -> None:
    """The party program of ExclusiveFL."""
    largest = cfg.ladder.tiers[-1]
    tier = tier_of(cohort, site, cfg.ladder.tiers, cfg.shares)
    only = Ladder({largest: cfg.ladder.depths[largest]})
    await by_tiers(cohort, site, cfg, largest if tier == largest else None, only)
