"""Federated dropout: in every round, parties train a random sub-model and send only its update.

Caldas, Konečný, McMahan, Talwalkar: Expanding the Reach of Federated Learning by Reducing Client
Resource Requirements. arXiv 1812.07210, Sec. "Federated Dropout". A baseline of FedKD (arXiv
2108.13323, Tables 2 and 3), whose cost column is 0.6 of the full model's: what `keep` = 0.6 sends.

Sub-models could differ between parties. Here all share one in each round, drawn from the run's seed
and the round: only then is the sum over the parties as small as the sub-model. Which units take
part is public, and nobody chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.feddropout.submodel import Units, draw, shrink
from secure_fl.algorithms.demands import Demands
from secure_fl.algorithms.updates import Update, agree_on, local_update, weighted_mean
from secure_fl.learning.models import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, TrainingSettings


class FedDropout(Algorithm):
    """FedAvg of sub-models that keep a share of each layer's heads and intermediate units."""

    name: Literal["feddropout"] = "feddropout"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.6  # of heads, and of intermediate units

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and one sum of a sub-model's updates in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)


class Unsent:
    """The leftovers of a party's updates, kept at their places in the whole model.

    The door would add it to the next part of the same name, whose positions mean other units. So
    it is taken out after each sum, and waits here until its units are drawn again.
    """

    def __init__(self) -> None:
        self._rest: dict[str, Tensor] = {}

    @torch.no_grad()
    def join(self, parts: Update, units: Units) -> Update:
        """The parts of an update, with what waits for their units, which is forgotten here."""
        joined = dict(parts)
        for name in parts.keys() & self._rest.keys():
            rest, cut = self._rest[name], units.cuts[name]
            waiting = cut.of(rest)
            cut.add_(rest, -waiting)
            joined[name] = parts[name] + waiting.to(parts[name])
        return joined

    @torch.no_grad()
    def collect(
        self, cohort: Cohort, units: Units, whole: Mapping[str, Tensor], weight: float
    ) -> None:
        """Take what the last sum left over of weight · update out of the door."""
        for name in units.cuts.keys() & whole.keys():
            rest = cohort.leftover(name)
            if rest is not None:
                kept = self._rest.setdefault(name, torch.zeros_like(whole[name], device="cpu"))
                units.cuts[name].add_(kept, torch.from_numpy(rest / weight))

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return dict(self._rest)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._rest = dict(state)


async def feddropout(cohort: Cohort, site: Site, cfg: FedDropout) -> None:
    """The party program."""
    model, unsent = site.model(), Unsent()
    await cohort.agree(site.fingerprint(), "task")
    async for round in cohort.rounds(cfg.rounds, {"unsent": unsent}, {"model": model}):
        units = draw(model, cfg.keep, seed_for(site.seed, cfg.name, round.number))
        Δ = local_update(site, shrink(model, units), cfg.epochs)
        mean = await weighted_mean(cohort, unsent.join(Δ, units), site.records)
        unsent.collect(cohort, units, trainable(model), site.records)
        move_(model, units, mean)
        await agree_on(cohort, model)
        site.score(model, round.number)
    site.deliver(model)


@torch.no_grad()
def move_(model: nn.Module, units: Units, parts: Update) -> None:
    """Move the units that took part; all others stay where they are."""
    for name, weight in trainable(model).items():
        if name in units.cuts:
            units.cuts[name].add_(weight, parts[name])
        else:
            weight.add_(parts[name])
