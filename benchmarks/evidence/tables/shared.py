"""FedKD with shared and personal teachers on whole data sets, iid and by Dirichlet.

Rows that the table `whole` has, too, have the same settings, so a copy of its finished cells counts
here. Sums of adapters are sealed; sums of whole models are in the clear, and their bytes are
compared with fp32 values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables import fedkd, whole
from benchmarks.evidence.tables.base import Table

Method = Mapping[str, Any]

IID, SKEWED, RATES = "whole sets, iid", "whole sets, Dirichlet 0.3", "rates, seed 100"
LORA, SHALLOW_LORA = "LoRA", "LoRA, first 2 layers"
SHARED, PERSONAL, MADE_UP = "FedKD, shared", "FedKD, personal", "FedKD, shared, made-up"
SEALED = {"mode": "he+secagg", "bits": 8}
RANK, STUDENT_RANK, LAYERS = 3, 8, 2
TRIED, SHALLOW_TRIED = (1e-3, 2e-3, 4e-3), (1e-3, 2e-3, 4e-3, 8e-3)
RATE, SHALLOW_RATE = 4e-3, 4e-3  # the best by the mean of both sets' dev records
TUNING_SEED = 100


def adapter(rank: int) -> Method:
    """Return the settings of adapters on all linear layers."""
    return {"pooling": "attentive", "adapter": {"kind": "lora", "rank": rank, "targets": "linear"}}


def distilled(teachers: str, **settings: Any) -> Method:
    """Return a row of FedKD whose teachers share adapters."""
    given = {"teachers": teachers, "student_layers": LAYERS, "student_rank": STUDENT_RANK}
    return {
        "algorithm": {"name": "fedkd", "teacher_learning_rate": RATE, **given, **settings},
        "model": adapter(RANK),
        "rate": SHALLOW_RATE,
    }


PRINTED: Mapping[str, Method] = {
    name: fedkd.METHODS[name] for name in (fedkd.LOCAL, fedkd.FEDAVG, fedkd.SHALLOW, fedkd.FEDKD)
}
ADAPTED: Mapping[str, Method] = {
    LORA: {"algorithm": {"name": "fedavg"}, "model": adapter(RANK), "rate": RATE},
    SHALLOW_LORA: {
        "algorithm": {"name": "fedavg"},
        "model": {**adapter(STUDENT_RANK), "layers": LAYERS},
        "rate": SHALLOW_RATE,
    },
    SHARED: distilled("shared"),
    PERSONAL: distilled("personal"),
    MADE_UP: distilled("shared", made_up=True),
}


def cells(seed: int) -> Iterator[Cell]:
    """Yield all methods on both sets; with the first seed also the rates that were tried."""
    for group, alpha in ((IID, None), (SKEWED, 0.3)):
        for data in whole.LENGTHS:
            for method, settings in PRINTED.items():
                rated = fedkd.rated(settings, whole.RATES, whole.ROUNDS)
                yield dealt(whole.fedkd_cell(group, data, method, *rated, seed), alpha)
            for method, settings in ADAPTED.items():
                cell = dealt(_adapted(group, data, method, settings, seed), alpha)
                yield replace(cell, protection=SEALED)
    for method, rates in () if seed else ((LORA, TRIED), (SHALLOW_LORA, SHALLOW_TRIED)):
        for data in whole.LENGTHS:
            for rate in rates:
                row = {**ADAPTED[method], "rate": rate}
                yield _adapted(RATES, data, f"{method}, {rate:g}", row, TUNING_SEED)


def dealt(cell: Cell, alpha: float | None) -> Cell:
    """Deal a cell's records by this class mixture."""
    return replace(cell, spread=replace(cell.spread, alpha=alpha))


def _adapted(group: str, data: str, method: str, settings: Method, seed: int) -> Cell:
    given = settings["algorithm"], settings["model"], settings["rate"]
    return replace(whole.fedkd_cell(group, data, method, *given, seed), note="")


TABLE = Table(
    "shared", "FedKD with shared teachers on whole data sets", cells, reference=fedkd.FEDAVG
)
