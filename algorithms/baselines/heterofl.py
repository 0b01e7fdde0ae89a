"""HeteroFL: hospitals with less memory train the first channels of every layer.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients. ICLR 2021, arXiv 2010.02264, Algorithm 1. A baseline of InclusiveFL
(arXiv 2202.08036, Sec. 4), with widths that match the sizes of its depths.

A tier's slices lie inside those of every wider tier. A region is the part that a tier owns and the
next narrower tier does not. Each region has a sum of its own, over the parties that own it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from secure_fl.algorithms.baselines.narrow_models import (
    Places,
    at_width,
    head_size,
    narrow_model,
    places,
    shapes,
    size_for_depth,
    wide_config,
)
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.algorithms.inclusivefl.participants import FIRST, first_parties, tier_of
from secure_fl.algorithms.updates import SavedDict, Update, digest, local_update, shared_and_local
from secure_fl.errors import CohortError, SettingsError, TooFewParties
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.party.rounds import Stateful
from secure_fl.protocol.sum_names import OWNERS

WIDTHS = {"weak": 0.5, "medium": 0.75, "strong": 1.0}


async def heterofl(cohort: Cohort, site: Site, cfg: HeteroFL) -> None:
    """Run HeteroFL at one party."""
    if cohort.newcomers:
        raise CohortError(
            "parties joined late, and the others do not all hold the model of their width",
            fix="start a new run with all parties",
            party=cohort.newcomers[0],
        )
    config = wide_config(site)
    sizes = head_sizes(cfg, config, site.model_settings.layers or config.num_hidden_layers)
    tier = tier_of(cohort, site, list(sizes), cfg.shares)
    model, scaler = narrow_model(site, sizes[tier], cfg.scaler)
    regions = regions_of(site, tier, sizes)
    shared, _ = shared_and_local(site, model)
    weight = 1.0 if cfg.weights == "users" else site.records
    await cohort.agree(site.fingerprint(), "task")
    keep: dict[str, Stateful] = {"model": model, FIRST: SavedDict(first_parties(cohort))}
    async for round in cohort.rounds(cfg.rounds, keep):
        owned = await owners(cohort, tier, sizes)
        sent = summed_tiers(cohort, cfg, owned)
        Δ = regions.cut(local_update(site, model, cfg.epochs, round, cfg.steps))
        mean = await mean_by_owners(cohort, {t: Δ[t] for t in regions.tiers if t in sent}, weight)
        kept = {name: δ for t in regions.tiers if t not in sent for name, δ in Δ[t].items()}
        regions.add_(trainable(model), mean | kept)
        await cohort.agree(regions.digest(shared.weights()), "narrowest model")
        site.score(model, round.number)
    owned = await owners(cohort, tier, sizes)
    together = all(owned[t] >= cohort.min_cohort for t in regions.tiers) and not site.local_head
    widest = max((t for t in sizes if owned[t]), key=list(sizes).index)
    name = f"model-{tier}" if together and tier != widest else "model"
    scaler.fold()
    site.deliver(model, name, shared=together)


def head_sizes(cfg: HeteroFL, config: Any, layers: int) -> dict[str, int]:
    """Map each tier to the size of its attention heads, from the narrowest tier up."""
    full = head_size(config)
    if cfg.tiers is None:
        rates = WIDTHS if cfg.widths is None else cfg.widths
        sizes = {tier: max(1, round(rate * full)) for tier, rate in rates.items()}
    else:
        deepest = max(cfg.tiers.values())
        if deepest > layers:
            raise SettingsError(
                f"a tier has the size of {deepest} layers, and the full model has {layers}",
                fix=f"choose 1 to {layers}, or a deeper model",
                field="algorithm.tiers",
            )
        sizes = {tier: size_for_depth(config, d, layers) for tier, d in cfg.tiers.items()}
    return dict(sorted(sizes.items(), key=lambda item: item[1]))


def regions_of(site: Site, tier: str, sizes: Mapping[str, int]) -> Regions:
    """Cut the parameters of this tier's model into regions, from shapes alone."""
    config, spec = wide_config(site), site.model_settings
    wide = shapes(config, site.task, spec)
    by_tier = {}
    for name in list(sizes)[: list(sizes).index(tier) + 1]:
        narrow = shapes(at_width(config, sizes[name]), site.task, spec)
        by_tier[name] = places(wide, narrow)
    return Regions(by_tier)


async def owners(cohort: Cohort, tier: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Count the owners of each tier's regions: the parties of this and of all wider tiers."""
    sums = await cohort.sum({f"tier/{name}": float(name == tier) for name in sizes})
    counts = [round(float(sums[f"tier/{name}"])) for name in sizes]
    return {name: sum(counts[at:]) for at, name in enumerate(sizes)}


def summed_tiers(cohort: Cohort, cfg: HeteroFL, owned: Mapping[str, int]) -> set[str]:
    """Return the tiers whose regions have enough owners for a sum."""
    few = [tier for tier, count in owned.items() if 0 < count < cohort.min_cohort]
    if few and cfg.mix == "tiers":
        raise TooFewParties(
            f"only {owned[few[0]]} of {len(cohort.parties)} parties own the parts of the model "
            f"that begin with tier {few[0]}; min_cohort is {cohort.min_cohort}",
            fix='set algorithm.mix = "wide": such parts stay at home, untouched by others; or '
            "lower protection.min_cohort knowingly: a sum over one hospital IS that hospital",
            party=cohort.me,
            field="algorithm.mix",
        )
    sent = [tier for tier, count in owned.items() if count >= cohort.min_cohort]
    for narrow, wide in pairwise(sent) if cfg.weights == "samples" else ():
        if 0 < owned[narrow] - owned[wide] < cohort.min_cohort:
            raise TooFewParties(
                f"only {owned[narrow] - owned[wide]} of {len(cohort.parties)} parties own the "
                f"parts that begin with tier {narrow} and not those of tier {wide}: the difference "
                f"of two sums would be their records; min_cohort is {cohort.min_cohort}",
                fix='set algorithm.weights = "users"',
                party=cohort.me,
                field="algorithm.weights",
            )
    return set(sent)


async def mean_by_owners(
    cohort: Cohort, parts: Mapping[str, Mapping[str, Tensor]], weight: float
) -> Update:
    """Average every region over its owners; the owners are public."""
    flat = {name: value for part in parts.values() for name, value in part.items()}
    weighted: dict[str, Any] = {name: (weight * value).cpu() for name, value in flat.items()}
    weighted |= {f"{OWNERS}#{tier}": weight for tier in parts}
    sums = await cohort.sum(weighted, partial=True, carry=True)
    return {
        name: torch.as_tensor(
            sums[name] / float(sums[f"{OWNERS}#{name.rpartition('#')[2]}"]),
            dtype=value.dtype,
            device=value.device,
        )
        for name, value in flat.items()
    }


@dataclass(frozen=True, slots=True)
class Regions:
    """A party's parameters, cut into the regions of its own and all narrower tiers."""

    places: Mapping[str, Mapping[str, Places]]  # by tier, from the narrowest to the party's own

    @property
    def tiers(self) -> list[str]:
        """The party's own tier and all narrower ones, from the narrowest."""
        return list(self.places)

    def positions(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """Yield each tier that has a region of a parameter, and the region's flat positions."""
        slices = [at[name] for at in self.places.values()]
        index = torch.arange(math.prod(map(len, slices[-1]))).reshape([len(k) for k in slices[-1]])
        for axis, mine in enumerate(slices[-1]):  # every tier's slice comes first
            lacking = sum(~torch.isin(mine, theirs[axis]) for theirs in slices)
            index = index.index_select(axis, torch.argsort(torch.as_tensor(lacking), stable=True))
        inner = [0] * index.dim()  # of the narrower tier's slice
        for tier, at in zip(self.tiers, slices, strict=True):
            size = [len(kept) for kept in at]
            blocks = [
                (*map(slice, inner[:axis]), slice(inner[axis], end), *map(slice, size[axis + 1 :]))
                for axis, end in enumerate(size)
            ]
            if any(index[block].numel() for block in blocks):
                yield tier, torch.cat([index[block].flatten() for block in blocks])
            inner = size

    def cut(self, values: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Split values into regions: tier -> "parameter#tier" -> values."""
        regions: dict[str, dict[str, Tensor]] = {tier: {} for tier in self.tiers}
        for name, value in values.items():
            for tier, at in self.positions(name):
                regions[tier][f"{name}#{tier}"] = value.flatten()[at.to(value.device)]
        return regions

    @torch.no_grad()
    def add_(self, weights: Mapping[str, Tensor], moves: Mapping[str, Tensor]) -> None:
        """Add the moves of the regions that `moves` names."""
        for name, weight in weights.items():
            for tier, at in self.positions(name):
                if (move := moves.get(f"{name}#{tier}")) is not None:
                    weight.view(-1).index_add_(0, at.to(weight.device), move)

    def digest(self, weights: Mapping[str, Tensor]) -> bytes:
        """Compute a digest of the narrowest tier's region, which all parties own."""
        return digest(self.cut(weights)[self.tiers[0]])
