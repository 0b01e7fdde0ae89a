"""FedID (Ma et al., EMNLP 2023): Tables 1 to 4, Figures 2 to 4, and noise on the ensemble.

Half of a set's training records are private, half public; the host keeps a tenth of the public
ones with labels. Members of the heterogeneous tables hold different depths of one checkpoint. The
figure is the central model's, for FedAvg and Centralized the one model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from secure_fl.benchmarks.cells import Cell
from secure_fl.benchmarks.datasets import Spread
from secure_fl.benchmarks.tables.base import Budget, Table, audited

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
ONCE = frozenset({"rte", "cola", "wnli"})  # on two cores the first seed only


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run learns from, and how long its texts are."""

    train: int | None
    dev: int | None
    test: int | None
    max_length: int


@dataclass(frozen=True, slots=True)
class Scale:
    """One budget: the sets, the members, the rounds."""

    sets: Mapping[str, Size]
    parties: int
    rounds: int
    epochs: int
    distill_epochs: int
    depth: int  # of every model where all are alike, and of the host's
    depths: tuple[int, ...]  # of the parties' models where they are not; repeated in turn
    batch: int


SCALES: Mapping[Budget, Scale] = {
    "cpu": Scale(
        {
            "rte": Size(320, 60, 200, 64),
            "cola": Size(400, 60, 300, 24),
            "wnli": Size(320, 60, 71, 48),
            "sst2": Size(400, 60, 300, 32),
        },
        parties=4,
        rounds=2,
        epochs=5,
        distill_epochs=2,
        depth=6,
        depths=(3, 4, 5, 6),
        batch=8,
    ),
    "gpu": Scale(
        {
            "rte": Size(None, None, None, 128),
            "cola": Size(None, None, None, 64),
            "wnli": Size(None, None, None, 128),
            "sst2": Size(None, None, None, 64),
        },
        parties=10,
        rounds=10,
        epochs=3,
        distill_epochs=3,
        depth=6,
        depths=(3, 4, 6),
        batch=32,
    ),
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """What Figures 2 to 4 vary, beside Table 1's own point."""

    methods: tuple[str, ...]
    public: tuple[int, ...]
    labelled: tuple[int, ...]
    parties: tuple[int, ...]


SWEEPS: Mapping[Budget, Sweep] = {
    "cpu": Sweep(("DS-FL", "FedID"), public=(45, 90), labelled=(10,), parties=(8,)),
    "gpu": Sweep(
        ("FedKD (Gong)", "DS-FL", "MHAT", "FedID"),
        public=(400, 800, 1600, 3200),
        labelled=(40, 80, 160, 320),
        parties=(5, 20),
    ),
}

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
ABLATIONS: Mapping[str, Method] = {
    "FedID": FEDID,
    "without g_feedback": {"name": "fedid", "feedback": "none"},
    "without g_distill": {"name": "fedid", "distill": False},
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
    for data in _sets(budget, seed):
        for alpha in ALPHAS:
            for method, algorithm in ALIKE.items():
                yield _cell(f"homogeneous, α = {alpha:g}", data, method, algorithm, budget, seed)
        for method, algorithm in DISTILLED.items():
            depths = _depths(scale)
            group = f"heterogeneous, α = {ALPHA:g}"
            yield _cell(group, data, method, algorithm, budget, seed, depths=depths)
    for data, elsewhere in CROSS.items():
        for method, algorithm in DISTILLED.items():
            group = f"cross-domain, to {elsewhere}"
            yield _cell(group, data, method, algorithm, budget, seed, public_set=elsewhere)
    for data in (name for name in _sets(budget, seed) if name in ABLATED):
        for method, algorithm in ABLATIONS.items():
            yield _cell("Table 4", data, method, algorithm, budget, seed)
    yield from _noised("sst2", budget, seed)
    if budget == "gpu" or not seed:
        yield from _sweeps("sst2", budget, seed)
    if not seed:
        yield from _attacked("sst2", budget, seed)


def _sets(budget: Budget, seed: int) -> Sequence[str]:
    """On two cores one seed of the sets that showed least to learn, or are expected to."""
    once = ONCE if budget == "cpu" and seed else ()
    return [name for name in SCALES[budget].sets if name not in once]


def _noised(data: str, budget: Budget, seed: int) -> Iterator[Cell]:
    """What it costs to protect a hospital as a whole, where there are few; and no protection."""
    alike = FEDID | {"counted": "parties"}
    group = "noise on the ensemble"
    yield _cell(group, data, "FedID, without noise", alike, budget, seed)
    unprotected = _cell(group, data, "FedID, unprotected", alike, budget, seed)
    yield replace(unprotected, protection={"mode": "none"})
    for epsilon in NOISE:
        protection = {"noise": {"epsilon": epsilon, "delta": 1e-3, "force": True}}
        cell = _cell(group, data, f"FedID, ε = {epsilon:g}", alike, budget, seed)
        yield replace(cell, protection=protection, mark=FORCED)


def _sweeps(data: str, budget: Budget, seed: int) -> Iterator[Cell]:
    """Figures 2, 3 and 4: public records, labelled records, clients."""
    sweep = SWEEPS[budget]
    for method in sweep.methods:
        algorithm = DISTILLED[method]
        for size in sweep.public:
            group = f"Figure 2: {size} public records"
            yield _cell(group, data, method, algorithm, budget, seed, public_size=size)
        for size in sweep.labelled:
            group = f"Figure 3: {size} labelled records"
            yield _cell(group, data, method, algorithm, budget, seed, labelled_size=size)
        for parties in sweep.parties:
            cell = _cell(f"Figure 4: {parties} parties", data, method, algorithm, budget, seed)
            yield replace(cell, spread=replace(cell.spread, parties=parties))


def _attacked(data: str, budget: Budget, seed: int) -> Iterator[Cell]:
    """What coordinator, host and hospitals could find out, of every way to distil."""
    for method, algorithm in {
        "FedAvg": ALIKE["FedAvg"],
        "FedDF": ALIKE["FedDF"],
        **DISTILLED,
    }.items():
        yield audited(_cell("Leakage", data, method, algorithm, budget, seed))
    cell = audited(_cell("Leakage", data, "FedID, unprotected", FEDID, budget, seed))
    yield replace(cell, protection={"mode": "none"})


def _depths(scale: Scale) -> tuple[int, ...]:
    """Of the parties in turn, and the host's at the end."""
    own = tuple(scale.depths[k % len(scale.depths)] for k in range(scale.parties))
    return (*own, scale.depth)


def _cell(
    group: str,
    data: str,
    method: str,
    algorithm: Method,
    budget: Budget,
    seed: int,
    *,
    depths: tuple[int, ...] = (),
    **spread: Any,
) -> Cell:
    scale = SCALES[budget]
    size, name = scale.sets[data], algorithm["name"]
    alpha = float(group.rpartition("= ")[2]) if "α" in group else ALPHA
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
            **spread,
        ),
        algorithm | epochs | rates,
        {"layers": scale.depth, "pooling": "attentive"},
        {"learning_rate": RATE, "batch_size": scale.batch, "precision": "bfloat16"},
        {},
        size.max_length,
        group,
        "",
        depths,
    )


TABLE = Table("fedid", "FedID on real text", cells, reference="FedAvg")
