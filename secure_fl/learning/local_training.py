"""Local training: a party trains a model on its own records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from secure_fl.errors import ModelError, SettingsError, TrainingError
from secure_fl.events import TrainingProgress
from secure_fl.learning.learning_rates import ALONE, learning_rate_of, pace
from secure_fl.learning.site_context import TrainingContext
from secure_fl.learning.tasks import Batch
from secure_fl.party.rounds import Round
from secure_fl.settings import TrainingSettings

Objective: TypeAlias = Callable[[nn.Module, Batch], Tensor]  # one loss per record of a batch
Optimizer: TypeAlias = torch.optim.Optimizer

REPORTS_PER_ROUND = 4


@runtime_checkable
class InParts(Protocol):
    """A model whose parts have separate learning rates and separately clipped gradients."""

    def parts(self) -> Sequence[tuple[Iterable[Tensor], float]]:
        """The weights of each part and their learning rate; no weight is in two parts."""


def pick_device(name: str) -> torch.device:
    """The device of this setting; "auto" prefers an accelerator."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("no CUDA device here", fix='set training.device = "auto" or "cpu"')
    if name == "mps" and not torch.backends.mps.is_available():
        raise ModelError("no Apple GPU here", fix='set training.device = "auto" or "cpu"')
    return torch.device(name)


def make_optimizer(
    model: nn.Module, settings: TrainingSettings, *, alone: bool = False
) -> Optimizer:
    """The optimizer of the settings over all trained parameters.

    `alone`: the model is never averaged with others, which halves the default learning rate.
    """
    parts = (
        model.parts()
        if isinstance(model, InParts)
        else [(model.parameters(), learning_rate_of(model, settings, alone=alone))]
    )
    groups = [
        {
            "params": [weight for weight in weights if weight.requires_grad],
            "lr": rate,
            "initial_lr": rate,  # multiplied by `pace`
        }
        for weights, rate in parts
    ]
    return optimizer_of(groups, settings)


def optimizer_of(groups: list[dict[str, Any]], settings: TrainingSettings) -> Optimizer:
    """The optimizer of the settings over these groups of parameters."""
    make = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.AdamW
    # One kernel for a tensor's update: a quarter of the time of AdamW's separate steps.
    return make(groups, weight_decay=settings.weight_decay, fused=True)


def task_loss(site: TrainingContext) -> Objective:
    """The loss of the site's task against the labels."""
    task = site.task
    return lambda model, batch: task.loss(task.forward(model, batch), batch, reduction="none")


def fit(
    site: TrainingContext,
    model: nn.Module,
    epochs: int,
    round: Round = ALONE,
    objective: Objective | None = None,
    steps: int | None = None,
    optimizer: Optimizer | None = None,
) -> float:
    """Train for `epochs` passes over the site's records, or for `steps`; return the mean loss.

    `round`: the position in the run, which sets the learning rates. `objective`: replaces the
    task's loss. `optimizer`: one that outlives the round; default: a fresh one.
    """
    settings, objective = site.training, objective or task_loss(site)
    optimizer = optimizer or make_optimizer(model, settings)
    planned, batches = extent(site, epochs, steps)
    stream = islice(endless(site), batches)
    total = torch.zeros((), device=site.device)
    model.train()
    for done, lot in enumerate(lots(stream, settings.accumulate), 1):
        pace(optimizer, settings, round.at(done - 1, planned))
        total += step(site, model, optimizer, lot, objective)
        if reports(done, planned):
            report(site, float(total) / done, done, planned)
    optimizer.zero_grad(set_to_none=True)  # gradients of a large model take as much memory again
    return require_finite(float(total) / planned, planned)


def extent(site: TrainingContext, epochs: int, steps: int | None = None) -> tuple[int, int]:
    """The numbers of optimizer steps and of batches."""
    size = site.training.accumulate
    batches = epochs * -(-len(site.train) // site.training.batch_size)
    return (steps, steps * size) if steps else (-(-batches // size), batches)


def reports(done: int, planned: int) -> bool:
    """Check whether the mean loss is reported after this step."""
    return done % max(1, planned // REPORTS_PER_ROUND) == 0


def report(site: TrainingContext, loss: float, done: int, planned: int) -> None:
    """Record the mean loss of the steps so far."""
    number, loss = site.recorder.round, require_finite(loss, done)
    site.recorder.event(TrainingProgress(round=number, step=done, steps=planned, loss=loss))


def endless(site: TrainingContext, batch_size: int | None = None) -> Iterator[Batch]:
    """The site's training batches, pass after pass, each in a new order."""
    size = batch_size or site.training.batch_size
    while True:
        alike = site.training.bucketing
        yield from site.train.batches(size, site.batches_rng, site.device, alike=alike)


def lots(batches: Iterable[Batch], size: int) -> Iterator[Sequence[Batch]]:
    """The batches of each step; the last may have fewer."""
    stream = iter(batches)
    while lot := list(islice(stream, size)):
        yield lot


def step(
    site: TrainingContext,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    objective: Objective,
) -> Tensor:
    """Make one optimizer step; return the loss without waiting for the device."""
    optimizer.zero_grad(set_to_none=True)
    loss = backward(site, model, optimizer, batches, objective)
    clip(site, optimizer)
    optimizer.step()
    return loss


def backward(
    site: TrainingContext,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    objective: Objective,
) -> Tensor:
    """Compute the gradients of the mean loss over all records; return that loss."""
    if site.training.dp is not None:
        raise SettingsError(
            "this algorithm makes steps of its own, which DP-SGD does not protect",
            fix="remove training.dp, or use an algorithm that trains by site.fit",
            field="training.dp",
        )
    total, records = torch.zeros((), device=site.device), 0
    for batch in batches:
        with autocast(site):
            losses = objective(model, batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        total, records = total + losses.detach().sum(), records + len(losses)
    every = (p.grad for group in optimizer.param_groups for p in group["params"])
    torch._foreach_div_([grad for grad in every if grad is not None], records)
    return total / records


def public_step(site: TrainingContext, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    """Make one step on a loss without private records; DP-SGD has nothing to bound here."""
    optimizer.zero_grad(set_to_none=True)
    with autocast(site):
        value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    clip(site, optimizer)
    optimizer.step()


def autocast(site: TrainingContext) -> torch.autocast:
    """Use the site's precision inside."""
    return torch.autocast(site.device.type, dtype=torch.bfloat16, enabled=site.bfloat16)


def supports_bfloat16(device: torch.device) -> bool:
    """Check that bfloat16 saves time: without its instructions a CPU is ten times slower."""
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def clip(site: TrainingContext, optimizer: Optimizer) -> None:
    """Bound the norm of the gradient, for each group of parameters separately."""
    if site.training.max_grad_norm is not None:
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], site.training.max_grad_norm)


def require_finite(loss: float, step: int) -> float:
    """Return the loss, or refuse it where it is infinite or not a number."""
    if not torch.isfinite(torch.tensor(loss)):
        raise TrainingError(
            f"the training loss is {loss}",
            fix="lower training.learning_rate, set max_grad_norm, or look at the data",
            step=step,
        )
    return loss
