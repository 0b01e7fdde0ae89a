"""FedID (Ma et al., EMNLP 2023): Tables 1 to 4, Figures 2 to 4, and noise on the ensemble.

Half of a set's training records are private, half public; the host keeps a tenth of the public
ones with labels. Members of the heterogeneous tables hold different depths of one checkpoint. The
figure is the central model's, for FedAvg and Centralized the one model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.tables.base import CONSTANT, Budget, Table, audited
from benchmarks.evidence.tables.fedid_sizes import (
    BATCHES,
    MORE,
    PRINTED,
    SCALES,
    SWEEPS,
    WITH_MORE,
    Scale,
)
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
CROSS = {"sst2": "imdb"}  # Table 3

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
# Of two guesses why FedID is behind the others with more records: its parties' steps move the mean
# prediction too far within a round, or the others' hosts have the better of it by learning labels,
# which the paper says of them in Section 5.9 and not of its tables.
GENTLER: Mapping[str, Method] = {
    "FedID, gentler still": {"name": "fedid", "distill_learning_rate": GENTLE / 5}
}
STILL: Mapping[str, Method] = {
    "FedID, predicted once a round": {"name": "fedid", "batches_per_exchange": BATCHES}
}
UNAIDED: Mapping[str, Method] = {
    f"{method}, host without labels": {"name": name, "labelled": False}
    for method, name in (
        ("FedDF", "feddf"),
        ("FedED", "feded"),
        ("FedKD (Gong)", "gong"),
        ("DS-FL", "dsfl"),
        ("MHAT", "mhat"),
    )
}
ABLATED_BY_BOTH: Mapping[str, Method] = {  # in Table 4
    "FedID": FEDID,
    "without g_feedback": {"name": "fedid", "feedback": "none"},
    "without g_distill": {"name": "fedid", "distill": False},
}
ABLATIONS: Mapping[str, Method] = {
    **ABLATED_BY_BOTH,
    "the derivative as feedback": {
        "name": "fedid",
        "feedback": "exact",
        "host_learning_rate": 0.05,  # of plain gradient descent
    },
    "votes": {"name": "fedid", "targets": "hard"},
}
ABLATED = ("rte", "sst2")
WITHOUT_HOST = ("centralized", "fedavg")
NOISE = (8.0, 64.0)  # ε of a hospital, over the whole run
FORCED = "ε for a hospital as a whole, of so few hospitals: the noise drowns the signal, by force"


def cells(budget: Budget, seed: int) -> Iterator[Cell]:
    """Tables 1 and 2 on every set, the others on those that the paper took and that are here."""
    scale = SCALES[budget]
    for data in scale.sets:
        for alpha in ALPHAS:
            yield from _rows(f"homogeneous, α = {alpha:g}", data, ALIKE, scale, seed, alpha)
        yield from _unlike(data, DISTILLED, scale, seed)
    for data, elsewhere in CROSS.items():
        for cell in _rows(f"cross-domain, to {elsewhere}", data, DISTILLED, scale, seed):
            yield replace(cell, spread=replace(cell.spread, public_set=elsewhere))
    for data in (name for name in scale.sets if name in ABLATED):
        yield from _rows("Table 4", data, ABLATIONS, scale, seed)
    if budget == "cpu":
        yield from _with_more(seed)
        yield from skewed(seed)
    yield from _noised("sst2", scale, seed)
    yield from _sweeps("sst2", budget, seed)
    if not seed:
        yield from _attacked("sst2", scale, seed)


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


def _unlike(
    data: str, methods: Mapping[str, Method], scale: Scale, seed: int, title: str = ""
) -> Iterator[Cell]:
    """Table 2: depths of the parties in turn, and the host's at the end."""
    own = tuple(scale.depths[k % len(scale.depths)] for k in range(scale.parties))
    group = f"heterogeneous, α = {ALPHA:g}{title}"
    for cell in _rows(group, data, methods, scale, seed):
        yield replace(cell, depths=(*own, scale.depth))


def _with_more(seed: int) -> Iterator[Cell]:
    """Tables 1, 2 and 4 once more, with more records."""
    for data in MORE.sets:
        for alpha in ALPHAS:
            guesses = {**GENTLER, **STILL, **UNAIDED} if alpha == ALPHA else GENTLER
            methods = {**ALIKE, **guesses}
            group = f"homogeneous, α = {alpha:g}{WITH_MORE}"
            yield from _rows(group, data, methods, MORE, seed, alpha)
        yield from _unlike(data, {**DISTILLED, **GENTLER}, MORE, seed, WITH_MORE)
        yield from _rows(f"Table 4{WITH_MORE}", data, ABLATED_BY_BOTH, MORE, seed)


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


def _sweeps(data: str, budget: Budget, seed: int) -> Iterator[Cell]:
    """Figures 2, 3 and 4: public records, labelled records, clients."""
    sweep = SWEEPS[budget]
    varied: Mapping[str, dict[str, Any]] = {
        **{f"Figure 2: {n} public records": {"public_size": n} for n in sweep.public},
        **{f"Figure 3: {n} labelled records": {"labelled_size": n} for n in sweep.labelled},
        **{f"Figure 4: {n} parties": {"parties": n} for n in sweep.parties},
    }
    methods = {name: DISTILLED[name] for name in sweep.methods}
    for group, changes in varied.items():
        for cell in _rows(group, data, methods, SCALES[budget], seed):
            yield replace(cell, spread=replace(cell.spread, **changes))


def _attacked(data: str, scale: Scale, seed: int) -> Iterator[Cell]:
    """What coordinator, host and hospitals could find out, of every way to distil."""
    others = ("FedAvg", "FedDF", "FedKD (Gong)", "DS-FL", "MHAT")
    yield from map(audited, _rows("Leakage", data, {m: ALIKE[m] for m in others}, scale, seed))
    for method, protection in {"FedID": {}, "FedID, unprotected": {"mode": "none"}}.items():
        cell = audited(_cell("Leakage", data, method, FEDID, scale, seed))
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
