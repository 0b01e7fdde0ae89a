"""The local loop: a party trains a model on its own records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from secure_fl.errors import ModelError, SettingsError, TrainingError
from secure_fl.events import TrainingProgress
from secure_fl.learning.schedule import ALONE, pace
from secure_fl.learning.tasks import Batch
from secure_fl.learning.usual import rate_of
from secure_fl.party.rounds import Round
from secure_fl.settings import TrainingSettings

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

Objective: TypeAlias = Callable[[nn.Module, Batch], Tensor]  # one loss per record of a batch
Optimizer: TypeAlias = torch.optim.Optimizer

REPORTS_PER_ROUND = 4


@runtime_checkable
class InParts(Protocol):
    """A model whose parts learn apart: each at its own rate, its gradient clipped by itself."""

    def parts(self) -> Sequence[tuple[Iterable[Tensor], float]]:
        """The weights of each part, and their learning rate; no weight is in two."""


def pick_device(name: str) -> torch.device:
    """The device of this setting; "auto" takes an accelerator where there is one."""
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
    """The optimiser of the settings over the parameters that are trained.

    A model whose parts learn apart says so by `parts()`: (weights, learning rate) of each. `alone`:
    nobody averages it.
    """
    parts = (
        model.parts()
        if isinstance(model, InParts)
        else [(model.parameters(), rate_of(model, settings, alone=alone))]
    )
    groups = [
        {
            "params": [weight for weight in weights if weight.requires_grad],
            "lr": rate,
            "initial_lr": rate,  # what `pace` multiplies
        }
        for weights, rate in parts
    ]
    return optimizer_of(groups, settings)


def optimizer_of(groups: list[dict[str, Any]], settings: TrainingSettings) -> Optimizer:
    """The optimiser of the settings over these groups of parameters."""
    make = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.AdamW
    # One kernel over all of a tensor: a quarter of the time of AdamW's steps apart.
    return make(groups, weight_decay=settings.weight_decay, fused=True)


def task_loss(site: Site) -> Objective:
    """The loss of the site's task against the labels."""
    task = site.task
    return lambda model, batch: task.loss(task.forward(model, batch), batch, reduction="none")


def fit(
    site: Site,
    model: nn.Module,
    epochs: int,
    round: Round = ALONE,
    objective: Objective | None = None,
    steps: int | None = None,
    optimizer: Optimizer | None = None,
) -> float:
    """Train for whole passes over the site's records, or for so many steps; return the mean loss.

    `round`: where the run is, which sets the rates. `objective`: what is minimised, in place of the
    task's own loss. `optimizer`: one that outlives the round; else a fresh one is made.
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
    optimizer.zero_grad(set_to_none=True)  # of a large model every copy counts
    return sound(float(total) / planned, planned)


def extent(site: Site, epochs: int, steps: int | None = None) -> tuple[int, int]:
    """How many steps whole passes take, or these steps, and how many batches."""
    size = site.training.accumulate
    batches = epochs * -(-len(site.train) // site.training.batch_size)
    return (steps, steps * size) if steps else (-(-batches // size), batches)


def reports(done: int, planned: int) -> bool:
    """Whether a step is one after which the mean loss so far is told."""
    return done % max(1, planned // REPORTS_PER_ROUND) == 0


def report(site: Site, loss: float, done: int, planned: int) -> None:
    """Tell the mean loss of the steps so far."""
    number, loss = site.recorder.round, sound(loss, done)
    site.recorder.event(TrainingProgress(round=number, step=done, steps=planned, loss=loss))


def endless(site: Site, batch_size: int | None = None) -> Iterator[Batch]:
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
    site: Site,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    objective: Objective,
) -> Tensor:
    """One optimiser step; returns the loss without waiting for the device."""
    optimizer.zero_grad(set_to_none=True)
    loss = backward(site, model, optimizer, batches, objective)
    clip(site, optimizer)
    optimizer.step()
    return loss


def backward(
    site: Site,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    objective: Objective,
) -> Tensor:
    """Leave the gradients of the mean loss over all records for the optimiser; return that loss."""
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


def public_step(site: Site, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    """One step on a loss without any private record in it: DP-SGD has nothing to bound here."""
    optimizer.zero_grad(set_to_none=True)
    with autocast(site):
        value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    clip(site, optimizer)
    optimizer.step()


def autocast(site: Site) -> torch.autocast:
    """The site's precision, inside."""
    return torch.autocast(site.device.type, dtype=torch.bfloat16, enabled=site.halves)


def knows_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 saves time: a processor without instructions for it is ten times slower."""
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def clip(site: Site, optimizer: Optimizer) -> None:
    """Bound the gradient's norm, of each part that learns apart by itself."""
    if site.training.max_grad_norm is not None:
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], site.training.max_grad_norm)


def sound(loss: float, step: int) -> float:
    """A loss, if it is a number."""
    if not torch.isfinite(torch.tensor(loss)):
        raise TrainingError(
            f"the training loss is {loss}",
            fix="lower training.learning_rate, set max_grad_norm, or look at the data",
            step=step,
        )
    return loss
