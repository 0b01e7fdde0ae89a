"""FedKD (Wu et al., arXiv 2108.13323): Tables 2 and 3, and what Figures 2, 6 and 7 show.

ade_cls stands in for the paper's tweets on drug reactions, sst2 for its news ranking. Our
checkpoint has 6 layers, the paper's 12, so students are compared by their cut: the paper's of 4
layers with ours of 2, its of 2 with ours of 1. The reference of the bytes is FedAvg of the whole
model, the "federated" row of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import CONSTANT, Table, audited

Method = Mapping[str, Any]

PARTIES = 4
NONE, SEALED = {"mode": "none"}, {"mode": "he+secagg", "bits": 4}
PAIRED = 3  # seeds with which rows are run in the clear, too: protection changes little


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run learns from, how long, and how long its texts are."""

    train: int
    dev: int
    test: int | None
    rounds: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates, falling to nothing over a run: the best of those tried on seed 7."""

    alone: float  # of what nobody averages: Local, teachers; not compared with others
    averaged: float  # of whole models that are averaged: 4e-4, of it and 2e-4
    shallow: float  # of shallow ones, students among them: 8e-4, of 2e-4, 4e-4 and it. A student
    # that is its teacher's first layers is part of a whole model that is averaged


SIZES: Mapping[str, Size] = {
    "ade_cls": Size(600, 60, 400, 3, 40),
    "sst2": Size(600, 60, 400, 3, 32),
}
RATES = Rates(alone=2e-4, averaged=4e-4, shallow=8e-4)


def fedkd(layers: int, protection: Method = SEALED, **settings: Any) -> Method:
    """A row of the paper's own method: two networks, unless said otherwise."""
    usual = {"name": "fedkd", "student_layers": layers, "factors": "joint", "tied": False}
    algorithm = usual | settings
    return {"algorithm": algorithm, "protection": protection}


def shallow(layers: int) -> Method:
    """A row of a shallow model that learns without a teacher."""
    return {"algorithm": {"name": "fedavg"}, "model": {"layers": layers}}


METHODS: Mapping[str, Method] = {
    "Local": {"algorithm": {"name": "local"}},
    "FedAvg": {"algorithm": {"name": "fedavg"}},
    "FedAvg, first 2 layers": shallow(2),
    "FedKD 2": fedkd(2),
    "FedKD 2, labels only": fedkd(2, mutual=False),
}
OURS: Mapping[str, Method] = {"FedKD 2, one network": fedkd(2, tied=True)}
ONCE: Mapping[str, Method] = {  # with the first seed: for their bytes, which hardly vary
    "FedAvg, first layer": shallow(1),
    "FedKD 1": fedkd(1),
    "FetchSGD, 4 bits": {"algorithm": {"name": "fetchsgd"}, "protection": SEALED},
}
CLEAR: Mapping[str, Method] = {
    "FedAvg, unprotected": {"algorithm": {"name": "fedavg"}, "protection": NONE},
    "FedKD 2, unprotected": fedkd(2, NONE),
}
STEPS = {"exchange": "gradient", "rounds": 1, "steps": 6}  # each is a sum, recorded whole
APART: Mapping[str, Method] = {  # what travels, and what is read off it
    "moves by AdamW": fedkd(2, NONE, factors="none"),
    "moves by AdamW, factors": fedkd(2, NONE),
    "moves by SGD": fedkd(2, NONE, factors="none"),
    "moves by SGD, factors": fedkd(2, NONE),
    "gradients": fedkd(2, NONE, factors="none", **STEPS),
    "gradients, factors": fedkd(2, NONE, **STEPS),
}
SGD_RATE = 0.05  # of those moves, without decay, which would move whole matrices

ATTACKED: Mapping[str, Method] = {
    "FedAvg": {"algorithm": {"name": "fedavg"}},
    "FedAvg, unprotected": CLEAR["FedAvg, unprotected"],
    "FedKD 4": fedkd(4),
    "FedKD 4, unprotected": fedkd(4, NONE),
}
UNWEIGHTED = {"class_weights": "none"}  # as many records of each class are drawn


def cells(seed: int) -> Iterator[Cell]:
    """Tables 2 and 3 on both sets, what travels on one, and what a first round gives away."""
    rows = {**METHODS, **OURS, **({} if seed else ONCE), **(CLEAR if seed < PAIRED else {})}
    for data in SIZES:
        for method, settings in rows.items():
            yield _cell("Tables 2 and 3", data, method, settings, seed)
    apart = APART if not seed else {"gradients": APART["gradients"]} if seed < PAIRED else {}
    for method, settings in apart.items():
        cell = _cell("Figures 6 and 7", "sst2", method, settings, seed)
        if "SGD" in method:
            sgd = {"optimizer": "sgd", "learning_rate": SGD_RATE, "weight_decay": 0.0}
            cell = replace(cell, training={**cell.training, **sgd}, algorithm=_unrated(cell))
        yield replace(cell, decomposed="factors" not in method)
    for method, settings in () if seed else ATTACKED.items():
        yield audited(_attacked(method, settings))


def rated(settings: Method, rates: Rates, rounds: int) -> tuple[Method, Method, float]:
    """A row's algorithm and model, and the rate that it learns at."""
    algorithm = {"rounds": rounds} | settings["algorithm"]
    model = {"pooling": "attentive"} | settings.get("model", {})
    if algorithm["name"] == "fedkd":
        shared = rates.averaged if algorithm["tied"] else rates.shallow
        return algorithm | {"teacher_learning_rate": rates.alone}, model, shared
    if "layers" in model:
        return algorithm, model, rates.shallow
    return algorithm, model, rates.alone if algorithm["name"] == "local" else rates.averaged


def _cell(group: str, data: str, method: str, settings: Method, seed: int) -> Cell:
    size = SIZES[data]
    algorithm, model, rate = rated(settings, RATES, size.rounds)
    return Cell(
        data,
        method,
        seed,
        Spread((data,), PARTIES, size.train, True, size.dev, size.test),
        algorithm,
        model,
        UNWEIGHTED | {"learning_rate": rate, "batch_size": 8},
        settings.get("protection", {}),
        size.max_length,
        group,
    )


def _unrated(cell: Cell) -> Method:
    """The algorithm with the default rate of teachers, a quarter of the students'."""
    return {k: v for k, v in cell.algorithm.items() if k != "teacher_learning_rate"}


def _attacked(method: str, settings: Method) -> Cell:
    """A run as it was when it was attacked: at one rate for all, that never falls."""
    rate, algorithm = 4e-4, dict(settings["algorithm"])
    if algorithm["name"] == "fedkd":
        algorithm["teacher_learning_rate"] = rate
    return Cell(
        "ade_cls",
        method,
        0,
        Spread(("ade_cls",), PARTIES, even=True),
        algorithm,
        {"pooling": "attentive"},
        UNWEIGHTED | CONSTANT | {"learning_rate": rate, "batch_size": 8, "precision": "bfloat16"},
        settings.get("protection", {}),
        40,
        "Leakage",
    )


TABLE = Table("fedkd", "FedKD on real text", cells, reference="FedAvg")
