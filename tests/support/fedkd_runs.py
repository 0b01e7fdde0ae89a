"""Short runs of FedKD: teachers of two layers, a student of one, and few records."""

from __future__ import annotations

from functools import partial
from typing import Any

from secure_fl import Federation, Silo
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.events import EventLog
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small

NAMES = [f"hospital-{i}" for i in (1, 2, 3)]
SGD = TrainingSettings(
    optimizer="sgd",
    learning_rate=0.05,
    weight_decay=0.0,
    batch_size=1000,
    max_grad_norm=None,
    device="cpu",
    schedule="constant",
)

kd = partial(FedKD, rounds=2, student_layers=1)


def run(algorithm: FedKD, mode: Any = "none", **options: Any) -> Federation:
    """Teachers of two layers, and few records."""
    usual = {"model": ModelSettings(layers=2), "silos": silos(size=20)}
    return small(algorithm, mode, **usual | options)


def site_of(silo: Silo, model: ModelSettings, training: TrainingSettings = SGD) -> Site:
    task = make_task(TaskSettings(labels=LABELS, max_length=32))
    return Site(silo, SiteSpec(task, model, training, 0), SiteContext(EventLog(silo.name)))
