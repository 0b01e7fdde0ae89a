"""Whether Opacus' gradients per record are those of the records, asked of the model itself.

Hooks take the first dimension of what enters a layer for the records. Where that is another one
(tables of relative positions, layers that turn time to the front), gradients can be wrong without
an error, and no ε holds. So shapes are looked at, and the clipped sum of two records is compared
with autograd's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secure_fl.errors import ModelError
from secure_fl.learning.dp.layers import ids_per_record, no_dropout, require_supported
from secure_fl.learning.dp.model import Bounds, Clipping, Loss, privately, row_gradients
from secure_fl.learning.dp.randomness import Coins, PoissonBatches
from secure_fl.learning.tasks.base import Batch

TOLERANCE = 1e-3  # of the bound: float32 differs by 1e-6, a record that is taken for another by 1
FAILURES = (ModelError, RuntimeError, AttributeError, LookupError, TypeError, ValueError)


def sound(model: nn.Module, loss: Loss, batch: Batch, clipping: Clipping) -> Clipping:
    """Return the way of clipping, or "one_by_one" if it gives other gradients than autograd."""
    require_supported(model)
    rows = range(len(next(iter(batch.values()))))
    if len(rows) < 2:  # of one record nothing can be told, and there is nothing to gain
        return "one_by_one"
    with no_dropout(model):
        if not all(_records_first(model, loss, batch, count) for count in (1, len(rows))):
            return "one_by_one"
        each = [row_gradients(model, loss, batch, row)[1] for row in rows]
        flat = torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in each])
        norms = flat.norm(dim=1, keepdim=True)
        C = float(norms.min()) / 2  # all are clipped, so that none can stand in for another
        try:
            found = _clipped(model, loss, batch, Bounds(C, clipping=clipping))
        except FAILURES:
            return "one_by_one"
    off = float((found - (flat / norms).sum(0) * C).norm())
    return clipping if off <= TOLERANCE * C else "one_by_one"


def _records_first(model: nn.Module, loss: Loss, batch: Batch, rows: int) -> bool:
    """Whether all that is trained takes its input record by record: its first dimension says so.

    However little a table that all records share weighs in a gradient, it is seen here.
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
        for one in undo:
            one()
    return sizes == {rows}


def _clipped(model: nn.Module, loss: Loss, batch: Batch, bounds: Bounds) -> torch.Tensor:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    batches = PoissonBatches(len(next(iter(batch.values()))), 1, Coins.secret())
    with privately(model, optimizer, loss, bounds, batches) as private:
        private.backward(batch)
        return private.summed()
