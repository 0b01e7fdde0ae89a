"""Gradients of single records, or of patients, in all trained weights of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from secure_fl.learning.dp.dp_sgd import checked_clipping, checked_records
from secure_fl.learning.dp.noised_steps import Gradients, per_patient
from secure_fl.learning.dp.private_model import Bounds, Clipping, privately, trained
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches, secret_dropout
from secure_fl.learning.local_training import task_loss
from secure_fl.learning.site import Site

VALUES = 1 << 24  # of single gradients in memory


def model_gradients(site: Site, model: nn.Module) -> Gradients:
    """Return a function that computes the gradients of units, some at a time."""
    assert site.privacy is not None  # noqa: S101 - checked before the run
    dp, units, loss = site.privacy.settings, site.privacy.units, task_loss(site)
    width = sum(weight.numel() for weight in trained(model))
    clipping: Clipping | None = None  # the kind that computes this model's gradients correctly

    def gradients(sample: Sequence[int], coins: Coins) -> Iterator[Tensor]:
        nonlocal clipping
        if not sample:
            return
        model.train()
        size = site.at_once(dp.physical_batch or max(1, min(64, VALUES // width)))
        with secret_dropout(coins, site.device):
            if clipping is None:
                clipping = checked_clipping(model, loss, checked_records(site), "per_sample")
            optimizer = torch.optim.SGD(trained(model), lr=0.0)
            batches = PoissonBatches(len(units), 1, coins)
            bounds = Bounds(dp.max_grad_norm, clipping=clipping)
            with privately(model, optimizer, loss, bounds, batches) as private:
                for start in range(0, len(sample), size):
                    torch.manual_seed(coins.seed())
                    members = [units[unit] for unit in sample[start : start + size]]
                    rows = [row for unit in members for row in unit]
                    batch = site.train.batch(rows, site.batches_rng, site.device)
                    each = private.each(batch).detach().cpu()
                    patients = dp.unit == "patient"
                    yield per_patient(each, list(map(len, members))) if patients else each

    return gradients
