"""A member of FedID and its baselines by hand, and members outside of any run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.public_coins import coins
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS

NAMES = [f"hospital-{i}" for i in (1, 2, 3)]
LOCAL = [f"{name}/local" for name in NAMES]
RATE, BATCH = 0.05, 4
AS_PRINTED: dict[str, Any] = {  # FedID as in its paper, but for the batch of labels
    "own_shares": "kept",
    "labelled": False,
    "feedback": "scalar",
    "feedback_scale": "printed",
    "batches_per_exchange": 1,
}


def sgd(**changes: Any) -> TrainingSettings:
    """One step on all records, and nothing but the gradient."""
    plain: dict[str, Any] = {
        "optimizer": "sgd",
        "learning_rate": RATE,
        "weight_decay": 0.0,
        "batch_size": 1000,
        "max_grad_norm": None,
        "device": "cpu",
        "schedule": "constant",
    }
    return TrainingSettings(**plain | changes)


def site_of(
    silo: Silo,
    training: TrainingSettings | None = None,
    *,
    seed: int = 0,
    labels: tuple[str, ...] = LABELS,
) -> Site:
    """A member outside of any run."""
    training = training or TrainingSettings(batch_size=8, device="cpu", learning_rate=2e-3)
    task = make_task(TaskSettings(labels=labels, max_length=32))
    return Site(
        silo,
        SiteSpec(task, ModelSettings(layers=1), training, seed),
        SiteContext(EventLog(silo.name)),
    )


class Hand:
    """A member of Algorithm 1, with a model and plain gradient descent."""

    def __init__(self, silo: Silo, spec: ModelSettings) -> None:
        self.task = make_task(TaskSettings(labels=LABELS, max_length=32))
        tokenizer = load_tokenizer(spec)
        self.train = self.task.encode(silo.train, tokenizer).batch(range(len(silo.train)))
        self.public = self.task.encode(silo.public, tokenizer, labelled=False)
        self.model = load_model(spec, self.task, tokenizer, 0)
        self.start = {n: w.detach().clone() for n, w in trainable(self.model).items()}

    def ask(self, rows: Tensor) -> Tensor:
        return self.task.forward(self.model, self.public.batch(rows))

    def own_loss(self) -> Tensor:
        return F.cross_entropy(self.task.forward(self.model, self.train), self.train["labels"])

    def descend(self, loss: Tensor, rate: float = RATE) -> None:
        found = list(trainable(self.model).values())
        with torch.no_grad():
            for weight, g in zip(found, torch.autograd.grad(loss, found), strict=True):
                weight -= rate * g

    def assert_is(self, model: nn.Module, atol: float = 2e-6) -> None:
        moved = 0.0
        for name, weight in trainable(self.model).items():
            torch.testing.assert_close(trainable(model)[name], weight, atol=atol, rtol=1e-5)
            moved = max(moved, float((weight - self.start[name]).detach().abs().max()))
        assert moved > 100 * atol  # or the bound would say nothing


def ce(z: Tensor, y: Tensor) -> Tensor:
    return -(y * torch.log_softmax(z, -1)).sum(-1).mean()


def order(round: int, epoch: int, size: int, batch: int) -> list[Tensor]:
    seed = seed_for(0, "public records", round, epoch)
    drawn = np.argsort(coins(seed, np.arange(size)), kind="stable")
    return [torch.from_numpy(drawn[i : i + batch]) for i in range(0, size, batch)]
