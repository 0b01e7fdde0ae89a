"""HeteroFL's scaler: what a narrower layer gives is divided by the share of the width that is left.

So its next layer finds numbers as large as in the wide model. The paper divides in training alone,
for it measures the wide model. A hospital uses its narrow one, which without the division is
another model than the one it trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

Scaled = Literal["always", "training"]


class Scaler:
    """Of one narrow model."""

    def __init__(self, rate: float, when: Scaled) -> None:
        """`rate`: the share of the width that is left."""
        self._rate, self._always = rate, when == "always"
        self._on: list[tuple[nn.Module, Any]] = []  # narrower layers, and their hooks' handles

    def attach(
        self, model: nn.Module, at: Mapping[str, tuple[Tensor, ...]], wide: nn.Module
    ) -> None:
        """Divide what each layer gives that is narrower than the wide model's."""
        for name, module in model.named_modules():
            axis = {nn.Linear: 0, nn.Embedding: 1}.get(type(module))
            if axis is not None:
                weight = f"{name}.weight"
                if len(at[weight][axis]) < wide.get_parameter(weight).shape[axis]:
                    self._on.append((module, module.register_forward_hook(self._divide)))

    @torch.no_grad()
    def fold(self) -> None:
        """Put the division into the weights, for programs that know of none: the run is over."""
        for module, handle in self._on:
            handle.remove()
            for value in module.parameters(recurse=False) if self._always else ():
                value.div_(self._rate)
        self._on.clear()

    def _divide(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / self._rate if self._always or module.training else output
