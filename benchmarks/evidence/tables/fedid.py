"""FedID (Ma et al., EMNLP 2023): Tables 1, 2 and 4 as printed, and settings in which it could pay.

Half of a set's training records are private, half public; the host keeps a tenth of the public
ones with labels. Members of the heterogeneous table hold different depths of one checkpoint. The
figure is the central model's, for FedAvg and Centralized the one model's. What few records cannot
teach any method (rte, cola, wnli) is not run on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import CONSTANT, Table, audited
from benchmarks.evidence.tables.fedid_sizes import EARLIER, PRINTED, SCALE, Scale
from benchmarks.evidence.tables.fedid_skewed import skewed

Method = dict[str, Any]

# Of training, and of the host's steps. At 3e-4 the central models of FedED, DS-FL and MHAT end at
# one class for every record; at 1e-4 none does, and local training learns as much.
RATE = 1e-4
# Of the parties' steps on public records. At the rate of training, all models drift within a dozen
# steps to the mean of their predictions, which is the classes' frequency and says nothing.
GENTLE = 2e-5
ALPHAS = (100.0, 1.0)  # alike, and not alike; the paper's
ALPHA = 1.0  # where nothing else is said

FEDID: Method = {"name": "fedid"}
DISTILLED: Mapping[str, Method] = {
    "FedKD (Gong)": {"name": "gong"},
    "DS-FL": {"name": "dsfl"},
    "MHAT": {"name": "mhat"},
    "FedID": FEDID,
}
ALIKE: Mapping[str, Method] = {
    "Centralized": {"name": "centralized"},
    "FedAvg": {"name": "fedavg"},
    "FedDF": {"name": "feddf"},
    "FedED": {"name": "feded"},
    **DISTILLED,
}
ABLATED: Mapping[str, Method] = {  # in Table 4
    "FedID": FEDID,
    "without g_feedback": {"name": "fedid", "feedback": "none"},
    "without g_distill": {"name": "fedid", "distill": False},
}
WITHOUT_HOST = ("centralized", "fedavg")
NOISE = (8.0, 64.0)  # ε of a hospital, over the whole run
FORCED = "ε for a hospital as a whole, of so few hospitals: the noise drowns the signal, by force"


def cells(seed: int) -> Iterator[Cell]:
    """Tables 1, 2 and 4 as printed, skewed hospitals, noise, and what a first round gives away."""
    scale = SCALE
    for data in scale.sets:
        for alpha in ALPHAS:
            yield from _rows(f"homogeneous, α = {alpha:g}", data, ALIKE, scale, seed, alpha)
        own = tuple(scale.depths[k % len(scale.depths)] for k in range(scale.parties))
        for cell in _rows(f"heterogeneous, α = {ALPHA:g}", data, DISTILLED, scale, seed):
            yield replace(cell, depths=(*own, scale.depth))
        yield from _rows("Table 4", data, ABLATED, scale, seed)
    yield from skewed(seed)
    yield from _noised("sst2", EARLIER, seed)
    if not seed:
        yield from _attacked("sst2", EARLIER)


def _rows(
    group: str,
    data: str,
    methods: Mapping[str, Method],
    scale: Scale,
    seed: int,
    alpha: float = ALPHA,
) -> Iterator[Cell]:
    for method, algorithm in methods.items():
        yield _cell(group, data, method, algorithm, scale, seed, alpha)


def _noised(data: str, scale: Scale, seed: int) -> Iterator[Cell]:
    """What it costs to protect a hospital as a whole, where there are few; and no protection."""
    alike = FEDID | {"counted": "parties"}
    group = "noise on the ensemble"
    yield _cell(group, data, "FedID, without noise", alike, scale, seed)
    unprotected = _cell(group, data, "FedID, unprotected", alike, scale, seed)
    yield replace(unprotected, protection={"mode": "none"})
    for epsilon in NOISE:
        protection = {"noise": {"epsilon": epsilon, "delta": 1e-3, "force": True}}
        cell = _cell(group, data, f"FedID, ε = {epsilon:g}", alike, scale, seed)
        yield replace(cell, protection=protection, mark=FORCED)


def _attacked(data: str, scale: Scale) -> Iterator[Cell]:
    """What coordinator, host and hospitals could find out, of every way to distil."""
    others = ("FedAvg", "FedDF", "FedKD (Gong)", "DS-FL", "MHAT")
    yield from map(audited, _rows("Leakage", data, {m: ALIKE[m] for m in others}, scale, 0))
    for method, protection in {"FedID": {}, "FedID, unprotected": {"mode": "none"}}.items():
        cell = audited(_cell("Leakage", data, method, FEDID, scale, 0))
        # A tenth of so few public records is less than the batch that feedback takes.
        yield replace(cell, spread=replace(cell.spread, labelled=0.2), protection=protection)


def _cell(
    group: str,
    data: str,
    method: str,
    algorithm: Method,
    scale: Scale,
    seed: int,
    alpha: float = ALPHA,
) -> Cell:
    size, name = scale.sets[data], algorithm["name"]
    if name in ("dsfl", "mhat"):
        algorithm = {"alone": 0} | algorithm  # as in their papers
    if name == "fedid":
        algorithm = {**PRINTED, "feedback_batch": scale.batch} | algorithm
    epochs, rates = {"rounds": scale.rounds, "epochs": scale.epochs}, {}
    if name == "gong":  # one shot: as much local training, and as much distillation, at once
        epochs = {"rounds": 1, "epochs": scale.rounds * scale.epochs}
    if name not in WITHOUT_HOST:
        times = scale.rounds if name == "gong" else 1
        epochs["distill_epochs"] = scale.distill_epochs * times
        rates = {"distill_learning_rate": GENTLE}
    return Cell(
        data,
        method,
        seed,
        Spread(
            (data,),
            scale.parties,
            train=size.train,
            dev=size.dev,
            test=size.test,
            alpha=alpha,
            public=0.5,
            hosted=name not in WITHOUT_HOST,
        ),
        rates | algorithm | epochs,
        {"layers": scale.depth, "pooling": "attentive"},
        CONSTANT | {"learning_rate": RATE, "batch_size": scale.batch, "precision": "bfloat16"},
        {},
        size.max_length,
        group,
    )


TABLE = Table("fedid", "FedID on real text", cells, reference="FedAvg")
