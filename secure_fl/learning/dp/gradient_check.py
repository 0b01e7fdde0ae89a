"""A check of the model itself that Opacus' per-record gradients are those of the records.

Hooks assume that the first dimension of a layer's input counts records. Where it does not (tables
of relative positions, layers that move time to the front), gradients can be wrong without an error,
and no ε is valid. So the check looks at shapes, and compares the clipped sum of two records with
autograd's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secure_fl.errors import ModelError
from secure_fl.learning.dp.opacus_support import ids_per_record, no_dropout, require_supported
from secure_fl.learning.dp.private_model import Bounds, Clipping, Loss, privately, row_gradients
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches
from secure_fl.learning.tasks.task import Batch

TOLERANCE = 1e-3  # of the bound: float32 differs by 1e-6, a confusion of two records by 1
FAILURES = (ModelError, RuntimeError, AttributeError, LookupError, TypeError, ValueError)


def checked_clipping(model: nn.Module, loss: Loss, batch: Batch, clipping: Clipping) -> Clipping:
    """Return this kind of clipping, or "one_by_one" if its gradients differ from autograd's."""
    require_supported(model)
    rows = range(len(next(iter(batch.values()))))
    if len(rows) < 2:  # one record shows no confusion, and gains nothing from batches
        return "one_by_one"
    with no_dropout(model):
        if not all(_records_first(model, loss, batch, count) for count in (1, len(rows))):
            return "one_by_one"
        slopes = [row_gradients(model, loss, batch, row)[1] for row in rows]
        flat = torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in slopes])
        norms = flat.norm(dim=1, keepdim=True)
        C = float(norms.min()) / 2  # all are clipped, so that no record can replace another
        try:
            clipped = _clipped(model, loss, batch, Bounds(C, clipping=clipping))
        except FAILURES:
            return "one_by_one"
    off = float((clipped - (flat / norms).sum(0) * C).norm())
    return clipping if off <= TOLERANCE * C else "one_by_one"


def _records_first(model: nn.Module, loss: Loss, batch: Batch, rows: int) -> bool:
    """Check that the first dimension of every trained layer's input counts records.

    This finds a table that all records share, however little it contributes to a gradient.
    """
    sizes: set[int] = set()

    def note(_: nn.Module, args: tuple[Any, ...]) -> None:
        sizes.add(len(args[0]) if args else 0)

    undo = [ids_per_record(model)]
    for module in model.modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            undo.append(module.register_forward_pre_hook(note).remove)
    try:
        with torch.no_grad():
            loss(model, {name: tensor[:rows] for name, tensor in batch.items()})
    finally:
        for remove in undo:
            remove()
    return sizes == {rows}


def _clipped(model: nn.Module, loss: Loss, batch: Batch, bounds: Bounds) -> torch.Tensor:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    batches = PoissonBatches(len(next(iter(batch.values()))), 1, Coins.secret())
    with privately(model, optimizer, loss, bounds, batches) as private:
        private.backward(batch)
        return private.summed()
