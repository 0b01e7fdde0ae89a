"""A hospital's gradient under DP-SGD: one full step on fixed features, by the library's DP-SGD.

So clipping, noise, the ledger and repeated rounds are those of every other algorithm. The step has
rate 1, and its negative times the records is the noised sum of clipped gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.exact import Matrix
from secure_fl.algorithms.probe.features import Rows
from secure_fl.algorithms.probe.fits import both
from secure_fl.learning.dp.dp_sgd import fit_privately
from secure_fl.learning.dp.scope import signal_to_noise
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.learning.tasks.token_table import TokenTable
from secure_fl.party.rounds import Round
from secure_fl.settings import DPSettings

SLOWEST, FASTEST = 3.0, 20.0  # rates for features of length 1, C = 0.5 and momentum 0.9
ONE_STEP = {
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "weight_decay": 0.0,
    "schedule": "constant",
    "warmup": 0.0,
}


class FixedFeatures:
    """A site whose training records are fixed features, with all else of the site."""

    def __init__(self, site: Site, rows: Rows) -> None:
        values = {"features": rows.x, "labels": rows.y}
        self._site = site
        self.train = TokenTable({}, torch.ones(len(rows.y), dtype=torch.long), values)
        self.training = site.training.model_copy(update=ONE_STEP)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)


def private_gradient(site: Site, rows: Rows, W: Matrix, classes: int, round: Round) -> Tensor:
    """Sum the clipped gradients of the records, with noise; spend the step in the ledger."""
    assert site.privacy is not None  # noqa: S101 - checked before the run
    head = nn.Linear(len(W), W.shape[1], bias=False, device=site.device)
    head.weight.data.copy_(torch.from_numpy(W.T))

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        z = both(model(batch["features"]), classes)
        return F.cross_entropy(z, batch["labels"], reduction="none")

    before = head.weight.detach().cpu().double()
    fit_privately(FixedFeatures(site, rows), head, 1, round, losses)
    moved = head.weight.detach().cpu().double() - before
    return -moved.T * len(site.privacy.units)


def private_rate(dp: DPSettings, steps: int, records: float) -> float:
    """Return the learning rate by the ratio of gradients to noise, which is public.

    Three digits, so that machines that round differently have the same.
    """
    rate = min(max(signal_to_noise(dp, steps) * records / 300, SLOWEST), FASTEST)
    return float(f"{rate:.3g}")
