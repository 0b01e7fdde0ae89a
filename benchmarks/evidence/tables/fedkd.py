"""FedKD (Wu et al., arXiv 2108.13323): Tables 2 and 3, and Figures 2 and 6.

ade_cls replaces the paper's tweets on drug reactions, sst2 its news ranking. Our checkpoint has 6
layers, the paper's 12, so students are compared by their share of the layers: the paper's of 4
layers with ours of 2, its of 2 with ours of 1. Bytes are compared with FedAvg of the whole model,
the paper's row "federated".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.claims import PLAIN_FEDAVG, Arm, Claim
from benchmarks.evidence.tables.base import Section, Table

Method = Mapping[str, Any]

PARTIES = 4
NONE, SEALED = {"mode": "none"}, {"mode": "he+secagg", "bits": 4}
PAIRED = 3  # seeds of rows that are also run in the clear


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates, decaying to zero over a run: the best of those tried on seed 7."""

    alone: float  # of models that are not averaged: Local, teachers
    averaged: float  # of whole models that are averaged: 4e-4, of it and 2e-4
    shallow: float  # of shallow ones, students among them: 8e-4, of 2e-4, 4e-4 and it. A student
    # that is its teacher's first layers is part of a whole model that is averaged


LENGTHS = {"ade_cls": 40, "sst2": 32}
ROUNDS = 3
RATES = Rates(alone=2e-4, averaged=4e-4, shallow=8e-4)


def fedkd(layers: int, protection: Method = SEALED, **settings: Any) -> Method:
    """Define a row of the paper's method, with two networks by default."""
    usual = {"name": "fedkd", "student_layers": layers, "factors": "joint", "tied": False}
    return {"algorithm": usual | settings, "protection": protection}


def shallow(layers: int) -> Method:
    """Define a row of a shallow model that learns without a teacher."""
    return {"algorithm": {"name": "fedavg"}, "model": {"layers": layers}}


LOCAL, FEDAVG, SHALLOW, FEDKD = "Local", "FedAvg", "FedAvg, first 2 layers", "FedKD 2"
LABELS_ONLY, ONE_NETWORK = "FedKD 2, labels only", "FedKD 2, one network"
METHODS: Mapping[str, Method] = {
    LOCAL: {"algorithm": {"name": "local"}},
    FEDAVG: {"algorithm": {"name": "fedavg"}},
    SHALLOW: shallow(2),
    FEDKD: fedkd(2),
    LABELS_ONLY: fedkd(2, mutual=False),
}
OURS: Mapping[str, Method] = {ONE_NETWORK: fedkd(2, tied=True)}
ONCE: Mapping[str, Method] = {  # with the first seed only, for their bytes
    "FedAvg, first layer": shallow(1),
    "FedKD 1": fedkd(1),
    "FetchSGD, 4 bits": {"algorithm": {"name": "fetchsgd"}, "protection": SEALED},
}
CLEAR: Mapping[str, Method] = {
    "FedAvg, unprotected": {"algorithm": {"name": "fedavg"}, "protection": NONE},
    "FedKD 2, unprotected": fedkd(2, NONE),
}
STEPS = {"exchange": "gradient", "rounds": 1, "steps": 6}
UPDATES: Mapping[str, Method] = {  # kinds of updates, as matrices and as factors
    "moves by AdamW": fedkd(2, NONE, factors="none"),
    "moves by AdamW, factors": fedkd(2, NONE),
    "moves by SGD": fedkd(2, NONE, factors="none"),
    "moves by SGD, factors": fedkd(2, NONE),
    "gradients": fedkd(2, NONE, factors="none", **STEPS),
    "gradients, factors": fedkd(2, NONE, **STEPS),
}
SGD: Method = {"optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.0}

UNWEIGHTED = {"class_weights": "none"}  # training records are balanced over classes
SCORES, FIGURES = "Tables 2 and 3", "Figures 6 and 7"  # the title of stored cells


def cells(seed: int) -> Iterator[Cell]:
    """Yield Tables 2 and 3 on both sets, and kinds of updates on one."""
    rows = {**METHODS, **OURS, **({} if seed else ONCE), **(CLEAR if seed < PAIRED else {})}
    for data in LENGTHS:
        for method, settings in rows.items():
            yield _cell(SCORES, data, method, settings, seed)
    for method, settings in () if seed else UPDATES.items():
        cell = _cell(FIGURES, "sst2", method, settings, seed)
        if "SGD" in method:  # with the default rate of teachers, a quarter of the students'
            named = {k: v for k, v in cell.algorithm.items() if k != "teacher_learning_rate"}
            cell = replace(cell, training={**cell.training, **SGD}, algorithm=named)
        yield cell


def rated(settings: Method, rates: Rates, rounds: int) -> tuple[Method, Method, float]:
    """Return a row's algorithm, model and learning rate."""
    algorithm = {"rounds": rounds} | settings["algorithm"]
    model = {"pooling": "attentive"} | settings.get("model", {})
    if algorithm["name"] == "fedkd":
        shared = rates.averaged if algorithm["tied"] else rates.shallow
        return algorithm | {"teacher_learning_rate": rates.alone}, model, shared
    if "layers" in model:
        return algorithm, model, rates.shallow
    return algorithm, model, rates.alone if algorithm["name"] == "local" else rates.averaged


def _cell(group: str, data: str, method: str, settings: Method, seed: int) -> Cell:
    algorithm, model, rate = rated(settings, RATES, ROUNDS)
    spread = Spread((data,), PARTIES, 600, even=True, dev=60, test=400)
    training = UNWEIGHTED | {"learning_rate": rate, "batch_size": 8}
    about = settings.get("protection", {}), LENGTHS[data], group
    return Cell(data, method, seed, spread, algorithm, model, training, *about)


def _column(*figures: str) -> Mapping[str, str]:
    """Pair the paper's figures with our rows of the same share of layers."""
    rows = (LOCAL, FEDAVG, SHALLOW, "FedAvg, first layer", "FetchSGD, 4 bits", FEDKD, "FedKD 1")
    return dict(zip(rows, figures, strict=True))


TEACHER, STUDENT, ALONE = Arm(FEDKD), Arm(FEDKD, "student"), Arm(LOCAL)
WHOLE, FIRST_TWO = Arm(FEDAVG), Arm(SHALLOW)
LOCAL_TEACHER = (
    "a teacher learns from one hospital's records only, and it knows little beyond the student, "
    "which learns from all"
)
ADAM = "AdamW makes the entries of a step alike in size, which spreads its energy"


def score_claims(group: str) -> tuple[Claim, ...]:
    """List the paper's claims about scores; they are judged on whole data sets."""
    room = "FedAvg of the whole model is better than its first two layers (room for improvement)."
    near = "FedKD's teachers are at most one point behind FedAvg (the paper: comparable)."
    better = "FedKD's teachers, which the paper uses, are better than local training."
    student = "FedKD's student is better than FedAvg of a model as shallow."
    why, ranking = LOCAL_TEACHER, "FedKD's teachers, average precision"
    return (
        Claim(room, group, WHOLE, (FIRST_TWO,)),
        Claim(better, group, TEACHER, (ALONE,), reason=why),
        Claim(near, group, TEACHER, (WHOLE,), more_than=-1.0, reason=why),
        Claim(student, group, STUDENT, (FIRST_TWO,), reason=why),
        Claim("FedKD's teachers, loss", group, TEACHER, (ALONE,), (), None, "loss"),
        Claim(ranking, group, TEACHER, (ALONE,), ("ade_cls",), None, "average_precision"),
    )


def _cost(method: str, data: str, times: float) -> Claim:
    text = f"{method} takes at most 1/{times} of the bytes of FedAvg (ours at 4 bits)."
    return Claim(text, SCORES, Arm(method), (PLAIN_FEDAVG,), (data,), times, "bytes")


def _factors(kind: str, times: float | None, reason: str = "") -> Claim:
    text = f"Factors of {kind} take at most 1/{times} of the matrices (saving beyond depth)."
    text = text if times else f"Factors of {kind}, in bytes"
    ours, other = Arm(f"{kind}, factors"), (Arm(kind),)
    return Claim(text, FIGURES, ours, other, (), times, "bytes", reason=reason)


MUTUAL = "Mutual distillation lowers the teachers' loss on test records (Figure 2)."
FRUGAL = "FedKD takes fewer bytes than FetchSGD at as many bits."
TIED = "FedKD by our default (one network), teachers"
TABLE = Table(
    "fedkd",
    "FedKD (Wu et al., arXiv 2108.13323)",
    cells,
    reference=FEDAVG,
    sections=(
        Section(
            SCORES,
            'Table 3, "Performance of different methods on SMM4H." ade_cls replaces it: adverse '
            "drug reactions in sentences of case reports, not in tweets. Our rows have the paper's "
            "figures of the same share of layers. In *one network*, our default, the student is "
            "its teacher's first layers.",
            ("ade_cls",),
            {
                "paper: SMM4H, F1": _column(
                    *("53.9 ± 1.1", "60.6 ± 0.4", "58.2 ± 0.5", "56.3 ± 0.6", "59.0 ± 0.8"),
                    *("60.7 ± 0.5", "59.8 ± 0.6"),
                ),
                "paper: GB a client": _column("-", "1.37", "0.46", "0.24", "0.34", "0.12", "0.07"),
            },
        ),
        Section(
            SCORES,
            'Table 2, "Performance of different methods on MIND." News ranking differs from sst2; '
            "only the order of methods and the cost can be compared.",
            ("sst2",),
            {
                "paper: MIND, AUC": _column(
                    *("68.8 ± 0.5", "70.9 ± 0.3", "69.6 ± 0.1", "68.9 ± 0.2", "70.5 ± 0.4"),
                    *("71.0 ± 0.1", "70.5 ± 0.1"),
                ),
                "paper: GB a client": _column("-", "2.05", "0.69", "0.35", "0.51", "0.19", "0.11"),
            },
        ),
        Section(
            FIGURES,
            'Figure 6, "Cumulative energy distributions of singular values of different parameter '
            "gradient matrices\". The paper's text sends gradients, its code sends the moves of an "
            "epoch.",
        ),
    ),
    claims=(
        Claim(MUTUAL, SCORES, TEACHER, (Arm(LABELS_ONLY),), figure="loss"),
        _cost(FEDKD, "ade_cls", 11.4),
        _cost("FedKD 1", "ade_cls", 19.6),
        _cost(FEDKD, "sst2", 10.8),
        _cost("FedKD 1", "sst2", 18.6),
        Claim(FRUGAL, SCORES, TEACHER, (Arm("FetchSGD, 4 bits"),), ("ade_cls",), 1.0, "bytes"),
        _factors("moves by AdamW", 3.7, ADAM),
        _factors("gradients", 3.7),
        _factors("moves by SGD", None),
        Claim(TIED, SCORES, Arm(ONE_NETWORK), (TEACHER, FIRST_TWO, WHOLE), more_than=None),
    ),
    remarks=(
        "FedKD saves bytes by depth and bits, not by rank: AdamW's steps are not low-rank. Scores "
        "on few records are not judged; [whole data sets](whole.md) decide them. Our "
        "default ties the student to its teacher's first layers (D-ALGO-74 in docs/decisions.md)."
    ),
)
