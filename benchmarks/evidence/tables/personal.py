"""Personal models where hospitals differ: unlike label sets, and skewed classes.

Each method is a run of FedAvg, after which every hospital trains its own models. A row without a
model is the shared one. `served` is the one that a hospital uses: the better of shared and personal
on its dev records, or the alone one if that is significantly better. All scores are on test records
of the hospital's own kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables import inclusivefl
from benchmarks.evidence.tables.base import Table

UNLIKE, SKEWED = "NER, unlike label sets", "classes by Dirichlet 0.3"
FEDAVG = "FedAvg"
METHODS: Mapping[str, Mapping[str, Any]] = {
    "finetune": {"method": "finetune"},
    "ditto": {"method": "ditto"},
    "head": {"method": "head"},
    "adapter": {"method": "adapter"},
}
ROUNDS, EPOCHS, BATCH = 6, 3, 16
RATES = {UNLIKE: inclusivefl.NER_RATE, SKEWED: 2e-4}  # of all models; not searched here
SPREADS: Mapping[str, tuple[str, Spread, int]] = {  # with the longest text, in tokens
    UNLIKE: ("ner trio", Spread(tuple(inclusivefl.TRIO), 3, train=240, dev=200, test=400), 48),
    SKEWED: (
        "ade_cls",
        Spread(("ade_cls",), 4, train=1600, dev=400, test=400, alpha=0.3, own_tests=True),
        64,
    ),
}


def cells(seed: int) -> Iterator[Cell]:
    """Yield FedAvg without personal models, and all methods, on both spreads."""
    for group, (data, spread, length) in SPREADS.items():
        for method in (FEDAVG, *METHODS):
            own = {"personal": {**METHODS[method], "epochs": EPOCHS}} if method in METHODS else {}
            what = data, method, seed, spread, {"name": "fedavg", "rounds": ROUNDS}
            model = {"pooling": "cls" if group == UNLIKE else "attentive"}
            training = {"learning_rate": RATES[group], "batch_size": BATCH}
            yield Cell(*what, model, training, {}, length, group, features=own)


TABLE = Table("personal", "Personal models where hospitals differ", cells, reference=FEDAVG)
