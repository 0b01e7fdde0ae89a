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
from benchmarks.evidence.claims import Arm, Claim
from benchmarks.evidence.own_models import SERVED
from benchmarks.evidence.tables import inclusivefl
from benchmarks.evidence.tables.base import Section, Table

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
CHANCE = 5.0  # per cent of hospitals: two-sided intervals of 95 % are below 0 at half of them
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
            yield Cell(
                data,
                method,
                seed,
                spread,
                {"name": "fedavg", "rounds": ROUNDS},
                {"pooling": "cls"} if group == UNLIKE else {"pooling": "attentive"},
                {"learning_rate": RATES[group], "batch_size": BATCH},
                {},
                length,
                group,
                features=own,
            )


def _claims(group: str) -> Iterator[Claim]:
    """List the claims about one spread; the control is the last one."""
    for method in METHODS:
        served, alone = Arm(method, SERVED), Arm(method, "alone")
        none = f"After {method}, no hospital is below training alone (up to {CHANCE:g} %: chance)."
        yield Claim(none, group, served, (alone,), more_than=-CHANCE, figure="below")
        mean = f"After {method}, the mean is not below FedAvg (by 1 point)."
        yield Claim(mean, group, served, (Arm(FEDAVG),), more_than=-1.0)
        what = f"Personal models by {method}"
        others = (Arm(FEDAVG), alone)
        yield Claim(what, group, Arm(method, "personal"), others, more_than=None)
    left = "Control: FedAvg leaves hospitals below training alone."
    alone, shared = Arm("finetune", "alone"), Arm("finetune")
    yield Claim(left, group, alone, (shared,), more_than=CHANCE, figure="below")


TABLE = Table(
    "personal",
    "Personal models where hospitals differ",
    cells,
    reference=FEDAVG,
    sections=(
        Section(UNLIKE, "Each hospital has one corpus, its own entity types and output layer."),
        Section(SKEWED, "Each hospital's class mixture is drawn with α = 0.3, also of its tests."),
    ),
    claims=(*_claims(UNLIKE), *_claims(SKEWED)),
)
