"""Where interaction should pay: hospitals of unlike classes, with the controls beside the methods.

Not the paper's: rates fall over the run, the controls say what there is to win, and the rows with
own shares divided say how much of FedID's lead is that, which every method may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.controls import Control
from benchmarks.evidence.tables.fedid_sizes import PRINTED

Method = dict[str, Any]

DATA = "sst2, 3 layers"  # of no one model with the other groups, so bytes have no common measure
SET, PARTIES, ROUNDS, EPOCHS, BATCH, LAYERS = "sst2", 4, 2, 3, 8, 3
RATE, PUBLIC_RATE = 3e-4, 6e-5  # tried on seed 100 alone, beside no other rate to its end
UNLIKE_DEPTHS = (2, 3, 4, 5, LAYERS)  # of the parties, and of the host


@dataclass(frozen=True, slots=True)
class Setting:
    """Hospitals that are not alike."""

    title: str
    alpha: float
    depths: tuple[int, ...] = ()


SETTINGS = (
    Setting("skewed, α = 0.3", 0.3),
    Setting("skewed, α = 1", 1.0),
    Setting("skewed, α = 0.1", 0.1),
    Setting("skewed, α = 0.3, unlike depths", 0.3, UNLIKE_DEPTHS),
)
CONTROLS: Mapping[str, tuple[Control, Method]] = {
    "Host alone": ("host alone", {"name": "centralized"}),
    "Mean prediction": ("mean prediction", {"name": "local"}),
}
METHODS: Mapping[str, Method] = {
    "FedID, our default": {"name": "fedid", "alone": 0},  # two rounds have no time for that
    "DS-FL": {"name": "dsfl", "alone": 0},
    "MHAT": {"name": "mhat", "alone": 0},
    "FedKD (Gong)": {"name": "gong"},
}
BESIDE: Mapping[str, Method] = {  # in the first setting only
    "FedID, our default, host without labels": {"name": "fedid", "alone": 0, "labelled": False},
    "FedID, as printed": {"name": "fedid", **PRINTED, "feedback_batch": BATCH},
    "DS-FL, own shares divided": {"name": "dsfl", "alone": 0, "own_shares": "divided"},
    "MHAT, own shares divided": {"name": "mhat", "alone": 0, "own_shares": "divided"},
}


def skewed(seed: int) -> Iterator[Cell]:
    """All settings with one seed."""
    for setting in SETTINGS:
        for method, (control, algorithm) in CONTROLS.items():
            yield replace(_cell(setting, method, algorithm, seed), control=control)
        methods = {**METHODS, **BESIDE} if setting is SETTINGS[0] else METHODS
        for method, algorithm in methods.items():
            yield _cell(setting, method, algorithm, seed)


def _cell(setting: Setting, method: str, algorithm: Method, seed: int) -> Cell:
    once = algorithm["name"] == "gong"  # one shot: as much training and distillation, at once
    plan: Method = {"rounds": 1 if once else ROUNDS, "epochs": ROUNDS * EPOCHS if once else EPOCHS}
    if method not in CONTROLS:
        times = ROUNDS if once else 1
        plan |= {"distill_epochs": times, "distill_learning_rate": PUBLIC_RATE}
    return Cell(
        DATA,
        method,
        seed,
        Spread((SET,), PARTIES, train=800, dev=60, alpha=setting.alpha, public=0.5),
        algorithm | plan,
        {"layers": LAYERS, "pooling": "attentive"},
        {"learning_rate": RATE, "batch_size": BATCH, "precision": "bfloat16"},
        {"mode": "none"},
        32,
        setting.title,
        depths=setting.depths if method not in CONTROLS else (),
    )
