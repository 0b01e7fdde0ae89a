"""Gradients per record of norms, which Opacus 1.6 lacks (RMSNorm) or takes to have a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.func import functional_call

from secure_fl.learning.anatomy import is_norm

Samples: TypeAlias = dict[nn.Parameter, Tensor]
Sampler: TypeAlias = Callable[[nn.Module, list[Tensor], Tensor], Samples]


def complete(model: nn.Module, samplers: dict[type[nn.Module], Sampler]) -> None:
    """Add ours to Opacus' table: one for `LayerNorm`, and one for each other norm of the model."""
    samplers[nn.LayerNorm] = layer_norm
    for module in model.modules():
        if type(module) not in samplers and is_norm(module):
            samplers[type(module)] = scaling


def layer_norm(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Samples:
    """Of a layer normalisation with a bias or without one."""
    assert isinstance(layer, nn.LayerNorm)  # noqa: S101 - for the type checker
    normal = F.layer_norm(activations[0], layer.normalized_shape, eps=layer.eps)
    slopes = {"weight": normal * backprops, "bias": backprops}
    found = {vector: slopes[name] for name, vector in layer.named_parameters()}
    return _per_record(found, len(layer.normalized_shape))


def scaling(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Samples:
    """Of any norm that scales channels: its slope in each vector is how 1 differs from 0 in it.

    That is exact where the output is affine in the vector, w·x̂ or (1 + w)·x̂ as in RMSNorm; what
    is not is found by `sound` before the first step.
    """
    found = {}
    own = dict(layer.named_parameters())
    with torch.no_grad():
        for name, vector in own.items():
            one, none = (
                functional_call(layer, {name: torch.full_like(vector, value)}, activations[0])
                for value in (1.0, 0.0)
            )
            found[vector] = (one - none) * backprops
    return _per_record(found, 1)


def _per_record(products: dict[nn.Parameter, Tensor], dims: int) -> Samples:
    """Sum over all dimensions but the first and the parameter's own, the last `dims`."""
    return {
        parameter: value.flatten(1, -dims - 1).sum(1) if value.dim() > dims + 1 else value
        for parameter, value in products.items()
        if parameter.requires_grad
    }
