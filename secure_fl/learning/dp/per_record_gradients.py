"""Clipped sums of per-record gradients, from the inputs of layers and the slopes of their outputs.

Bu, Wang, Zha, Karypis: Differentially Private Optimization on Large Model at Small Cost, ICML
2023, arXiv 2210.00038. One backward pass stops at the layers' outputs, so gradients of whole
batches are never computed. Opacus' samplers give the gradients of a layer's weights per record. A
linear layer's gradient is a product, whose norm and weighted sum need no gradient of a record in
memory (Li, Tramèr, Liang, Hashimoto, arXiv 2110.05679). The norm is a sum over pairs of places,
which can cancel: then float32 loses it, and it is computed again with an upper bound (`norms`).

Opacus 1.6 has no samplers for RMSNorms and requires a bias of layer norms, so both are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.func import functional_call

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import is_norm

EPSILON = 1e-6  # added to norms, as Opacus does, to avoid divisions by 0
ROUNDING = 2.0**-20  # error of float32 products and sums, relative to the norms of their terms
FLUSHED = 2.0**-126  # squares below this are 0 on some processors
WIDEST = 2.0**20  # values of a place
TRUSTED = 2.0**-10  # larger relative errors of squared norms need `norms`

Samples: TypeAlias = dict[nn.Parameter, Tensor]
Sampler: TypeAlias = Callable[[nn.Module, list[Tensor], Tensor], Samples]


class RecordGradients(Protocol):
    """The gradients of one parameter, for each record of a batch."""

    def each(self) -> Tensor:
        """One gradient per record."""

    def squares(self) -> tuple[Tensor, Tensor]:
        """The squared norm of each, and a bound of its error."""

    def norms(self, records: Tensor) -> Tensor:
        """Upper bounds of the norms of some records, in float64."""

    def weighted(self, weights: Tensor) -> Tensor:
        """Their weighted sum."""

    def of(self, records: Tensor) -> RecordGradients:
        """The same gradients, with zeros for all other records."""


Gradients: TypeAlias = dict[nn.Parameter, RecordGradients]


@dataclass(frozen=True, slots=True)
class DenseGradients:
    """Gradients in memory."""

    rows: Tensor

    def each(self) -> Tensor:
        """One gradient per record."""
        return self.rows

    def squares(self) -> tuple[Tensor, Tensor]:
        """The squared norm of each, and a bound of its error."""
        norms: Tensor = torch.linalg.vector_norm(self.rows.flatten(1), dim=1)
        return norms.square(), torch.zeros_like(norms)

    def norms(self, records: Tensor) -> Tensor:
        """Upper bounds of the norms of some records, in float64."""
        norms: Tensor = torch.linalg.vector_norm(_float64(self.rows, records).flatten(1), dim=1)
        return norms

    def weighted(self, weights: Tensor) -> Tensor:
        """Their weighted sum."""
        return (weights @ self.rows.flatten(1)).view(self.rows.shape[1:])

    def of(self, records: Tensor) -> DenseGradients:
        """The same gradients, with zeros for all other records."""
        return DenseGradients(_only(self.rows, records))


@dataclass(frozen=True, slots=True)
class ProductGradients:
    """Gradients LᵀR of each record; both are (records, places, rows or columns of the weight)."""

    left: Tensor
    right: Tensor

    def each(self) -> Tensor:
        """One gradient per record."""
        return self.left.mT @ self.right

    def squares(self) -> tuple[Tensor, Tensor]:
        """The squared norm of each, and a bound of its error."""
        return _squares(self.left @ self.left.mT, self.right @ self.right.mT)

    def norms(self, records: Tensor) -> Tensor:
        """Upper bounds of the norms of some records, in float64."""
        left, right = _float64(self.left, records), _float64(self.right, records)
        return _bounded(left @ left.mT, right @ right.mT)

    def weighted(self, weights: Tensor) -> Tensor:
        """Their weighted sum."""
        left = self.left * weights[:, None, None]
        return left.flatten(0, 1).T @ self.right.flatten(0, 1)

    def of(self, records: Tensor) -> ProductGradients:
        """The same gradients, with zeros for all other records."""
        return ProductGradients(_only(self.left, records), _only(self.right, records))


@dataclass(frozen=True, slots=True)
class LookupGradients:
    """Gradients of a table: the row that each place of a record read, and the slope there."""

    ids: Tensor
    slopes: Tensor
    words: int

    def each(self) -> Tensor:
        """One gradient per record."""
        alone = torch.eye(len(self.ids), dtype=self.slopes.dtype, device=self.slopes.device)
        return torch.stack([self.weighted(row) for row in alone])

    def squares(self) -> tuple[Tensor, Tensor]:
        """The squared norm of each, and a bound of its error."""
        return _squares(self.slopes @ self.slopes.mT, self._same(self.ids))

    def norms(self, records: Tensor) -> Tensor:
        """Upper bounds of the norms of some records, in float64."""
        slopes = _float64(self.slopes, records)
        return _bounded(slopes @ slopes.mT, self._same(self.ids[records].cpu()))

    @staticmethod
    def _same(ids: Tensor) -> Tensor:
        return ids[:, :, None] == ids[:, None, :]

    def weighted(self, weights: Tensor) -> Tensor:
        """Their weighted sum."""
        table = self.slopes.new_zeros(self.words, self.slopes.shape[2])
        scaled = self.slopes * weights[:, None, None]
        return table.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1))

    def of(self, records: Tensor) -> LookupGradients:
        """The same gradients, with zeros for all other records."""
        return LookupGradients(self.ids, _only(self.slopes, records), self.words)


def _squares(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The squared norms of products, from the inner products of their places, and their errors."""
    squares = (left * right).sum((1, 2)).clamp(min=0)
    return squares, ROUNDING * _terms(left, right).square()


def _bounded(left: Tensor, right: Tensor) -> Tensor:
    """Upper bounds of the norms of products as float32 computes them, from float64."""
    squares = (left * right).sum((1, 2)).clamp(min=0)
    return squares.sqrt() + ROUNDING * _terms(left, right)


def _terms(left: Tensor, right: Tensor) -> Tensor:
    """The sum of the norms of each place's product; squares that were lost count as `FLUSHED`."""
    lost = FLUSHED / ROUNDING * WIDEST
    a, b = (gram.diagonal(dim1=1, dim2=2) + lost for gram in (left, right))
    return (a.sqrt() * b.sqrt()).sum(1)


def _only(values: Tensor, records: Tensor) -> Tensor:
    """Set the values of other records to zero, also infinite ones."""
    return torch.where(records.view(-1, *(1 for _ in values.shape[1:])), values, 0)


def _float64(values: Tensor, records: Tensor) -> Tensor:
    return values[records].cpu().double()  # some accelerators have no float64


class GradientBook:
    """Records the inputs and outputs of each trained layer, for per-record gradients."""

    def __init__(self, model: nn.Module, *, ghost: bool) -> None:
        from opacus.grad_sample.functorch import prepare_layer

        self.ghost, self.uses = ghost, list[tuple[nn.Module, list[Tensor], Any]]()
        self.windows = 1  # rows of each record in every layer
        self._samplers = _samplers()
        self._hooks = []
        for layer in dict.fromkeys(_owners(model)):  # two models may be made of the same layers
            if type(layer) not in self._samplers:
                prepare_layer(layer)  # for functorch; `tidy` undoes it
            self._hooks.append(layer.register_forward_hook(self._note))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self.uses.clear()

    def backward(self, losses: Tensor, params: list[nn.Parameter]) -> Gradients:
        """Compute the gradients of the records' losses in all parameters."""
        uses, self.uses = self.uses, []
        outputs = [output for *_, output in uses]
        slopes = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        gradients: Gradients = {}
        for (layer, inputs, _), slope in zip(uses, slopes, strict=True):
            if slope is not None:
                for parameter, part in self._of_layer(layer, inputs, slope, len(losses)):
                    gradients[parameter] = _sum(gradients.get(parameter), part)
        for parameter in params:
            if parameter not in gradients:
                require_rows(None, len(losses), "a layer's gradient")
        return gradients

    def _note(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled() and getattr(output, "requires_grad", False):
            self.uses.append((layer, [value.detach() for value in inputs], output))

    def _of_layer(
        self, layer: nn.Module, inputs: list[Tensor], slope: Tensor, records: int
    ) -> Iterator[tuple[nn.Parameter, RecordGradients]]:
        require_rows(slope, records * self.windows, "a layer's gradient")
        require_rows(inputs[0] if inputs else None, len(slope), "a layer's gradient")
        if self.windows > 1:
            require_sampler(layer, self._samplers)
            slope, inputs = _places(slope, records), [_places(x, records) for x in inputs]
        compact = _compact(layer, inputs[0], slope, ghost=self.ghost)
        if compact is None:
            yield from self._sampled(layer, inputs, slope)
            return
        params = {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        if "weight" in params:
            yield params["weight"], compact
        if "bias" in params:
            sums = slope.reshape(records, -1, slope.shape[-1]).sum(1)
            yield params["bias"], DenseGradients(sums)

    def _sampled(
        self, layer: nn.Module, inputs: list[Tensor], slope: Tensor
    ) -> Iterator[tuple[nn.Parameter, RecordGradients]]:
        """Sample gradients by Opacus' table, or by functorch for layers outside it."""
        from opacus.grad_sample.functorch import ft_compute_per_sample_gradient

        sampler = self._samplers.get(type(layer), ft_compute_per_sample_gradient)
        with torch.no_grad():
            for parameter, rows in sampler(layer, inputs, slope).items():
                require_rows(rows, len(slope), "a layer's gradient")
                yield parameter, DenseGradients(rows.detach())


def clip_and_sum(gradients: Gradients, bound: float) -> int:
    """Set each parameter's gradient to the sum over records, each clipped over all parameters.

    A record whose gradient is infinite or not a number counts as zero, because all hospitals
    would see an error that depends on one record. Return how many there are.
    """
    squares, errors = zip(*(part.squares() for part in gradients.values()), strict=True)
    total, error = torch.stack(squares).sum(0), torch.stack(errors).sum(0)
    norms = total.sqrt()
    unsure = torch.nonzero(~(error <= TRUSTED * (total + EPSILON**2))).flatten()
    if len(unsure):
        bounds = torch.stack([part.norms(unsure) for part in gradients.values()])
        norms[unsure] = bounds.norm(dim=0).to(norms)
    finite = torch.isfinite(norms)
    if lost := len(finite) - int(finite.sum()):
        gradients = {parameter: part.of(finite) for parameter, part in gradients.items()}
        norms = _only(norms, finite)
    weights = (bound / (norms + EPSILON)).clamp(max=1.0)
    for parameter, part in gradients.items():
        parameter.grad = part.weighted(weights).to(parameter.dtype)
    return lost


def add_norm_samplers(model: nn.Module, samplers: dict[type[nn.Module], Sampler]) -> None:
    """Add samplers to Opacus' table: for `LayerNorm`, and for each other norm of the model."""
    samplers[nn.LayerNorm] = layer_norm
    for module in model.modules():
        if type(module) not in samplers and is_norm(module):
            samplers[type(module)] = scaling


def layer_norm(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Samples:
    """Sample the gradients of a layer normalisation with or without a bias."""
    assert isinstance(layer, nn.LayerNorm)  # noqa: S101 - for the type checker
    normal = F.layer_norm(activations[0], layer.normalized_shape, eps=layer.eps)
    slopes = {"weight": normal * backprops, "bias": backprops}
    products = {vector: slopes[name] for name, vector in layer.named_parameters()}
    return _per_record(products, len(layer.normalized_shape))


def scaling(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> Samples:
    """Sample the gradients of any norm that scales channels: the outputs at 1 minus those at 0.

    This is exact where the output is affine in the vector, w·x̂ or (1 + w)·x̂ as in RMSNorm.
    `gradient_check` finds the other norms before the first step.
    """
    products = {}
    with torch.no_grad():
        for name, vector in layer.named_parameters():
            one, none = (
                functional_call(layer, {name: torch.full_like(vector, value)}, activations[0])
                for value in (1.0, 0.0)
            )
            products[vector] = (one - none) * backprops
    return _per_record(products, 1)


def _per_record(products: dict[nn.Parameter, Tensor], dims: int) -> Samples:
    """Sum over all dimensions but the first and the last `dims`, which are the parameter's."""
    return {
        parameter: value.flatten(1, -dims - 1).sum(1) if value.dim() > dims + 1 else value
        for parameter, value in products.items()
        if parameter.requires_grad
    }


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that hold trained weights; functorch handles a module with its children."""
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        yield module
        if type(module) not in _samplers():
            return
    for child in module.children():
        yield from _owners(child)


def _samplers() -> dict[type[nn.Module], Any]:
    from opacus import GradSampleModule

    samplers: dict[type[nn.Module], Any] = GradSampleModule.GRAD_SAMPLERS
    return samplers


def _compact(
    layer: nn.Module, read: Tensor, slope: Tensor, *, ghost: bool
) -> RecordGradients | None:
    """The gradient of a layer's weight as factors; None: dense gradients are needed, or smaller.

    Those of an embedding table are never dense. Opacus computes a gradient in the padding's row,
    which autograd does not.
    """
    slope = slope.reshape(len(slope), -1, slope.shape[-1])
    if type(layer) is nn.Embedding:
        ids = read.reshape(len(slope), -1)
        if layer.padding_idx is not None:
            slope = slope * (ids != layer.padding_idx)[..., None]
        return LookupGradients(ids, slope, layer.num_embeddings)
    transposed = type(layer).__name__ == "Conv1D"  # GPT-2's linear layer
    if not ghost or not (transposed or type(layer) is nn.Linear):
        return None
    read = read.reshape(len(read), -1, read.shape[-1]).to(slope.dtype)
    if 2 * slope.shape[1] ** 2 > read.shape[2] * slope.shape[2]:
        return None
    return ProductGradients(read, slope) if transposed else ProductGradients(slope, read)


def require_rows(values: Any, rows: int, what: str) -> None:
    """Refuse gradients or losses that are not one per record."""
    if not isinstance(values, Tensor) or values.shape[:1] != (rows,):
        raise ModelError(
            f"{what} does not come one per record, so no record can be bounded",
            fix="use a task of texts or sentences, and a BERT-like encoder all of whose trained "
            "weights take part in every batch",
        )


def require_sampler(layer: nn.Module, samplers: Mapping[type[nn.Module], Any]) -> None:
    """Refuse a layer that may mix the tokens of a row: windows of a record are one row here."""
    if type(layer) not in samplers:
        raise ModelError(
            "a layer's gradient cannot be computed over the windows of a record",
            model=type(layer).__name__,
            fix="remove task.windows",
        )


def _places(value: Tensor, records: int) -> Tensor:
    """Put the places of a record's windows into one row."""
    rows = value.reshape(records, -1, *value.shape[1:])
    return rows.flatten(1, 2) if rows.dim() > 3 or not value.is_floating_point() else rows


def _sum(first: RecordGradients | None, second: RecordGradients) -> RecordGradients:
    """The gradients of a parameter that is used twice: norms of sums need dense sums."""
    return second if first is None else DenseGradients(first.each() + second.each())
