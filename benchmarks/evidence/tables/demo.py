"""A small table on built-in data: what the framework does, without data sets or checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.checkpoint import BUILT_IN
from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import Table

METHODS: dict[str, dict[str, Any]] = {
    "Local": {"algorithm": {"name": "local"}},
    "FedAvg": {"algorithm": {"name": "fedavg"}},
    "FedAvg, unprotected": {"algorithm": {"name": "fedavg"}, "protection": {"mode": "none"}},
}


def cells(seed: int) -> Iterator[Cell]:
    """Three hospitals, alone and together."""
    for method, settings in METHODS.items():
        yield Cell(
            "built-in ade",
            method,
            seed,
            Spread(("built-in ade",), 3, train=720),
            settings["algorithm"] | {"rounds": 5, "epochs": 3},
            model={"layers": 2},
            training={"learning_rate": 1.5e-3, "batch_size": 16},
            protection=settings.get("protection", {}),
            max_length=64,
        )


TABLE = Table("demo", "hospitals alone and together", cells, reference="FedAvg", model=BUILT_IN)
