"""A narrower model of the same class, cut out of a model by dropping units of its encoder layers.

A unit is an attention head, or an intermediate unit of a feed-forward block: some rows of the
matrices that make it and some columns of the one that uses it. Embeddings, LayerNorms, biases of
outputs and heads stay whole.
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

from secure_fl.algorithms.baselines.blocks import blocks
from secure_fl.algorithms.public_coins import choose
from secure_fl.learning.anatomy import encoder_layers, unwrapped
from secure_fl.seeds import seed_for


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
