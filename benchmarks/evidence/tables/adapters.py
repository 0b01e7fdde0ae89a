"""Adapters beside whole models: what they learn and send, in the clear and under DP-SGD.

Not a paper's: what a hospital must know before it fine-tunes by adapters. Rates of both were chosen
on seed 100 (rank 4), each as the best of those that were tried; rank 3 is what a fiftieth holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import Table

Method = Mapping[str, Any]

WHOLE, LORA = "Whole model", "LoRA"
CLEAR, PRIVATE = "In the clear", "Under DP-SGD, ε = 8"
PARTIES = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """A setting: what is learned from, how, and by which two methods."""

    train: int
    plan: Method
    training: Method
    adapter: Method
    rates: Mapping[str, float]
    seeds: int


SETTINGS: Mapping[str, Rows] = {
    CLEAR: Rows(
        train=800,
        plan={"rounds": 6},
        training={"batch_size": 8, "precision": "bfloat16"},
        adapter={"kind": "lora", "rank": 3, "targets": "linear"},
        rates={WHOLE: 4e-4, LORA: 4e-3},
        seeds=10,
    ),
    PRIVATE: Rows(
        train=1600,
        plan={"rounds": 3, "epochs": 2},
        training={"batch_size": 64, "dp": {"epsilon": 8.0, "max_grad_norm": 1.0}},
        adapter={"kind": "lora", "rank": 8, "targets": "attention"},
        rates={WHOLE: 1e-3, LORA: 1e-2},
        seeds=3,
    ),
}
LENGTHS = {"ade_cls": 40, "sst2": 32}
TESTED = {"ade_cls": 1000, "sst2": None}


def cells(seed: int) -> Iterator[Cell]:
    """Both methods on both sets; hospitals have as many records of each class."""
    for group, rows in SETTINGS.items():
        for data in LENGTHS if seed < rows.seeds else ():
            for method in (WHOLE, LORA):
                yield _cell(group, rows, data, method, seed)


def _cell(group: str, rows: Rows, data: str, method: str, seed: int) -> Cell:
    adapter = {"adapter": rows.adapter} if method == LORA else {}
    return Cell(
        data,
        method,
        seed,
        Spread((data,), PARTIES, rows.train, even=True, dev=60, test=TESTED[data]),
        {"name": "fedavg", **rows.plan},
        {"pooling": "attentive", **adapter},
        {"class_weights": "none", **rows.training, "learning_rate": rows.rates[method]},
        {"mode": "none"},
        LENGTHS[data],
        group,
    )


TABLE = Table("adapters", "adapters beside whole models", cells, reference=WHOLE)
