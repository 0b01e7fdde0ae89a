"""A model under Opacus' optimiser for a while: gradients per record, clipped sums, noise.

What Opacus does not do by itself: one backward pass for norms and sums (`bookkeeping`), steps of
empty batches, gradients merged per patient, noise and sampling from secret coins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from secure_fl.errors import ModelError
from secure_fl.learning.dp.bookkeeping import Book, Part, Rows, leave_clipped
from secure_fl.learning.dp.layers import ids_per_record, require_rows, require_supported, tidy
from secure_fl.learning.dp.randomness import CHUNK, Coins, PoissonBatches
from secure_fl.learning.dp.samplers import complete
from secure_fl.learning.tasks.base import Batch

Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]  # one value per record, from it alone
Clipping: TypeAlias = Literal["per_sample", "ghost", "one_by_one"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds and hides one unit."""

    max_grad_norm: float  # C
    noise_multiplier: float = 0.0  # σ; the noise on a clipped sum has std σC
    accountant: Literal["rdp", "prv"] = "rdp"
    clipping: Clipping = "ghost"


@dataclass(slots=True)
class PrivateModel:
    """A model with its DP optimiser."""

    module: nn.Module
    optimizer: Any  # DPOptimizerFastGradientClipping: it takes clipped sums
    book: Book | None  # None: autograd is asked for one record after the other
    loss: Loss
    batches: PoissonBatches
    accountant: Any
    coins: Coins

    def step(self, batch: Batch | None, owners: Tensor | None, *, last: bool = True) -> Tensor:
        """Add a batch (None: an empty one) to the clipped sum; the last part makes the step."""
        self.optimizer.signal_skip_step(do_skip=not last)
        losses = self.nothing() if batch is None else self.backward(batch, owners)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses

    def backward(self, batch: Batch, owners: Tensor | None = None) -> Tensor:
        """Leave the clipped sum of all records (merged per owner) as gradients; return losses."""
        rows = len(next(iter(batch.values())))
        losses, parts = self.by_layers(batch, rows) if self.book else self.one_by_one(batch, rows)
        if owners is not None:
            parts = {p: Rows(_mean_per_owner(part.each(), owners)) for p, part in parts.items()}
        leave_clipped(parts, self.optimizer.max_grad_norm)
        return losses.detach()

    def by_layers(self, batch: Batch, rows: int) -> tuple[Tensor, dict[nn.Parameter, Part]]:
        """The losses, and what each layer's weights get of each record."""
        assert self.book is not None  # noqa: S101 - for the type checker
        self.book.uses.clear()
        losses = self.loss(self.module, batch)
        require_rows(losses, rows, "the loss")
        return losses, self.book.backward(losses, self.optimizer.params)

    def one_by_one(self, batch: Batch, rows: int) -> tuple[Tensor, dict[nn.Parameter, Part]]:
        """The same, of each record by itself."""
        found = [row_gradients(self.module, self.loss, batch, row) for row in range(rows)]
        each = zip(*(gradients for _, gradients in found), strict=True)
        parts = zip(trained(self.module), map(Rows, map(torch.stack, each)), strict=True)
        return torch.cat([loss for loss, _ in found]), dict(parts)

    def nothing(self) -> Tensor:
        """Stand in for the gradients of an empty batch: it is a step of noise alone, and counts."""
        for p in self.optimizer.params:
            p.grad = torch.zeros_like(p)
        none: Tensor = self.optimizer.params[0].new_zeros(0).detach()
        return none

    def summed(self) -> Tensor:
        """Return the clipped sum that lies ready, as one vector."""
        return torch.cat([p.grad.detach().flatten() for p in self.optimizer.params])


def row_gradients(
    model: nn.Module, loss: Loss, batch: Batch, row: int
) -> tuple[Tensor, list[Tensor]]:
    """The loss of one record of a batch, and its gradients in all that is trained, by autograd."""
    found = loss(model, {name: tensor[row : row + 1] for name, tensor in batch.items()})
    require_rows(found, 1, "the loss")
    slopes = torch.autograd.grad(
        found.sum(), trained(model), allow_unused=True, materialize_grads=True
    )
    return found.detach(), list(slopes)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The weights that are trained, in the model's order: an optimiser may group them otherwise."""
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
    """Wrap a model inside; outside it is as it was, names and all. `state` is an accountant's."""
    from opacus import GradSampleModule
    from opacus.accountants import create_accountant
    from opacus.optimizers import DPOptimizerFastGradientClipping

    require_supported(model)
    complete(model, GradSampleModule.GRAD_SAMPLERS)
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


def _opened(model: nn.Module, *, ghost: bool) -> Book:
    try:
        return Book(model, ghost=ghost)
    except NotImplementedError as error:
        raise ModelError(
            "the model has a layer whose gradients cannot be had per record",
            model=type(model).__name__,
            fix="use one of the families that docs/models.md lists under DP-SGD",
        ) from error


def _accumulate(optimizer: Any) -> None:
    """Take the place of Opacus' `accumulate`, which copies every gradient."""
    for p in optimizer.params:
        p.summed_grad = p.grad if p.summed_grad is None else p.summed_grad + p.grad


def _add_noise(optimizer: Any, coins: Coins) -> None:
    """Take the place of Opacus' `add_noise`: the same noise, from secret coins, in float64."""
    std = optimizer.noise_multiplier * optimizer.max_grad_norm
    if std == 0:  # an audit looks at the sum itself: nothing is drawn to be multiplied by 0
        for p in optimizer.params:
            p.grad = p.summed_grad.view_as(p)
        return
    for some in _together(optimizer.params):
        sums = torch.cat([p.summed_grad.flatten() for p in some])
        noised = torch.split(coins.add_normal(sums, std), [p.numel() for p in some])
        for p, gradient in zip(some, noised, strict=True):
            p.grad = gradient.view_as(p)


def _together(params: Iterable[Any]) -> Iterator[list[Any]]:
    """Parameters whose noise is drawn at once: many small draws take longer than one large."""
    some: list[Any] = []
    for p in params:
        if some and (
            sum(q.numel() for q in some) + p.numel() > CHUNK
            or (p.dtype, p.device) != (some[0].dtype, some[0].device)
        ):
            yield some
            some = []
        some.append(p)
    if some:
        yield some


def _mean_per_owner(rows: Tensor, owners: Tensor) -> Tensor:
    """Average the gradients of each owner's records: then C bounds a whole patient."""
    sizes = torch.bincount(owners).to(rows.dtype)
    total = rows.new_zeros(len(sizes), *rows.shape[1:]).index_add_(0, owners, rows)
    return total / sizes.view(-1, *(1 for _ in rows.shape[1:]))
