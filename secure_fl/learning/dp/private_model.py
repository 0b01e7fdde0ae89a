"""A model under Opacus' optimizer for a while: per-record gradients, clipped sums, noise.

Added to Opacus: one backward pass for norms and sums (`per_record_gradients`), steps of empty
batches, gradients merged per patient, noise and sampling from secret coins. Opacus 1.6 also needs
support for transformers 5, and refusals of layers that no bound covers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import embeddings
from secure_fl.learning.dp.per_record_gradients import (
    DenseGradients,
    GradientBook,
    Gradients,
    add_norm_samplers,
    clip_and_sum,
    require_rows,
)
from secure_fl.learning.dp.secret_randomness import CHUNK, Coins, PoissonBatches
from secure_fl.learning.tasks.batches import Batch, all_present

Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]  # one value per record, from it alone
Clipping: TypeAlias = Literal["per_sample", "ghost", "one_by_one"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The clipping and noise that hide one unit."""

    max_grad_norm: float  # C
    noise_multiplier: float = 0.0  # σ; the noise on a clipped sum has std σC
    accountant: Literal["rdp", "prv"] = "rdp"
    clipping: Clipping = "ghost"


@dataclass(slots=True)
class PrivateModel:
    """A model with its DP optimizer."""

    module: nn.Module
    optimizer: Any  # DPOptimizerFastGradientClipping, which accepts clipped sums
    book: GradientBook | None  # None: autograd differentiates one record after the other
    loss: Loss
    batches: PoissonBatches
    accountant: Any
    coins: Coins
    lost: int = 0  # records that counted as zero

    def step(self, batch: Batch | None, owners: Tensor | None, *, last: bool = True) -> Tensor:
        """Add a batch (None: an empty one) to the clipped sum; step after the last part."""
        self.optimizer.signal_skip_step(do_skip=not last)
        losses = self.backward_empty() if batch is None else self.backward(batch, owners)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses

    def backward(self, batch: Batch, owners: Tensor | None = None) -> Tensor:
        """Set gradients to the clipped sum of all records (merged per owner); return losses."""
        losses, parts = self.gradients(batch)
        if owners is not None:
            parts = {
                p: DenseGradients(_mean_per_owner(part.each(), owners)) for p, part in parts.items()
            }
        self.lost += clip_and_sum(parts, self.optimizer.max_grad_norm)
        return losses.detach()

    def each(self, batch: Batch) -> Tensor:
        """Compute the gradient of each record in all trained weights, in the model's order."""
        _, parts = self.gradients(batch)
        return torch.cat([parts[p].each().flatten(1) for p in trained(self.module)], dim=1)

    def gradients(self, batch: Batch) -> tuple[Tensor, Gradients]:
        """The losses of a batch, and the gradients of each record."""
        rows = len(next(iter(batch.values())))
        if self.book is None:  # one record at a time
            results = [row_gradients(self.module, self.loss, batch, row) for row in range(rows)]
            stacks = map(torch.stack, zip(*(gradients for _, gradients in results), strict=True))
            parts = zip(trained(self.module), map(DenseGradients, stacks), strict=True)
            return torch.cat([loss for loss, _ in results]), dict(parts)
        self.book.uses.clear()
        batch, self.book.windows = all_present(batch)
        losses = self.loss(self.module, batch)
        require_rows(losses, rows, "the loss")
        return losses, self.book.backward(losses, self.optimizer.params)

    def backward_empty(self) -> Tensor:
        """Set gradients to zero for an empty batch: a step of noise alone, which counts."""
        for p in self.optimizer.params:
            p.grad = torch.zeros_like(p)
        none: Tensor = self.optimizer.params[0].new_zeros(0).detach()
        return none

    def summed(self) -> Tensor:
        """The current clipped sum as one vector."""
        return torch.cat([p.grad.detach().flatten() for p in self.optimizer.params])


def row_gradients(
    model: nn.Module, loss: Loss, batch: Batch, row: int
) -> tuple[Tensor, list[Tensor]]:
    """The loss of one record of a batch, and its gradients in all trained weights, by autograd."""
    losses = loss(model, {name: tensor[row : row + 1] for name, tensor in batch.items()})
    require_rows(losses, 1, "the loss")
    slopes = torch.autograd.grad(
        losses.sum(), trained(model), allow_unused=True, materialize_grads=True
    )
    return losses.detach(), list(slopes)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights in the model's order, which may differ from the optimizer's."""
    return [weight for weight in model.parameters() if weight.requires_grad]


@contextmanager
def privately(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    bounds: Bounds,
    batches: PoissonBatches,
    *,
    state: Mapping[str, Any] | None = None,
) -> Iterator[PrivateModel]:
    """Wrap a model inside; it is unchanged outside. `state`: an accountant's, to continue from."""
    from opacus import GradSampleModule
    from opacus.accountants import create_accountant
    from opacus.optimizers import DPOptimizerFastGradientClipping

    require_supported(model)
    add_norm_samplers(model, GradSampleModule.GRAD_SAMPLERS)
    accountant = create_accountant(bounds.accountant)
    if state is not None:
        accountant.load_state_dict({**state, "history": list(state["history"])})
    private: Any = DPOptimizerFastGradientClipping(
        optimizer,
        noise_multiplier=bounds.noise_multiplier,
        max_grad_norm=bounds.max_grad_norm,
        expected_batch_size=batches.units / batches.steps,  # not rounded
    )
    private.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=1 / batches.steps))
    private.accumulate = partial(_accumulate, private)
    private.add_noise = partial(_add_noise, private, batches.coins)
    unfill, book = ids_per_record(model), None
    try:
        if bounds.clipping != "one_by_one":
            book = _opened(model, ghost=bounds.clipping == "ghost")
        yield PrivateModel(model, private, book, loss, batches, accountant, batches.coins)
    finally:
        unfill()
        if book is not None:
            book.close()
        tidy(model)


def _opened(model: nn.Module, *, ghost: bool) -> GradientBook:
    try:
        return GradientBook(model, ghost=ghost)
    except NotImplementedError as error:
        raise ModelError(
            "the model has a layer without gradients per record",
            model=type(model).__name__,
            fix="use one of the families that docs/models.md lists under DP-SGD",
        ) from error


def _accumulate(optimizer: Any) -> None:
    """Replace Opacus' `accumulate`, which copies every gradient."""
    for p in optimizer.params:
        p.summed_grad = p.grad if p.summed_grad is None else p.summed_grad + p.grad


def _add_noise(optimizer: Any, coins: Coins) -> None:
    """Replace Opacus' `add_noise`: the same noise, from secret coins, in float64."""
    std = optimizer.noise_multiplier * optimizer.max_grad_norm
    if std == 0:  # an audit inspects the sum itself
        for p in optimizer.params:
            p.grad = p.summed_grad.view_as(p)
        return
    for group in _noise_groups(optimizer.params):
        sums = torch.cat([p.summed_grad.flatten() for p in group])
        noised = torch.split(coins.add_normal(sums, std), [p.numel() for p in group])
        for p, gradient in zip(group, noised, strict=True):
            p.grad = gradient.view_as(p)


def _noise_groups(params: Iterable[Any]) -> Iterator[list[Any]]:
    """Group parameters for one draw of noise: many small draws take longer than one large."""
    group: list[Any] = []
    for p in params:
        if group and (
            sum(q.numel() for q in group) + p.numel() > CHUNK
            or (p.dtype, p.device) != (group[0].dtype, group[0].device)
        ):
            yield group
            group = []
        group.append(p)
    if group:
        yield group


def _mean_per_owner(rows: Tensor, owners: Tensor) -> Tensor:
    """Average the gradients of each owner's records, so that C bounds a patient."""
    sizes = torch.bincount(owners).to(rows.dtype)
    total = rows.new_zeros(len(sizes), *rows.shape[1:]).index_add_(0, owners, rows)
    return total / sizes.view(-1, *(1 for _ in rows.shape[1:]))


def require_supported(model: nn.Module) -> None:
    """Refuse layers that Opacus accepts although no bound covers them."""
    norms = nn.modules.batchnorm._BatchNorm
    if any(isinstance(module, norms) for module in model.modules()):
        raise ModelError(
            "batch normalisation mixes the records of a batch, even where it is frozen",
            model=type(model).__name__,
            fix="use a model with layer normalisation",
        )


def ids_per_record(model: nn.Module) -> Callable[[], None]:
    """Pass position and token type ids of every record to all embeddings; return the undo function.

    transformers makes one row of them for the whole batch, which Opacus reads as a batch of one.
    """
    tables = {id(e := embeddings(m)): e for m in model.modules() if isinstance(m, PreTrainedModel)}
    undo = [_fill_ids(module) for module in tables.values()]

    def undo_all() -> None:
        for remove in undo:
            remove()

    return undo_all


def _fill_ids(module: nn.Module) -> Callable[[], None]:
    signature = inspect.signature(module.forward)
    tables = [table for table in module.modules() if isinstance(table, nn.Embedding)]
    # RoBERTa, MPNet, Longformer: positions start after the padding's, and are per record already.
    own_positions = len([table for table in tables if table.padding_idx is not None]) > 1

    def fill(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        given = signature.bind(*args, **kwargs).arguments
        ids = given.get("input_ids")
        if ids is None:
            return args, kwargs
        if given.get("position_ids") is None and not own_positions:
            places = torch.arange(ids.shape[1], device=ids.device)
            given["position_ids"] = places.expand(ids.shape).contiguous()
        if given.get("token_type_ids") is None:
            given["token_type_ids"] = torch.zeros_like(ids)
        return (), {name: given[name] for name in given if name in signature.parameters}

    if "position_ids" not in signature.parameters:
        return lambda: None
    return module.register_forward_pre_hook(fill, with_kwargs=True).remove


def tidy(model: nn.Module) -> None:
    """Remove attributes that Opacus leaves behind, above all after an interrupted step."""
    for module in model.modules():
        module.__dict__.pop("ft_compute_sample_grad", None)
    for parameter in model.parameters():
        parameter.grad = None
        parameter.__dict__.pop("summed_grad", None)


@contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, except for modules with weights, which Opacus needs in training.

    Attention applies dropout by its own mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = module is model or any(True for _ in module.parameters(recurse=False))
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
