"""Copies of one model that are trained at once: each trained layer becomes a batch of layers.

The copies' rows lie one after the other in every batch, equally many of each. Layers without
trained weights do not care whose rows they see, so the model's own code runs unchanged; small
models spend most of their time in calls, of which there is one for all copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

# Families whose trained layers see rows first, as tests/learning/test_stacking.py has it. Others
# may send what has no rows (relative positions) through a trained layer.
FAMILIES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"})


class _Stacked(nn.Module):
    """A layer's weights, so many times."""

    def __init__(self, layer: nn.Linear | nn.LayerNorm, copies: int) -> None:
        super().__init__()
        self.weight, self.bias = _copies(layer.weight, copies), _copies(layer.bias, copies)

    def by_copy(self, rows: Tensor) -> Tensor:
        """The rows of each copy."""
        return rows.reshape(len(self.weight), -1, rows.shape[-1])


class StackedLinear(_Stacked):
    """One product of matrices for each copy."""

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply all in one call."""
        weight = self.weight.transpose(1, 2)
        out = torch.baddbmm(self.bias.unsqueeze(1), self.by_copy(rows), weight)
        return out.view(*rows.shape[:-1], out.shape[-1])


class StackedNorm(_Stacked):
    """One scale and shift for each copy; what comes before them is alike."""

    def __init__(self, layer: nn.LayerNorm, copies: int) -> None:
        super().__init__(layer, copies)
        self._shape, self._eps = layer.normalized_shape, layer.eps

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise all in one call."""
        normed = self.by_copy(F.layer_norm(rows, self._shape, eps=self._eps))
        out = torch.addcmul(self.bias.unsqueeze(1), normed, self.weight.unsqueeze(1))
        return out.view(rows.shape)


def stackable(model: nn.Module) -> bool:
    """Whether a stack would compute what each copy computes: known layers, and no dropout."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", "") not in FAMILIES or _drops(config):
        return False
    return all(
        type(module) in (nn.Linear, nn.LayerNorm)
        and dict(module.named_parameters(recurse=False)).keys() == {"weight", "bias"}
        and all(p.requires_grad for p in module.parameters(recurse=False))
        for module in model.modules()
        if _trained(module)
    )


def stacked(model: nn.Module, copies: int) -> nn.Module:
    """A model of so many copies; parameters keep their names and get a first dimension."""
    stack = deepcopy(model)
    for name, module in list(stack.named_modules()):
        if _trained(module):
            kind: Any = StackedLinear if isinstance(module, nn.Linear) else StackedNorm
            parent, _, leaf = name.rpartition(".")
            setattr(stack.get_submodule(parent), leaf, kind(module, copies))
    return stack


@torch.no_grad()
def begin(stack: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Let every copy begin with these weights."""
    for name, every in stack.items():
        every.copy_(weights[name])


@torch.no_grad()
def clip_each(parameters: Mapping[str, Tensor], bound: float) -> None:
    """`clip_grad_norm_`, of each copy by itself."""
    grads = [p.grad for p in parameters.values() if p.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads])
    factors = (bound / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factors.view(-1, *[1] * (grad.dim() - 1)))


def _trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _copies(weight: Tensor, copies: int) -> nn.Parameter:
    return nn.Parameter(weight.detach().expand(copies, *weight.shape).clone())


def _drops(config: Any) -> bool:
    """Whether anything is dropped at random: copies would draw it from one generator."""
    found = {name: value for name, value in config.to_dict().items() if "drop" in name}
    return any(isinstance(value, int | float) and value > 0 for value in found.values())
