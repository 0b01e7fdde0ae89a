"""Small built-in hospitals, with a host or without, and federations of them.

They train in a second, on made-up notes:

    clear = small(MyAlgorithm(rounds=1)).run()
    sealed = small(MyAlgorithm(rounds=1), "he+secagg").run()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from secure_fl import FedAvg, Federation, ProtectionSettings, Silo, TaskSettings, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedid import FedID
from secure_fl.corpora import make, public
from secure_fl.settings import ModelSettings, Protection

LABELS = ("ade", "no-ade")
HOST = "host"


def silos(parties: int = 3, size: int = 48, seed: int = 0) -> list[Silo]:
    """Parties that hold built-in notes, each its own."""
    splits = make("ade", parties=parties, seed=seed, size=size)
    return [Silo(f"hospital-{i}", s.train, s.dev, s.test) for i, s in enumerate(splits, 1)]


def small(
    algorithm: Algorithm | None = None, mode: Protection = "none", **options: Any
) -> Federation:
    """Three parties that train a one-layer model; options are `Federation`'s, and `silos`."""
    given = {
        "task": TaskSettings(labels=LABELS, max_length=32),
        "model": ModelSettings(layers=1),
        "training": TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu"),
        "protection": ProtectionSettings(mode=mode, bits=16),
    } | options
    return Federation(given.pop("silos", None) or silos(), algorithm or FedAvg(rounds=2), **given)


def frozen() -> TrainingSettings:
    """Training that moves nothing."""
    return TrainingSettings(learning_rate=1e-30, weight_decay=0.0, device="cpu")


def members(
    parties: int = 3, size: int | Sequence[int] = 16, shared: int = 16, labelled: int = 16
) -> list[Silo]:
    """Parties and a host, who alone has labels for public texts; all hold the same other ones."""
    texts = public("ade", seed=0, size=shared + labelled + 8)
    d0, own = texts[:shared], texts[shared:]
    splits = make("ade", parties=parties, seed=0, size=size)
    found = [Silo(f"hospital-{i}", s.train, s.dev, public=d0) for i, s in enumerate(splits, 1)]
    return [*found, Silo(HOST, own[:labelled], own[labelled:], role="host", public=d0)]


def hosted(
    algorithm: Algorithm | None = None, mode: Protection = "none", **options: Any
) -> Federation:
    """Three parties and a host."""
    training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
    usual: dict[str, Any] = {"silos": members(), "training": training}
    return small(algorithm or FedID(rounds=1), mode, **usual | options)
