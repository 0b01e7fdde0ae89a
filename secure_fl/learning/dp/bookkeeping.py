"""Clipped sums of records' gradients, from what layers read and the slopes of what they gave.

Bu, Wang, Zha, Karypis: Differentially Private Optimization on Large Model at Small Cost, ICML
2023, arXiv 2210.00038. One backward pass goes to the layers' outputs and no further, so gradients
of whole batches are never made. What a layer's weights get of each record is Opacus' to say; of a
linear layer it is a product, whose norm and weighted sum need no gradient of a record in memory
(Li, Tramèr, Liang, Hashimoto, arXiv 2110.05679).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from secure_fl.learning.dp.layers import require_rows

DUST = 1e-6  # added to norms, as Opacus does: no record is scaled by a division by 0


class Part(Protocol):
    """The gradients in one parameter, of each record of a batch."""

    def each(self) -> Tensor:
        """One gradient for each record."""

    def squares(self) -> Tensor:
        """The squared norm of each."""

    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum, each times its weight."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Gradients that lie ready."""

    rows: Tensor

    def each(self) -> Tensor:
        """One gradient for each record."""
        return self.rows

    def squares(self) -> Tensor:
        """The squared norm of each."""
        found: Tensor = torch.linalg.vector_norm(self.rows.flatten(1), dim=1).square()
        return found

    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum, each times its weight."""
        return (weights @ self.rows.flatten(1)).view(self.rows.shape[1:])


@dataclass(frozen=True, slots=True)
class Product:
    """Gradients that are LᵀR of each record: (records, places, rows of the weight or columns)."""

    left: Tensor
    right: Tensor

    def each(self) -> Tensor:
        """One gradient for each record."""
        return self.left.mT @ self.right

    def squares(self) -> Tensor:
        """The squared norm of each."""
        both = (self.left @ self.left.mT) * (self.right @ self.right.mT)
        return both.sum((1, 2)).clamp(min=0)

    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum, each times its weight."""
        left = self.left * weights[:, None, None]
        return left.flatten(0, 1).T @ self.right.flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Gradients in a table's rows: which each place of a record read, and the slope there."""

    ids: Tensor
    slopes: Tensor
    words: int

    def each(self) -> Tensor:
        """One gradient for each record."""
        alone = torch.eye(len(self.ids), dtype=self.slopes.dtype, device=self.slopes.device)
        return torch.stack([self.weighted(row) for row in alone])

    def squares(self) -> Tensor:
        """The squared norm of each."""
        same = self.ids[:, :, None] == self.ids[:, None, :]
        return (self.slopes @ self.slopes.mT * same).sum((1, 2)).clamp(min=0)

    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum, each times its weight."""
        table = self.slopes.new_zeros(self.words, self.slopes.shape[2])
        scaled = self.slopes * weights[:, None, None]
        return table.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1))


class Book:
    """Notes what each layer that trains reads, and what it gives."""

    def __init__(self, model: nn.Module, *, ghost: bool) -> None:
        from opacus.grad_sample.functorch import prepare_layer

        self.ghost, self.uses = ghost, list[tuple[nn.Module, list[Tensor], Any]]()
        self._samplers = _samplers()
        self._hooks = []
        for layer in dict.fromkeys(_owners(model)):  # two models may be made of the same layers
            if type(layer) not in self._samplers:
                prepare_layer(layer)  # by functorch; tidy() takes off what it leaves
            self._hooks.append(layer.register_forward_hook(self._note))

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self.uses.clear()

    def backward(self, losses: Tensor, params: list[nn.Parameter]) -> dict[nn.Parameter, Part]:
        """The gradients of the losses' records in all parameters."""
        uses, self.uses = self.uses, []
        outputs = [output for *_, output in uses]
        slopes = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        found: dict[nn.Parameter, Part] = {}
        for (layer, inputs, _), slope in zip(uses, slopes, strict=True):
            if slope is not None:
                for parameter, part in self._parts(layer, inputs, slope, len(losses)):
                    found[parameter] = _both(found.get(parameter), part)
        for parameter in params:
            if parameter not in found:
                require_rows(None, len(losses), "a layer's gradient")
        return found

    def _note(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled() and getattr(output, "requires_grad", False):
            self.uses.append((layer, [value.detach() for value in inputs], output))

    def _parts(
        self, layer: nn.Module, inputs: list[Tensor], slope: Tensor, records: int
    ) -> Iterator[tuple[nn.Parameter, Part]]:
        require_rows(slope, records, "a layer's gradient")
        require_rows(inputs[0] if inputs else None, records, "a layer's gradient")
        folded = _folded(layer, inputs[0], slope, ghost=self.ghost)
        if folded is None:
            yield from self._sampled(layer, inputs, slope)
            return
        own = {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        if "weight" in own:
            yield own["weight"], folded
        if "bias" in own:
            yield own["bias"], Rows(slope.reshape(records, -1, slope.shape[-1]).sum(1))

    def _sampled(
        self, layer: nn.Module, inputs: list[Tensor], slope: Tensor
    ) -> Iterator[tuple[nn.Parameter, Part]]:
        """As Opacus' table has it, or functorch for what it does not list."""
        from opacus.grad_sample.functorch import ft_compute_per_sample_gradient

        sampler = self._samplers.get(type(layer), ft_compute_per_sample_gradient)
        with torch.no_grad():
            for parameter, rows in sampler(layer, inputs, slope).items():
                require_rows(rows, len(slope), "a layer's gradient")
                yield parameter, Rows(rows.detach())


def leave_clipped(parts: Mapping[nn.Parameter, Part], bound: float) -> None:
    """Leave in each parameter the sum of its gradients, those of each record clipped together."""
    norms = torch.stack([part.squares() for part in parts.values()]).sum(0).sqrt()
    weights = (bound / (norms + DUST)).clamp(max=1.0)
    for parameter, part in parts.items():
        parameter.grad = part.weighted(weights).to(parameter.dtype)


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that hold what trains; what functorch takes is taken whole."""
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        yield module
        if type(module) not in _samplers():
            return
    for child in module.children():
        yield from _owners(child)


def _samplers() -> dict[type[nn.Module], Any]:
    from opacus import GradSampleModule

    found: dict[type[nn.Module], Any] = GradSampleModule.GRAD_SAMPLERS
    return found


def _folded(layer: nn.Module, read: Tensor, slope: Tensor, *, ghost: bool) -> Part | None:
    """The gradient of a layer's weight, folded up; None: it is to be held, or smaller so.

    A table's is never held. Opacus' has a gradient in the padding's row, which autograd has not.
    """
    slope = slope.reshape(len(slope), -1, slope.shape[-1])
    if type(layer) is nn.Embedding:
        ids = read.reshape(len(slope), -1)
        if layer.padding_idx is not None:
            slope = slope * (ids != layer.padding_idx)[..., None]
        return Lookup(ids, slope, layer.num_embeddings)
    turned = type(layer).__name__ == "Conv1D"  # GPT-2's kind holds its weight the other way round
    if not ghost or not (turned or type(layer) is nn.Linear):
        return None
    read = read.reshape(len(read), -1, read.shape[-1]).to(slope.dtype)
    if 2 * slope.shape[1] ** 2 > read.shape[2] * slope.shape[2]:
        return None
    return Product(read, slope) if turned else Product(slope, read)


def _both(first: Part | None, second: Part) -> Part:
    """The gradients of a parameter that is used twice: norms of sums need the sums."""
    return second if first is None else Rows(first.each() + second.each())
