"""What is learned with nothing but a model and records given: every algorithm, at its defaults.

Sets, sizes and the seed are said here; all else is what the library does if nobody says anything.
Sums are in the clear: sealing changes scores by less than seeds do (docs/results.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.checkpoint import BUILT_IN
from benchmarks.collection import SETS, DataSet
from benchmarks.datasets import Spread
from benchmarks.evidence.cells import Cell, Outcome
from benchmarks.evidence.kept import Kept
from benchmarks.evidence.one_class import one_class
from benchmarks.evidence.papers import measure as finish
from benchmarks.evidence.papers import plan
from benchmarks.evidence.tables.base import Table
from benchmarks.report import Report, Target, table
from secure_fl.algorithms.inclusivefl.settings import Tiered
from secure_fl.algorithms.registry import BUILT_IN as ALGORITHMS
from secure_fl.algorithms.registry import Entry
from secure_fl.errors import SettingsError

NAME = "defaults"
SEED, PARTIES = 7, 4  # settings were chosen on seed 107
WORK = Path(__file__).parents[2] / "docs" / "results" / NAME
PUBLIC, LABELLED = 0.5, 0.2  # of the records, and of the public ones, where there is a host
TIERS = ("weak", "weak", "medium", "strong")
COLUMNS = (
    "set",
    "algorithm",
    "score",
    "",
    "most frequent answer",
    "largest class",
    "at one class",
    "CPU s",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many records a set has in all parts together."""

    train: int
    dev: int
    test: int
    of: str = ""  # the set, if the title is not its name


SIZES: Mapping[str, Sizes] = {
    "built-in ade": Sizes(1600, 100, 400),  # as many as it has unless asked for others
    "built-in ner": Sizes(1600, 100, 400),
    "built-in pairs": Sizes(2000, 100, 400),
    "sst2": Sizes(300, 20, 200),
    "ade_cls": Sizes(300, 20, 200),
    "ade_cls, 2,000 records": Sizes(2000, 20, 200, of="ade_cls"),
    "qnli": Sizes(2000, 20, 200),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one run."""

    set: str
    algorithm: str
    model: str  # empty: there is one
    metric: str
    score: float
    auroc: float | None  # how well it ranks two classes, whatever it answers
    answers: Mapping[str, float]
    one_class: bool
    cpu_seconds: float

    @property
    def name(self) -> str:
        """The algorithm, and which of its models, if there are several."""
        return f"{self.algorithm} [{self.model}]" if self.model else self.algorithm


def measure(
    sets: Sequence[str] = tuple(SIZES),
    only: str = "",
    records: int | None = None,
    work: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Report:
    """Run what is missing in the work folder, and judge all that it holds of these sets.

    `records`: other sizes than those of the evidence, which are kept only where `work` says.
    """
    if work is None and records is not None:
        with TemporaryDirectory(prefix="defaults-") as folder:
            return measure(sets, only, records, Path(folder), tell)
    started, work = time.perf_counter(), work or WORK
    made = cells(sets, only, records)
    planned = plan(Table(NAME, NAME, lambda _: made), seeds=1)
    finish(planned, work=work, tell=tell)
    kept = Kept(work).cells
    found = [(cell, kept[key]) for key, cell in planned.cells if key in kept]
    return report(found, time.perf_counter() - started)


def cells(sets: Iterable[str], only: str = "", records: int | None = None) -> list[Cell]:
    """A cell for each set and each algorithm that can learn it."""
    return [
        cell(title, algorithm, records)
        for title in sets
        for algorithm, entry in ALGORITHMS.items()
        if not entry.trains_nothing and only in algorithm
        if not (entry.has_host and set_of(title).kind == "ner")
    ]


def set_of(title: str) -> DataSet:
    """The set behind a title."""
    if title not in SIZES:
        fix = f"there are {'; '.join(SIZES)}"
        raise SettingsError(f"nothing is measured on {title!r}", fix=fix, option="--set")
    return SETS[SIZES[title].of or title]


def cell(title: str, algorithm: str, records: int | None = None) -> Cell:
    """Nothing but records and a model: the built-in one for built-in records."""
    about, size, entry = set_of(title), SIZES[title], ALGORITHMS[algorithm]
    sets = (size.of or title,)
    spread = Spread(sets, PARTIES, records or size.train, dev=size.dev, test=size.test)
    return Cell(
        title,
        algorithm,
        SEED,
        _dealt(spread, entry),
        {"name": algorithm},
        {"name": BUILT_IN} if about.corpus is not None else {},
        protection={"mode": "none", "min_cohort": 1},  # two hospitals in a tier, or one
        max_length=128,
    )


def _dealt(spread: Spread, entry: Entry) -> Spread:
    if entry.has_host:
        return replace(spread, public=PUBLIC, labelled=LABELLED)
    if issubclass(entry.settings, Tiered) or entry.name == "heterofl":
        return replace(spread, tiers=TIERS)
    return spread


def rows(cell: Cell, outcome: Outcome) -> list[Row]:
    """A row for each model that a run leaves behind."""
    last, metric, listed = outcome["metrics"]["last"], outcome["metric"], []
    for model, answers in outcome["answers"].items():
        split = f"{model}/test" if model else "test"
        scores = last.get("pooled", {}).get(split) or last["mean"][split]
        listed.append(
            Row(
                cell.data,
                cell.method,
                model,
                metric,
                round(scores[metric], 4),
                scores.get("auroc"),
                answers,
                one_class(answers),
                round(outcome["cpu_seconds"], 1),
            )
        )
    return listed


def report(found: Sequence[tuple[Cell, Outcome]], seconds: float) -> Report:
    """All rows, and how many models are at one class."""
    listed = [row for cell, outcome in found for row in rows(cell, outcome)]
    bad = sum(row.one_class for row in listed)
    sizes: dict[str, Any] = {"parties": PARTIES, "cells": len(found)}
    return Report(
        NAME,
        sizes | {name: asdict(SIZES[name]) for name in dict.fromkeys(row.set for row in listed)},
        SEED,
        {"rows": [asdict(row) for row in listed]},
        [table("every algorithm at its defaults", COLUMNS, [_shown(row) for row in listed])],
        (Target("models at one class", 0, bad),),
        seconds=seconds,
    )


def _shown(row: Row) -> tuple[str, ...]:
    most, largest = row.answers.get("answers"), row.answers.get("majority")
    return (
        row.set,
        row.name,
        f"{100 * row.score:.1f}",
        row.metric,
        f"{most:.0%}" if most is not None else "-",
        f"{largest:.0%}" if largest is not None else "-",
        "YES" if row.one_class else "no",
        f"{row.cpu_seconds:.0f}",
    )
