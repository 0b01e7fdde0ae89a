"""A small table on built-in data, which needs no data sets and no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.checkpoint import BUILT_IN
from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import Table

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "Local": ("local", {}),
    "FedAvg": ("fedavg", {}),
    "FedAvg, unprotected": ("fedavg", {"mode": "none"}),
}


def cells(seed: int) -> Iterator[Cell]:
    """Yield three hospitals, alone and together."""
    for method, (algorithm, protection) in METHODS.items():
        yield Cell(
            "built-in ade",
            method,
            seed,
            Spread(("built-in ade",), 3, train=720),
            {"name": algorithm, "rounds": 5, "epochs": 3},
            model={"layers": 2},
            training={"learning_rate": 1.5e-3, "batch_size": 16},
            protection=protection,
            max_length=64,
        )


TABLE = Table("demo", "Hospitals alone and together", cells, reference="FedAvg", model=BUILT_IN)
