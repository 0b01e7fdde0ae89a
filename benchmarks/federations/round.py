"""Where the time of a simulated round goes, for every algorithm of the three papers.

K parties in one process and one thread. What a round must contain is what the parties' models
compute: training, and predictions on public records. All else is the simulation's price: factors,
protection, messages, sessions. Evaluation is left out, for nobody has to evaluate in each round.

The price depends on the model's size and not on the records. So few records are enough to measure
it, and what it is of a usual epoch is reckoned.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from benchmarks import checkpoint
from benchmarks.datasets import Spread, silos
from benchmarks.evidence.cells import Cell, Place, sections
from benchmarks.report import Grid, Report, Target
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.federation.federation import Federation

Mode = Literal["none", "he+secagg"]

MODES: tuple[Mode, ...] = ("none", "he+secagg")
LIMIT = 1.1  # of a round in the clear, over the models' own part of it
USUAL = 480  # records of a party in an epoch
NAMES = (
    *("fedavg", "fedadam", "fetchsgd", "feddropout", "fedkd"),
    *("feddf", "feded", "gong", "dsfl", "mhat", "fedid"),
    *("alllarge", "heterofl", "inclusivefl"),
)
TIERS = {"shallow": 2, "deep": 4}  # of three parties each
PARTIES = 6
ROUNDS = 2
SET = "built-in ade"
MODELS = ("train", "predict")  # what parties' models compute
PROTECTION = ("seal", "unmask", "open")
ASIDE = ("evaluate", "load model", "tokenise")
COLUMNS = (
    *("algorithm", "protection", "seconds", "models", "factors", "protecting", "rest"),
    "round / models",
    f"of {USUAL} records",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm under one protection: seconds of all its rounds, of all members."""

    algorithm: str
    mode: Mode
    seconds: float  # without evaluation and what comes before the first round
    models: float
    factors: float  # singular values, bases
    protecting: float  # the coordinator's additions included

    @property
    def rest(self) -> float:
        """Messages, sessions, plain sums."""
        return self.seconds - self.models - self.factors - self.protecting

    @property
    def over(self) -> float:
        """The round over what its models need of it."""
        return self.seconds / self.models

    def usually(self, records: int) -> float:
        """The same of an epoch of `USUAL` records, if it was measured with so many."""
        return 1 + (self.over - 1) * records / USUAL


def measure(
    *,
    records: int = 48,
    batch: int = 16,
    model: str | None = None,
    names: tuple[str, ...] = NAMES,
    seed: int = 0,
) -> Report:
    """Run each algorithm in the clear and sealed; `records` are each party's."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    found = checkpoint.find(model)
    torch.set_num_threads(1)
    try:
        for_all = {"records": records, "batch": batch}
        rows = [
            _row(name, mode, Place(None, found), seed, **for_all)
            for name in names
            for mode in MODES
        ]
    finally:
        torch.set_num_threads(threads)
    sizes = {**for_all, "parties": PARTIES, "rounds": ROUNDS, "model": found.identity}
    title = f"{ROUNDS} rounds of {PARTIES} parties in one process and thread, seconds"
    return Report(
        "round",
        sizes,
        seed,
        {"rows": [_plain(row, records) for row in rows]},
        [Grid(title, COLUMNS, [_cells(row, records) for row in rows])],
        [
            Target(
                f"{row.algorithm}, in the clear: a round of {USUAL} records over its models' part",
                LIMIT,
                row.usually(records),
            )
            for row in rows
            if row.mode == "none"
        ],
        seconds=time.perf_counter() - started,
    )


def _row(name: str, mode: Mode, place: Place, seed: int, *, records: int, batch: int) -> Row:
    """One federation; its own result says where the time went."""
    cell = _cell(name, mode, seed, records, batch)
    algorithm, found = sections(cell, place.model)
    members = silos(cell.spread, None, seed)
    options: dict[str, Any] = dict(found)
    seconds = Federation(members, algorithm, seed=seed, **options).run().document["seconds"]
    own = seconds["party"].values()

    def taken(*phases: str) -> float:
        return float(sum(party.get(phase, 0.0) for party in own for phase in phases))

    coordinator = seconds["coordinator"]
    return Row(
        name,
        mode,
        coordinator["run"] - taken(*ASIDE),
        taken(*MODELS),
        taken("factorise"),
        taken(*PROTECTION) + coordinator.get("add", 0.0) + coordinator.get("answer", 0.0),
    )


def _cell(name: str, mode: Mode, seed: int, records: int, batch: int) -> Cell:
    """As many records for each party, and as many public ones, whatever the algorithm."""
    hosted, tiered = ALGORITHMS[name].has_host, "tiers" in ALGORITHMS[name].settings.model_fields
    private = records * PARTIES
    spread = Spread(
        (SET,),
        PARTIES,
        train=private + records + batch if hosted else private,
        dev=8,
        test=8,
        tiers=tuple(tier for tier in TIERS for _ in range(PARTIES // 2)) if tiered else (),
        public=(records + batch) / (private + records + batch) if hosted else 0.0,
        labelled=batch / (records + batch),
    )
    rounds = 1 if name == "gong" else ROUNDS  # it exchanges once
    settings = {"name": name, "rounds": rounds} | ({"tiers": TIERS} if tiered else {})
    training = {"batch_size": batch, "precision": "bfloat16", "learning_rate": 1e-4}
    protection = {"mode": mode}
    return Cell(SET, name, seed, spread, settings, {"layers": 4}, training, protection, 64)


def _plain(row: Row, records: int) -> dict[str, Any]:
    return asdict(row) | {"rest": row.rest, "over": row.over, "usually": row.usually(records)}


def _cells(row: Row, records: int) -> list[str]:
    parts = (row.seconds, row.models, row.factors, row.protecting, row.rest)
    times = (row.over, row.usually(records))
    return [row.algorithm, row.mode, *(f"{p:.1f}" for p in parts), *(f"{t:.2f}" for t in times)]
