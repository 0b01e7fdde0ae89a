"""Time of a simulated round by its parts, for every algorithm of the three papers.

All parties run in one process and thread. *Models* is the work of the parties' models: training,
and predictions on public records. The rest is overhead: factors, protection, messages, sessions.
Evaluation does not count. Overhead depends on the model's size and not on the records, so it is
measured with few records and computed for a usual epoch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks import checkpoint
from benchmarks.datasets import Spread, silos
from benchmarks.evidence.cells import Cell, sections
from benchmarks.measuring import one_thread
from benchmarks.report import Columns, Grid, Report, Target
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
MODELS = ("train", "predict")
PROTECTION = ("seal", "unmask", "open")
ASIDE = ("evaluate", "load model", "tokenise")
COLUMNS: Columns = {
    "algorithm": "{r.algorithm}",
    "protection": "{r.mode}",
    **{
        what: f"{{r.{what}:.1f}}" for what in ("seconds", "models", "factors", "protecting", "rest")
    },
    "round / models": "{r.over:.2f}",
}


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One algorithm with one protection: seconds of all rounds of all members."""

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
        """Seconds of the round over those of its models."""
        return self.seconds / self.models

    def usually(self, records: int) -> float:
        """Compute the same for an epoch of `USUAL` records, from one with `records`."""
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
    found = checkpoint.find(model)
    for_all = {"records": records, "batch": batch}
    with one_thread():
        rows = [_row(name, mode, found, seed, **for_all) for name in names for mode in MODES]
    sizes = {**for_all, "parties": PARTIES, "rounds": ROUNDS, "model": found.identity}

    def usual(row: RoundRow) -> str:
        return f"{row.usually(records):.2f}"

    title = f"{ROUNDS} rounds of {PARTIES} parties in one process and thread, seconds"
    return Report(
        "round",
        sizes,
        seed,
        {"rows": [_plain(row, records) for row in rows]},
        [Grid.of(title, rows, {**COLUMNS, f"of {USUAL} records": usual})],
        [
            Target(
                f"{row.algorithm}, in the clear: a round of {USUAL} records over its models' part",
                LIMIT,
                row.usually(records),
            )
            for row in rows
            if row.mode == "none"
        ],
    )


def _row(
    name: str, mode: Mode, model: checkpoint.Checkpoint, seed: int, *, records: int, batch: int
) -> RoundRow:
    """Run one federation and read the seconds of its phases."""
    cell = _cell(name, mode, seed, records, batch)
    algorithm, found = sections(cell, model)
    members = silos(cell.spread, None, seed)
    options: dict[str, Any] = dict(found)
    seconds = Federation(members, algorithm, seed=seed, **options).run().document["seconds"]
    own = seconds["party"].values()

    def taken(*phases: str) -> float:
        return float(sum(party.get(phase, 0.0) for party in own for phase in phases))

    coordinator = seconds["coordinator"]
    return RoundRow(
        name,
        mode,
        coordinator["run"] - taken(*ASIDE),
        taken(*MODELS),
        taken("factorise"),
        taken(*PROTECTION) + coordinator.get("add", 0.0) + coordinator.get("answer", 0.0),
    )


def _cell(name: str, mode: Mode, seed: int, records: int, batch: int) -> Cell:
    """Define a run with the same number of private and public records for every algorithm."""
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


def _plain(row: RoundRow, records: int) -> dict[str, Any]:
    return asdict(row) | {"rest": row.rest, "over": row.over, "usually": row.usually(records)}
