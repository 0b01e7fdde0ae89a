"""Composition lint: how far one record moves a step of DP-SGD before noise, in units of its bound.

Two batches differ by one record; if training is what its accountant takes it for, their clipped
sums differ by C at most (Abadi et al., CCS 2016, arXiv 1607.00133, Algorithm 1). The step is the
shipped one (`dp.model.privately`, as `dp.training` opens it) with its noise at 0, so that
weights, optimiser and clipping are those of a real run; dropout is off, for records that are in
both batches need equal masks in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secure_fl.audits.findings import AuditFinding
from secure_fl.errors import SecureFLError
from secure_fl.learning.dp.opacus_support import no_dropout
from secure_fl.learning.dp.private_model import Bounds, Loss, privately
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches
from secure_fl.learning.local_training import make_optimizer
from secure_fl.learning.tasks import Batch
from secure_fl.settings import DPSettings, TrainingSettings

NAME = "composition lint"
ABOUT = (
    "Trains on batches with and without one record and compares the steps before noise; success "
    "would mean that one record moves the model further than the privacy accounting assumes."
)
ROLE = "party"
MEASURE = "movement by one record, in units of its bound"
NOBODY = -1  # no row: the neighbour of a batch is then the batch itself
TOLERANCE = 1e-3  # of float32 sums; one record is at the bound, so 1 itself is what is expected
BOUNDS = (0.1, 1.0, 10.0)  # C: what matters is C against the size of the gradients

Move = Callable[[Batch, float], Tensor]
"""How a batch moves the weights at a bound C, before noise: one vector."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A batch, and the rows that are taken out of it, each once."""

    batch: Batch
    without: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Worst:
    """The pair of neighbours that moved the weights furthest."""

    ratio: float
    bound: float  # C
    batch: int  # which of the batches
    row: int
    pairs: int  # how many were compared


def private_step(
    model: nn.Module, loss: Loss, training: TrainingSettings, clipping: str | None = None
) -> Move:
    """The step that `fit_privately` makes of a batch, with no noise in it.

    A run without DP-SGD names no way of clipping: the one that is the default is looked at.
    """
    how = clipping or (training.dp or DPSettings(epsilon=1.0)).clipping

    def move(batch: Batch, bound: float) -> Tensor:
        rows = len(next(iter(batch.values())))
        plain = training.model_copy(update={"optimizer": "sgd", "weight_decay": 0.0})
        optimizer = make_optimizer(model, plain)
        for group in optimizer.param_groups:
            group["lr"] = float(rows)  # undoes the division by the expected size of a batch
        bounds = Bounds(bound, 0.0, clipping="ghost" if how == "ghost" else "per_sample")
        batches = PoissonBatches(rows, 1, Coins.secret())
        with _weights_kept(model) as before, no_dropout(model):
            with privately(model, optimizer, loss, bounds, batches) as private:
                private.step(batch, None)
            return _apart(before)

    return move


def without_clipping(move: Move) -> Move:
    """Planted: a step that sums gradients as they are."""
    return lambda batch, _bound: move(batch, 1e9)


def worst(move: Move, neighbours: Sequence[Neighbours], bounds: Sequence[float] = BOUNDS) -> Worst:
    """Take out one record after the other and keep the largest difference."""
    found, pairs = Worst(0.0, 0.0, 0, 0, 0), 0
    for bound in bounds:
        for index, pair in enumerate(neighbours):
            whole = move(pair.batch, bound)
            for row in pair.without:
                rest = move(without(pair.batch, row), bound)
                apart = torch.linalg.vector_norm(whole - rest, dtype=torch.float64)
                ratio = float(apart) / bound
                pairs += 1
                if not ratio <= found.ratio:  # also not a number: no bound holds for that
                    found = Worst(ratio if math.isfinite(ratio) else 1e9, bound, index, row, pairs)
    return Worst(found.ratio, found.bound, found.batch, found.row, pairs)


def without(batch: Batch, row: int) -> Batch:
    """The neighbour of a batch: all rows but one."""
    rows = len(next(iter(batch.values())))
    kept = [k for k in range(rows) if k != row]
    return {name: tensor[kept] for name, tensor in batch.items()}


def lint(
    move: Move,
    neighbours: Sequence[Neighbours],
    *,
    target: str,
    bounds: Sequence[float] = BOUNDS,
) -> AuditFinding:
    """Say how far one record moves a step, against the bound that the accountant takes."""
    blank = AuditFinding(NAME, ROLE, target, MEASURE, None, 1.0, 1 + TOLERANCE, 0)
    try:
        found = worst(move, neighbours, bounds)
    except SecureFLError as error:
        return blank.at(
            note=f"this is not trained by DP-SGD: the program refuses it ({error.code})"
        )
    sizes = [len(next(iter(pair.batch.values()))) for pair in neighbours]
    details = {"bound": found.bound, "bounds": list(bounds), "records in a batch": sizes}
    return blank.at(value=found.ratio, samples=found.pairs, details=details)


Kept: TypeAlias = Sequence[tuple[nn.Parameter, Tensor]]


def _apart(before: Kept) -> Tensor:
    """How far all that trains has moved, as one vector."""
    with torch.no_grad():
        return torch.cat([(value - parameter).flatten() for parameter, value in before])


@contextmanager
def _weights_kept(model: nn.Module) -> Iterator[Kept]:
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]
    try:
        yield kept
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
