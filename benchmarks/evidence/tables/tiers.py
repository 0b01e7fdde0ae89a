"""InclusiveFL whose tiers have too few hospitals for sums of their own: NER, 3 to 8 hospitals.

By default layers with fewer owners than `min_cohort` stay at their hospitals. It is compared with
`min_cohort = 1`, where a sum over one hospital is that hospital's update, and with training alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables import inclusivefl
from benchmarks.evidence.tables.base import Table

FEDERATIONS: Mapping[str, tuple[str, ...]] = {  # hospitals -> their tiers
    "3 hospitals": ("weak", "medium", "strong"),
    "4 hospitals": ("weak", "weak", "medium", "strong"),
    "8 hospitals": ("weak",) * 4 + ("medium",) * 2 + ("strong",) * 2,
}
SETS = ("ade_ner", "ncbi_disease")
EACH = 80  # training records of a hospital
LOCAL, OWN, ONE, LARGE = "Local", "InclusiveFL", "InclusiveFL, min_cohort = 1", "AllLarge"
METHODS: Mapping[str, Mapping[str, Any]] = {
    LOCAL: {"name": "local"},
    OWN: inclusivefl.tiered("inclusivefl"),
    ONE: inclusivefl.tiered("inclusivefl"),
    LARGE: inclusivefl.tiered("alllarge"),
}


def cells(seed: int) -> Iterator[Cell]:
    """Yield all methods of all federations on both sets."""
    for group, tiers in FEDERATIONS.items():
        for data in SETS:
            for method, algorithm in METHODS.items():
                yield _cell(group, data, method, algorithm, seed, tiers)


def _cell(
    group: str,
    data: str,
    method: str,
    algorithm: Mapping[str, Any],
    seed: int,
    tiers: tuple[str, ...],
) -> Cell:
    size, model = EACH * len(tiers), {"pooling": "cls"}
    spread = Spread((data,), len(tiers), size, dev=60, test=300, tiers=tiers, each_tier=True)
    rate = inclusivefl.NER_RATE
    cell = inclusivefl.cell(group, data, method, algorithm, seed, spread, model, rate)
    if method == ONE:
        return replace(cell, protection={"min_cohort": 1}, note=inclusivefl.ONE_HOSPITAL)
    depths = tuple(inclusivefl.DEPTHS[tier] for tier in tiers) if method == LOCAL else ()
    return replace(cell, depths=depths)


TABLE = Table("tiers", "InclusiveFL with few hospitals in a tier", cells, reference=LARGE)
