"""Servers' steps and corrections of drift with a pre-trained model, with equal effort of tuning.

Three values are tried for one setting of each method, and judged by the dev records of seed 100,
which no other row uses. FedAvg has no setting of its own, so its learning rate is tried; all other
methods use the rate that is chosen for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables import fedkd
from benchmarks.evidence.tables.base import Table

Plain = Mapping[str, Any]

REPORTED, TRIED = "Dirichlet 0.3", "settings that were tried, seed 100"
TUNING_SEED = 100
LENGTHS = {"ade_cls": 40, "sst2": 32}
ROUNDS, RANK = 4, 8
FEDAVG = "FedAvg"
RATES = (1e-3, 2e-3, 4e-3)
GRIDS: Mapping[str, tuple[str, str, tuple[float, ...]]] = {  # method -> name, setting, values
    "FedProx": ("fedprox", "proximal", (1.0, 10.0, 100.0)),
    "SCAFFOLD": ("scaffold", "server_learning_rate", (0.5, 1.0, 1.5)),
    "FedAdam": ("fedadam", "server_learning_rate", (0.01, 0.03, 0.1)),
    "FedYogi": ("fedyogi", "server_learning_rate", (0.01, 0.03, 0.1)),
    "FedAvgM": ("fedavgm", "momentum", (0.3, 0.6, 0.9)),
    "FedExP": ("fedexp", "damping", (1e-3, 1e-1, 10.0)),
    "FedAvg, EMA": ("fedavg", "average", (0.3, 0.6, 0.9)),
}
# By dev records of seed 100.
RATE: Mapping[str, float] = {"ade_cls": 2e-3, "sst2": 2e-3}
CHOSEN: Mapping[str, Mapping[str, float]] = {
    data: {method: values[1] for method, (_, _, values) in GRIDS.items()} for data in LENGTHS
}


def cells(seed: int) -> Iterator[Cell]:
    """Yield all methods on both sets; with the first seed also the settings that were tried."""
    for data in LENGTHS:
        yield _cell(REPORTED, data, FEDAVG, {"name": "fedavg"}, RATE[data], seed)
        for method, (name, setting, _) in GRIDS.items():
            algorithm = {"name": name, setting: CHOSEN[data][method]}
            yield _cell(REPORTED, data, method, algorithm, RATE[data], seed)
    for data in () if seed else LENGTHS:
        for rate in RATES:
            title = f"{FEDAVG}, rate {rate:g}"
            yield _cell(TRIED, data, title, {"name": "fedavg"}, rate, TUNING_SEED)
        for method, (name, setting, values) in GRIDS.items():
            for value in values:
                algorithm = {"name": name, setting: value}
                title = f"{method}, {setting} {value:g}"
                yield _cell(TRIED, data, title, algorithm, RATE[data], TUNING_SEED)


def _cell(group: str, data: str, method: str, algorithm: Plain, rate: float, seed: int) -> Cell:
    spread = Spread((data,), 4, 2400, dev=200, test=600, alpha=0.3)
    model = {"pooling": "mean", "adapter": {"kind": "lora", "rank": RANK}}
    training = fedkd.UNWEIGHTED | {"learning_rate": rate, "batch_size": 16, "bucketing": True}
    about, algorithm = (fedkd.NONE, LENGTHS[data], group), {"rounds": ROUNDS, **algorithm}
    return Cell(data, method, seed, spread, algorithm, model, training, *about)


TABLE = Table("optimisers", "Servers' steps and corrections of drift", cells, reference=FEDAVG)
