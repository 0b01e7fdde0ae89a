"""Three small built-in hospitals, and a federation of them that trains in about a second."""

from __future__ import annotations

from typing import Any

from secure_fl import FedAvg, Federation, ProtectionSettings, Silo, TaskSettings, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.corpora import make
from secure_fl.settings import ModelSettings, Protection

LABELS = ("ade", "no-ade")


def silos(parties: int = 3, size: int = 48, seed: int = 0) -> list[Silo]:
    splits = make("ade", parties=parties, seed=seed, size=size)
    return [Silo(f"hospital-{i}", s.train, s.dev, s.test) for i, s in enumerate(splits, 1)]


def small(
    algorithm: Algorithm | None = None, mode: Protection = "none", **options: Any
) -> Federation:
    given = {
        "task": TaskSettings(labels=LABELS, max_length=32),
        "model": ModelSettings(layers=1),
        "training": TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu"),
        "protection": ProtectionSettings(mode=mode, bits=16),
    } | options
    return Federation(given.pop("silos", None) or silos(), algorithm or FedAvg(rounds=2), **given)
