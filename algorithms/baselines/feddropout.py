"""Federated dropout: in every round, parties train a random sub-model and send only its update.

Caldas, Konečný, McMahan, Talwalkar: Expanding the Reach of Federated Learning by Reducing Client
Resource Requirements. arXiv 1812.07210, Sec. "Federated Dropout". A baseline of FedKD (arXiv
2108.13323, Tables 2 and 3), whose cost column is 0.6 of the full model's, as with `keep` = 0.6. A
checkpoint learns nothing at 0.6: accuracy on sst2 is 52.0, and 80.5 at 0.8, the default.

A sub-model lacks some units of the encoder layers. A unit is an attention head, or an intermediate
unit of a feed-forward block: some rows of the matrices before it and some columns of the matrix
behind it. Embeddings, LayerNorms, biases of outputs and heads stay complete.

Differs: all parties share one sub-model in each round, drawn from the run's seed and the round.
Only then is the sum over the parties as small as the sub-model. The draw is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secure_fl.algorithms.baselines.settings import FedDropout
from secure_fl.algorithms.public_coins import choose
from secure_fl.algorithms.updates import SavedDict, Update, agree_on, local_update, weighted_mean
from secure_fl.learning.anatomy import blocks, encoder_layers, trainable, unwrapped
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for


class UnsentParts(SavedDict):
    """The rounding errors of a party's updates, at their positions in the full model.

    The cohort would add them to the next value of the same name, whose positions are other units.
    So they are taken out after each sum, and are added again when their units are drawn.
    """

    @torch.no_grad()
    def join(self, parts: Update, units: DrawnUnits) -> Update:
        """Add the stored errors of these units to an update, and forget them."""
        joined = dict(parts)
        for name in parts.keys() & self.keys():
            rest, cut = self[name], units.cuts[name]
            waiting = cut.of(rest)
            cut.add_(rest, -waiting)
            joined[name] = parts[name] + waiting.to(parts[name])
        return joined

    @torch.no_grad()
    def collect(
        self, cohort: Cohort, units: DrawnUnits, full: Mapping[str, Tensor], weight: float
    ) -> None:
        """Store the errors that the last sum left of weight · update."""
        for name in units.cuts.keys() & full.keys():
            rest = cohort.leftover(name)
            if rest is not None:
                stored = self.setdefault(name, torch.zeros_like(full[name], device="cpu"))
                units.cuts[name].add_(stored, torch.from_numpy(rest / weight))


async def feddropout(cohort: Cohort, site: Site, cfg: FedDropout) -> None:
    """Run federated dropout at one party."""
    model, unsent = site.model(), UnsentParts()
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
def move_(model: nn.Module, units: DrawnUnits, parts: Update) -> None:
    """Move the drawn units; all others keep their weights."""
    for name, weight in trainable(model).items():
        if name in units.cuts:
            units.cuts[name].add_(weight, parts[name])
        else:
            weight.add_(parts[name])


@dataclass(frozen=True, slots=True)
class Cut:
    """The positions of one parameter that stay, along one axis."""

    axis: int
    kept: Tensor

    def of(self, full: Tensor) -> Tensor:
        """Return the part that stays."""
        return full.index_select(self.axis, self.kept.to(full.device))

    def add_(self, full: Tensor, part: Tensor) -> None:
        """Add a part to the full tensor, at its own positions."""
        full.index_add_(self.axis, self.kept.to(full.device), part.to(full))


@dataclass(frozen=True, slots=True)
class DrawnUnits:
    """The units of a sub-model: cuts by parameter, and scales of modules with fewer inputs."""

    cuts: Mapping[str, Cut]
    scales: Mapping[str, float]  # module -> units / units kept


def draw(model: nn.Module, keep: float, seed: int) -> DrawnUnits:
    """Draw this share of every block's units at random, rounded, at least one.

    The number of units does not depend on the seed, so all sub-models have the same shape.
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
    return DrawnUnits(cuts, scales)


def shrink(model: nn.Module, units: DrawnUnits) -> nn.Module:
    """Return the sub-model of these units; untrained parameters are shared with the model.

    Differs: inputs are scaled as in inverted dropout. A module with fewer inputs gets them times
    units / units kept, so its mean output over all draws is the full model's.
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
