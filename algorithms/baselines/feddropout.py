"""Federated dropout: in every round, parties train a random sub-model and send only its update.

Caldas, Konečný, McMahan, Talwalkar: Expanding the Reach of Federated Learning by Reducing Client
Resource Requirements. arXiv 1812.07210, Sec. "Federated Dropout". A baseline of FedKD (arXiv
2108.13323, Tables 2 and 3), whose cost column is 0.6 of the full model's: what `keep` = 0.6 sends.
A checkpoint learns nothing by that (docs/choices.md, "Defaults"), so it is not the default.

A sub-model is the model without some units of its encoder layers. A unit is an attention head, or
an intermediate unit of a feed-forward block: some rows of the matrices that make it and some
columns of the one that uses it. Embeddings, LayerNorms, biases of outputs and heads stay whole.

Sub-models could differ between parties. Here all share one in each round, drawn from the run's seed
and the round: only then is the sum over the parties as small as the sub-model. Which units take
part is public, and nobody chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.public_coins import choose
from secure_fl.algorithms.updates import Update, agree_on, local_update, weighted_mean
from secure_fl.learning.anatomy import blocks, encoder_layers, trainable, unwrapped
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, TrainingSettings


class FedDropout(Algorithm):
    """FedAvg of sub-models that keep a share of each layer's heads and intermediate units."""

    name: Literal["feddropout"] = "feddropout"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Fraction of heads and of intermediate units in a sub-model."""

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
        Δ = local_update(site, shrink(model, units), cfg.epochs, round)
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


@dataclass(frozen=True, slots=True)
class Cut:
    """What stays of one parameter: these positions along this axis."""

    axis: int
    kept: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """The part that stays."""
        return whole.index_select(self.axis, self.kept.to(whole.device))

    def add_(self, whole: Tensor, part: Tensor) -> None:
        """Add a part to the whole, where it was cut from."""
        whole.index_add_(self.axis, self.kept.to(whole.device), part.to(whole))


@dataclass(frozen=True, slots=True)
class Units:
    """Which units of a model stay: cuts by parameter, and the modules that use fewer inputs."""

    cuts: Mapping[str, Cut]
    scales: Mapping[str, float]  # module -> units by units kept


def draw(model: nn.Module, keep: float, seed: int) -> Units:
    """Keep the nearest number to this share of every block's units, one at least, at random.

    How many stay does not depend on the seed, so every sub-model has the same shape.
    """
    names = {id(module): name for name, module in unwrapped(model).named_modules()}
    cuts: dict[str, Cut] = {}
    scales: dict[str, float] = {}
    for layer in encoder_layers(model):
        modules: dict[str, Any] = dict(layer.named_modules())
        for block in blocks(layer):
            uses = names[id(modules[block.uses])]
            width = modules[block.heads].attention_head_size if block.heads else 1
            units = int(modules[block.uses].in_features) // width
            count = max(1, int(keep * units + 0.5))
            chosen = choose(seed_for(seed, uses), units, count)
            channels = np.add.outer(chosen * width, np.arange(width)).ravel()
            kept = torch.from_numpy(channels)
            for makes in (names[id(modules[name])] for name in block.makes):
                cuts[f"{makes}.weight"] = cuts[f"{makes}.bias"] = Cut(0, kept)
            cuts[f"{uses}.weight"] = Cut(1, kept)
            scales[uses] = units / count
    return Units(cuts, scales)


def shrink(model: nn.Module, units: Units) -> nn.Module:
    """Return the sub-model of these units; what is not trained is shared with the model.

    Scaled as inverted dropout, which is our choice: what uses fewer units gets each of them
    magnified by units / units kept, so over all draws its output is the whole model's on average,
    and the whole model needs no scaling when it is used.
    """
    model = unwrapped(model)
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        if name in units.cuts:
            part = units.cuts[name].of(parameter.detach())
            memo[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
        elif not parameter.requires_grad:
            memo[id(parameter)] = parameter
    smaller = deepcopy(model, memo)
    for name in units.cuts:
        module = smaller.get_submodule(name.rpartition(".")[0])
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
    for name, scale in units.scales.items():
        smaller.get_submodule(name).register_forward_pre_hook(partial(_magnify, scale))
    return smaller


def _magnify(scale: float, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] * scale, *inputs[1:])
