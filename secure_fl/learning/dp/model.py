"""A model under Opacus' PrivacyEngine for a while: gradients per record, clipped sums, noise.

What Opacus does not do by itself: steps of empty batches, gradients merged per patient, noise and
sampling from secret coins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import unwrapped
from secure_fl.learning.dp.layers import ids_per_record, require_rows, require_supported, tidy
from secure_fl.learning.dp.randomness import Coins, PoissonBatches
from secure_fl.learning.dp.samplers import complete
from secure_fl.learning.tasks.base import Batch

Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]  # one value per record, from it alone
Clipping: TypeAlias = Literal["per_sample", "ghost", "one_by_one"]
MODES = {"per_sample": "hooks", "ghost": "ghost", "one_by_one": "no_op"}  # Opacus' names


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds and hides one unit."""

    max_grad_norm: float  # C
    noise_multiplier: float = 0.0  # σ; the noise on a clipped sum has std σC
    accountant: Literal["rdp", "prv"] = "rdp"
    clipping: Clipping = "per_sample"


@dataclass(slots=True)
class PrivateModel:
    """A wrapped model with its DP optimiser."""

    module: Any  # GradSampleModule
    optimizer: Any  # DPOptimizer
    criterion: Any  # ghost clipping's two backward passes; None: gradients per record
    hooks: bool  # whether layers give gradients per record; else autograd does, one by one
    loss: Loss
    batches: Any  # a pass: lists of units
    accountant: Any
    coins: Coins

    def step(self, batch: Batch | None, owners: Tensor | None, *, last: bool = True) -> Tensor:
        """Add a batch (None: an empty one) to the clipped sum; the last part makes the step."""
        self.optimizer.signal_skip_step(do_skip=not last)
        losses = self.nothing() if batch is None else self.backward(batch, owners)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for p in self.optimizer.params:
            p.__dict__.pop("_norm_sample", None)  # a layer that is left out must not keep its last
        return losses

    def backward(self, batch: Batch, owners: Tensor | None = None) -> Tensor:
        """Leave gradients per record (merged per owner), or their clipped sum; return losses."""
        rows = len(next(iter(batch.values())))
        if self.criterion is not None:
            losses = self.criterion(self.module, batch)
            require_rows(losses.loss_per_sample, rows, "the loss")
            try:
                _backward(losses)
            except (AttributeError, NotImplementedError):  # weights without a norm, or tied ones
                require_rows(None, rows, "a layer's gradient")
            found: Tensor = losses.loss_per_sample.detach()
            return found
        losses = self.by_hooks(batch, rows) if self.hooks else self.one_by_one(batch, rows)
        if owners is not None:
            for parameter in self.optimizer.params:
                parameter.grad_sample = _mean_per_owner(parameter.grad_sample, owners)
        return losses.detach()

    def by_hooks(self, batch: Batch, rows: int) -> Tensor:
        """Leave what Opacus' hooks find in each layer; return the losses."""
        losses = self.loss(self.module, batch)
        require_rows(losses, rows, "the loss")
        _backward(losses.mean())
        for parameter in self.optimizer.params:
            require_rows(parameter.grad_sample, rows, "a layer's gradient")
        return losses

    def one_by_one(self, batch: Batch, rows: int) -> Tensor:
        """Leave the gradients of each record by itself; return the losses."""
        losses, parameters = [], self.optimizer.params
        for parameter in parameters:
            parameter.grad_sample = parameter.new_empty(rows, *parameter.shape)
        for row in range(rows):
            loss, gradients = row_gradients(unwrapped(self.module), self.loss, batch, row)
            losses.append(loss)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad_sample[row] = gradient
        return torch.cat(losses)

    def nothing(self) -> Tensor:
        """Stand in for the gradients of an empty batch: it is a step of noise alone, and counts."""
        for p in self.optimizer.params:
            if self.criterion is None:
                p.grad_sample = p.new_zeros(0, *p.shape)
            else:
                p.grad = torch.zeros_like(p)
        none: Tensor = self.optimizer.params[0].new_zeros(0).detach()
        return none

    def summed(self) -> Tensor:
        """Return the clipped sum that lies ready, as one vector."""
        if self.criterion is None:
            self.optimizer.clip_and_accumulate()
            parts = [p.summed_grad for p in self.optimizer.params]
        else:
            parts = [p.grad for p in self.optimizer.params]
        return torch.cat([part.detach().flatten() for part in parts])


def row_gradients(
    model: nn.Module, loss: Loss, batch: Batch, row: int
) -> tuple[Tensor, list[Tensor]]:
    """The loss of one record of a batch, and its gradients in all that is trained, by autograd."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = loss(model, {name: tensor[row : row + 1] for name, tensor in batch.items()})
    require_rows(found, 1, "the loss")
    slopes = torch.autograd.grad(found.sum(), parameters, allow_unused=True, materialize_grads=True)
    return found.detach(), list(slopes)


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
    from opacus import GradSampleModule, PrivacyEngine

    require_supported(model)
    complete(model, GradSampleModule.GRAD_SAMPLERS)
    hook = ids_per_record(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off")  # ours is: see `Coins`
        engine = PrivacyEngine(accountant=bounds.accountant)
    if state is not None:
        engine.accountant.load_state_dict({**state, "history": list(state["history"])})
    loader: Any = DataLoader(range(batches.units), batch_sampler=batches, collate_fn=list)  # type: ignore[arg-type]
    wrapped = None
    try:
        wrapped, private, *criterion, loader = _made(
            engine,
            module=model,
            optimizer=optimizer,
            criterion=_PerRecord(loss),
            data_loader=loader,
            noise_multiplier=bounds.noise_multiplier,
            max_grad_norm=bounds.max_grad_norm,
            poisson_sampling=False,  # the loader's own sampler does it, with secret coins
            grad_sample_mode=MODES[bounds.clipping],
        )
        wrapped.forbid_grad_accumulation()
        private.expected_batch_size = batches.units / batches.steps  # Opacus rounds it down
        private.add_noise = partial(_add_noise, private, batches.coins)
        both = criterion[0] if criterion else None  # ghost clipping's two passes
        hooks = bounds.clipping != "one_by_one"
        account = engine.accountant
        yield PrivateModel(wrapped, private, both, hooks, loss, loader, account, batches.coins)
    finally:
        hook()
        if wrapped is not None:
            wrapped.to_standard_module()
        tidy(model)


def _made(engine: Any, **parts: Any) -> tuple[Any, ...]:
    from opacus.validators.errors import UnsupportedModuleError

    try:
        made: tuple[Any, ...] = engine.make_private(**parts)
    except (UnsupportedModuleError, NotImplementedError) as error:
        raise ModelError(
            "the model has a layer whose gradients cannot be had per record",
            model=type(parts["module"]).__name__,
            fix="use one of the families that docs/models.md lists under DP-SGD",
        ) from error
    return made


class _PerRecord:
    """A loss as ghost clipping wants it: Opacus sets `reduction` to "none" around its call."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.reduction = loss, "mean"

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        found = self.loss(module, batch)
        return found if self.reduction == "none" else found.mean()


def _backward(loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # at inputs like ids
        loss.backward()


def _add_noise(optimizer: Any, coins: Coins) -> None:
    """Take the place of Opacus' `add_noise`: the same noise, from secret coins, in float64."""
    std = optimizer.noise_multiplier * optimizer.max_grad_norm
    for p in optimizer.params:
        p.grad = coins.add_normal(p.summed_grad, std).view_as(p)


def _mean_per_owner(rows: Tensor, owners: Tensor) -> Tensor:
    """Average the gradients of each owner's records: then C bounds a whole patient."""
    sizes = torch.bincount(owners).to(rows.dtype)
    total = rows.new_zeros(len(sizes), *rows.shape[1:]).index_add_(0, owners, rows)
    return total / sizes.view(-1, *(1 for _ in rows.shape[1:]))
