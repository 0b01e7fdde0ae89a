"""D⁰: public records without labels, at every member alike, and what a model predicts on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.public_coins import coins
from secure_fl.errors import SettingsError
from secure_fl.learning.local_training import autocast
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch
from secure_fl.learning.tasks.task import inference
from secure_fl.seeds import seed_for

Targets: TypeAlias = Literal["soft", "hard"]  # probabilities, or a vote for the likeliest class
Rows: TypeAlias = Tensor  # positions of records in D⁰


class PublicRecords:
    """D⁰ in batches whose order all members draw from the run's public seed."""

    def __init__(self, site: Site, batch: int | None = None) -> None:
        if site.task.head != "sequence" or not site.task.labels:
            raise SettingsError(
                f"predictions are summed class by class, and {site.task.kind} has no classes here",
                fix='set task.kind = "classification" or "pair", or choose another algorithm',
                field="task.kind",
            )
        self._site = site
        self.classes = len(site.task.labels)
        self.batch = min(batch or site.training.batch_size, len(site.public))

    def __len__(self) -> int:
        return len(self._site.public)

    def batches(self, round: int, epoch: int) -> tuple[Rows, ...]:
        """One pass in batches of equal size; another pass leaves out other records, if any.

        Differs: the host does not send which records are in a batch, for everybody can draw it.
        """
        seed = seed_for(self._site.seed, "public records", round, epoch)
        order = torch.from_numpy(np.argsort(coins(seed, np.arange(len(self))), kind="stable"))
        return torch.split(order[: len(order) // self.batch * self.batch], self.batch)

    def every(self) -> Rows:
        """All of them, in order."""
        return torch.arange(len(self))

    def read(self, rows: Rows) -> Batch:
        """The records themselves, as this member's model reads them."""
        return self._site.public.batch(rows, device=self._site.device)


def logits(site: Site, model: nn.Module, records: PublicRecords, rows: Rows) -> Tensor:
    """What the model says about these records, without dropout."""
    with site.recorder.phase("predict"), inference(model), autocast(site):
        parts = [
            site.task.forward(model, records.read(some))
            for some in torch.split(rows, site.at_once())
        ]
    return torch.cat(parts).float()


def answers(z: Tensor, targets: Targets) -> Tensor:
    """From logits to what is sent of them: every class's probability, or one vote."""
    return z.softmax(-1) if targets == "soft" else votes(z)


def votes(y: Tensor) -> Tensor:
    """All weight on the likeliest class."""
    return F.one_hot(y.argmax(-1), y.shape[-1]).float()


def cross_entropy(z: Tensor, targets: Tensor) -> Tensor:
    """The mean over records of -Σ y·log p; for shares of votes, the votes' mean loss."""
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    return -(targets * z.log_softmax(-1)).sum(-1).mean()


def lots(batches: Sequence[Rows], size: int) -> Iterator[Sequence[Rows]]:
    """So many batches at a time, never fewer: sums of one size need one noise."""
    size = min(size, len(batches))
    for start in range(0, len(batches) // size * size, size):
        yield batches[start : start + size]
