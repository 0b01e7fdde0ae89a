"""Adapters compared with whole models: scores and bytes, in the clear and under DP-SGD.

Rates of both were chosen on seed 100 (rank 4), each as the best of those that were tried; rank 3
takes a fiftieth of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.claims import Arm, Claim
from benchmarks.evidence.tables.base import Section, Table
from benchmarks.evidence.tables.fedkd import LENGTHS, NONE, UNWEIGHTED

Method = Mapping[str, Any]

WHOLE, LORA = "Whole model", "LoRA"
CLEAR, PRIVATE = "In the clear", "Under DP-SGD, ε = 8"
PARTIES = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """Records and settings of two methods to compare."""

    train: int
    plan: Method
    training: Method
    adapter: Method
    rates: Mapping[str, float]
    seeds: int


SETTINGS: Mapping[str, Setting] = {
    CLEAR: Setting(
        train=800,
        plan={"rounds": 6},
        training={"batch_size": 8, "precision": "bfloat16"},
        adapter={"kind": "lora", "rank": 3, "targets": "linear"},
        rates={WHOLE: 4e-4, LORA: 4e-3},
        seeds=10,
    ),
    PRIVATE: Setting(
        train=1600,
        plan={"rounds": 3, "epochs": 2},
        training={"batch_size": 64, "dp": {"epsilon": 8.0, "max_grad_norm": 1.0}},
        adapter={"kind": "lora", "rank": 8, "targets": "attention"},
        rates={WHOLE: 1e-3, LORA: 1e-2},
        seeds=3,
    ),
}
TESTED = {"ade_cls": 1000, "sst2": None}


def cells(seed: int) -> Iterator[Cell]:
    """Yield both methods on both sets; training records are balanced over classes."""
    for group, setting in SETTINGS.items():
        for data in LENGTHS if seed < setting.seeds else ():
            for method in (WHOLE, LORA):
                yield _cell(group, setting, data, method, seed)


def _cell(group: str, setting: Setting, data: str, method: str, seed: int) -> Cell:
    adapter = {"adapter": setting.adapter} if method == LORA else {}
    spread = Spread((data,), PARTIES, setting.train, even=True, dev=60, test=TESTED[data])
    algorithm, model = {"name": "fedavg", **setting.plan}, {"pooling": "attentive", **adapter}
    training = UNWEIGHTED | {**setting.training, "learning_rate": setting.rates[method]}
    about = NONE, LENGTHS[data], group
    return Cell(data, method, seed, spread, algorithm, model, training, *about)


SMALL, LARGE = Arm(LORA), (Arm(WHOLE),)
NEAR = "Adapters are at most 1.5 points behind the whole model."
FEW = "Adapters take at most 1/50 of the whole model's bytes."
AHEAD = "Under DP-SGD adapters have a better AUROC than the whole model."
TABLE = Table(
    "adapters",
    "Adapters compared with whole models",
    cells,
    reference=WHOLE,
    sections=(
        Section(CLEAR, "LoRA of rank 3 on all linear layers."),
        Section(
            PRIVATE,
            "LoRA of rank 8 on attentions; ε is per record at each hospital, over the whole run. "
            "Training records are balanced, a fifth of ade_cls's test records is positive. "
            "AUROC is therefore a better measure than F1 there.",
        ),
    ),
    claims=(
        Claim(NEAR, CLEAR, SMALL, LARGE, more_than=-1.5),
        Claim(FEW, CLEAR, SMALL, LARGE, more_than=50, figure="bytes"),
        Claim(AHEAD, PRIVATE, SMALL, LARGE, figure="auroc"),
    ),
)
