"""HeteroFL: hospitals that can hold less train the first channels of every layer.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients. ICLR 2021, arXiv 2010.02264, Algorithm 1. A baseline of InclusiveFL
(arXiv 2202.08036, Sec. 4), with widths that match the sizes of its depths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.baselines.heterofl.narrow import narrow_model, places, shapes
from secure_fl.algorithms.baselines.heterofl.regions import Regions
from secure_fl.algorithms.baselines.heterofl.scaler import Scaled
from secure_fl.algorithms.baselines.heterofl.widths import (
    at_width,
    head_size,
    size_for_depth,
    wide_config,
)
from secure_fl.algorithms.tiers import Share, Weights, tier_of
from secure_fl.algorithms.updates import Update, kept_at_home, local_update
from secure_fl.errors import CohortError, SettingsError, TooFewParties
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, Positive, TrainingSettings

Width = Annotated[float, Field(gt=0, le=1)]
WIDTHS = {"weak": 0.5, "medium": 0.75, "strong": 1.0}


class HeteroFL(Algorithm):
    """Each tier trains a narrower model; every element's mean is over the parties that have it."""

    name: Literal["heterofl"] = "heterofl"
    widths: dict[str, Width] | None = None
    """Tier -> fraction of the width. Default: 0.5, 0.75 and 1.0."""
    tiers: dict[str, Positive] | None = None
    """Tier -> depth at which the complete model is as large as the tier's."""
    shares: dict[str, Share] | None = None
    """Tier -> fraction of the hospitals without a tier of their own. Default: equal."""
    steps: Positive | None = None
    """Local steps in each round, instead of epochs."""
    weights: Weights = "users"
    """Weight of a hospital in a mean: 1 (users), or its records, which stay private."""
    mix: Literal["tiers", "wide"] = "tiers"
    """wide: parts that too few hospitals own are not sent."""
    scaler: Scaled = "always"
    """training: as printed; narrow models are then evaluated without the scaler."""

    @model_validator(mode="after")
    def _one_of_two(self) -> HeteroFL:
        if self.widths is not None and self.tiers is not None:
            raise ValueError("one of widths and tiers, not both")
        if not (self.widths or self.tiers or (self.widths is None and self.tiers is None)):
            raise ValueError("one tier at least")
        return self

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, or counted steps in place of them."""
        return replace(Demands.of_fit(self, training), steps=self.steps or 0)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """At most the whole model, at its widest."""
        return (model,)


def head_sizes(cfg: HeteroFL, config: Any, layers: int) -> dict[str, int]:
    """Tier -> how wide its attention heads are, from the narrowest tier up."""
    whole = head_size(config)
    if cfg.tiers is None:
        rates = WIDTHS if cfg.widths is None else cfg.widths
        sizes = {tier: max(1, round(rate * whole)) for tier, rate in rates.items()}
    else:
        deepest = max(cfg.tiers.values())
        if deepest > layers:
            raise SettingsError(
                f"a tier equals {deepest} layers, and the whole model has {layers}",
                fix=f"choose 1 to {layers}, or a deeper model",
                field="algorithm.tiers",
            )
        sizes = {tier: size_for_depth(config, d, layers) for tier, d in cfg.tiers.items()}
    return dict(sorted(sizes.items(), key=lambda item: item[1]))


def regions_of(site: Site, tier: str, sizes: Mapping[str, int]) -> Regions:
    """How the parameters of this tier's model are cut; only shapes are made, no weights."""
    config, spec = wide_config(site), site.model_settings
    wide = shapes(config, site.task, spec)
    found = {}
    for name in list(sizes)[: list(sizes).index(tier) + 1]:
        narrow = shapes(at_width(config, sizes[name]), site.task, spec)
        found[name] = places(wide, narrow)
    return Regions.of(tier, found)


async def owners(cohort: Cohort, tier: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Tier -> how many parties own its regions: those of this tier and of all wider ones."""
    sums = await cohort.sum({f"tier/{name}": float(name == tier) for name in sizes})
    counts = [round(float(sums[f"tier/{name}"])) for name in sizes]
    return {name: sum(counts[at:]) for at, name in enumerate(sizes)}


def travelling(cohort: Cohort, cfg: HeteroFL, owned: Mapping[str, int]) -> set[str]:
    """The tiers whose regions enough parties own to be summed."""
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
    """The mean of every region over the parties that own it; who owns what is public."""
    flat = {name: value for part in parts.values() for name, value in part.items()}
    weighted: dict[str, Any] = {name: (weight * value).cpu() for name, value in flat.items()}
    weighted |= {f"owners#{tier}": weight for tier in parts}
    sums = await cohort.sum(weighted, partial=True, carry=True)
    return {
        name: torch.as_tensor(
            sums[name] / float(sums[f"owners#{name.rpartition('#')[2]}"]),
            dtype=value.dtype,
            device=value.device,
        )
        for name, value in flat.items()
    }


async def heterofl(cohort: Cohort, site: Site, cfg: HeteroFL) -> None:
    """The party program."""
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
    weight = 1.0 if cfg.weights == "users" else site.records
    await cohort.agree(site.fingerprint(), "task")
    async for round in cohort.rounds(cfg.rounds, keep={"model": model}):
        owned = await owners(cohort, tier, sizes)
        sent = travelling(cohort, cfg, owned)
        Δ = regions.cut(local_update(site, model, cfg.epochs, round, cfg.steps))
        mean = await mean_by_owners(cohort, {t: Δ[t] for t in regions.tiers if t in sent}, weight)
        kept = {name: δ for t in regions.tiers if t not in sent for name, δ in Δ[t].items()}
        regions.add_(trainable(model), mean | kept)
        await cohort.agree(regions.digest(shared_of(site, model)), "narrowest model")
        site.score(model, round.number)
    owned = await owners(cohort, tier, sizes)
    together = all(owned[t] >= cohort.min_cohort for t in regions.tiers) and not site.local_head
    widest = max((t for t in sizes if owned[t]), key=list(sizes).index)
    name = f"model-{tier}" if together and tier != widest else "model"
    scaler.fold()
    site.deliver(model, name, shared=together)


def shared_of(site: Site, model: torch.nn.Module) -> dict[str, Tensor]:
    """What is trained and sent: all but a head of the party's own."""
    own = kept_at_home(site, model)
    return {name: weight for name, weight in trainable(model).items() if name not in own}
