"""Frozen linear layers in 8 bits, for adapters around them: a quarter of the memory.

Each output channel has a scale, as in LLM.int8() (Dettmers et al., arXiv 2208.07339), and nothing
else is kept: the weight is made again for each use, in training too. All arithmetic is of single
elements, so hospitals that hold the same checkpoint hold the same base.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

STEPS = 127


class Int8Linear(nn.Module):
    """A linear layer (or GPT-2's transposed kind of it) that learns nothing."""

    rounded: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.transposed = isinstance(plain, Conv1D)
        self.bias = plain.bias
        self._hold(plain.weight.detach())

    def _hold(self, weight: Tensor) -> None:
        scale = weight.abs().amax(0 if self.transposed else 1, keepdim=True).div(STEPS)
        scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("rounded", (weight / scale).round().to(torch.int8), persistent=False)

    @property
    def weight(self) -> Tensor:
        """The weight as it is used."""
        return self.rounded.to(self.scale.dtype) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """As the plain layer's, up to rounding."""
        found: Tensor = _Product.apply(x, self.rounded, self.scale, self.transposed)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias

    def restored(self) -> nn.Module:
        """The plain layer, with the weight as it is used."""
        rows, columns = self.rounded.shape
        plain: Any = (
            Conv1D(columns, rows)
            if self.transposed
            else nn.Linear(columns, rows, bias=self.bias is not None)
        )
        plain.load_state_dict(self.state_dict())
        return plain.requires_grad_(False)  # type: ignore[no-any-return]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """What is saved is a plain layer's: who reads it needs to know nothing of this one."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        weight = state.pop(f"{prefix}weight", None)
        super()._load_from_state_dict(state, prefix, *rest)
        if weight is not None:
            self._hold(weight.to(self.scale))


class _Product(torch.autograd.Function):
    """x·Wᵀ for a W that is made again wherever it is used, so that no step keeps it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, scale: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(rounded, scale)
        ctx.transposed = transposed
        weight = rounded.to(x.dtype) * scale.to(x.dtype)
        return F.linear(x, weight.T if transposed else weight)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        rounded, scale = ctx.saved_tensors
        (slope,) = slopes
        weight = rounded.to(slope.dtype) * scale.to(slope.dtype)
        return slope @ (weight.T if ctx.transposed else weight), None, None, None


def quantise(body: nn.Module) -> None:
    """Hold the frozen linear layers of a transformer in 8 bits; an adapter's A and B stay."""
    for name, module in list(body.named_modules()):
        linear = isinstance(module, nn.Linear | Conv1D) and ".lora_" not in name
        if linear and not module.weight.requires_grad:
            body.set_submodule(name, Int8Linear(module))


def restore(model: nn.Module) -> None:
    """Put plain layers in the place of those in 8 bits."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Int8Linear):
            model.set_submodule(name, module.restored())
