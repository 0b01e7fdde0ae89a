"""What DP-SGD sums before it adds noise, and how far one record moves it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.optim import SGD

from secure_fl.learning.dp.private_model import Bounds, Loss, no_dropout, privately
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches
from secure_fl.learning.tasks import Batch, Task


def losses_of(task: Task) -> Loss:
    """A task's loss of each record."""
    return lambda model, batch: task.loss(task.forward(model, batch), batch, reduction="none")


def clipped_sum(model: nn.Module, loss: Loss, batch: Batch, bounds: Bounds) -> Tensor:
    """Sum the clipped gradients of a batch, as training does before it adds noise: one vector.

    Dropout is off: records that are in both of two batches need equal masks in both.
    """
    silent = replace(bounds, noise_multiplier=0.0)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    batches = PoissonBatches(len(next(iter(batch.values()))), 1, Coins.secret())
    with no_dropout(model), privately(model, optimizer, loss, silent, batches) as private:
        private.backward(batch)
        return private.summed()


def neighbour_ratio(
    model: nn.Module, loss: Loss, batch: Batch, bounds: Bounds, without: int = -1
) -> float:
    """How far one record moves the clipped sum, in units of the bound C: at most 1 if it is DP.

    Above 1, the loss (or the model) lets records of a batch touch each other, as a weight taken
    from the whole batch does, and ε of any accountant means nothing.
    """
    rows = len(next(iter(batch.values())))
    kept = [row for row in range(rows) if row != without % rows]
    smaller = {name: tensor[kept] for name, tensor in batch.items()}
    moved = clipped_sum(model, loss, batch, bounds) - clipped_sum(model, loss, smaller, bounds)
    return float(moved.double().norm()) / bounds.max_grad_norm
