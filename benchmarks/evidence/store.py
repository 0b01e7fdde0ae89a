"""The finished cells of a table: JSON lines, and the match between cells and stored outcomes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import jsonl
from benchmarks.evidence.cells import Cell, Outcome, model_of, request

if TYPE_CHECKING:
    from benchmarks.evidence.tables.base import Table

FILE = "cells.jsonl"
SEEDS = 3  # of a complete table
IDENTITY = ("seed", "spread", "depths", "control", "algorithm", "settings")
DIGITS = 6
Scores = Mapping[str, float]
Finished = tuple[Cell, Outcome]


class Store:
    """The outcomes in a work folder."""

    def __init__(self, work: Path) -> None:
        self.file = work / FILE
        stored = {r["key"]: r["outcome"] for r in jsonl.read(self.file) if "outcome" in r}
        self.outcomes: dict[str, Outcome] = stored

    @property
    def model(self) -> str:
        """The checkpoint of most outcomes."""
        counts = Counter(map(model_of, self.outcomes.values()))
        return next(iter(counts.most_common(1)), ("", 0))[0]

    def add(self, outcome: Outcome) -> Outcome:
        """Append an outcome; it replaces an earlier one of the same run."""
        kept = slim(outcome)
        self.outcomes[key_of(kept)] = kept
        jsonl.append(self.file, {"key": key_of(kept), "outcome": kept})
        return kept

    def find(self, cell: Cell, model: str | None) -> Outcome | None:
        """Return the latest outcome of a cell with this checkpoint, unless the cell names one."""
        asked, named = request(cell), "name" in cell.model
        for outcome in reversed(self.outcomes.values()):
            if outcome["seed"] == cell.seed and (named or model_of(outcome) == model):
                if asked.fits(outcome):
                    return outcome
        return None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The finished and the missing cells of a table, in the order of the table."""

    table: Table
    finished: Sequence[Finished]
    missing: Sequence[Cell]
    unused: int  # outcomes that match no cell of the table


def gather(table: Table, folder: Path) -> Evidence:
    """Match the cells of a table with the outcomes in its folder.

    Without data sets and checkpoints at hand: the checkpoint is the one of most outcomes.
    """
    store = Store(folder / table.name)
    outcomes = store.outcomes.values()
    model = store.model
    finished, missing, used = [], [], set()
    for seed in range(max([SEEDS, *(outcome["seed"] + 1 for outcome in outcomes)])):
        for cell in table.cells(seed):
            outcome = store.find(cell, model)
            if outcome is not None:
                finished.append((cell, outcome))
                used.add(key_of(outcome))
            elif seed < SEEDS:
                missing.append(cell)
    places = {place: k for k, place in enumerate(dict.fromkeys(map(place_of, table.cells(0))))}
    finished.sort(key=lambda pair: (places[place_of(pair[0])], pair[0].seed))
    return Evidence(table, finished, missing, len(store.outcomes) - len(used))


def place_of(cell: Cell) -> tuple[str, str, str]:
    """Return the row that a cell belongs to."""
    return cell.group, cell.data, cell.method


def key_of(outcome: Outcome) -> str:
    """Hash the settings that an outcome was measured with."""
    text = json.dumps({name: outcome[name] for name in IDENTITY}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def slim(outcome: Outcome) -> Outcome:
    """Reduce an outcome to the scores that tables read, a few kilobytes.

    All scores over the test records stay, of dev records and single parties only the main metric.
    """
    metric = outcome["metric"]
    rounded = {name: round(outcome[name], DIGITS) for name in _TIMES}
    metrics = {which: _slim_round(found, metric) for which, found in outcome["metrics"].items()}
    protection = {k: v for k, v in outcome["protection"].items() if k != "statement"}
    return outcome | rounded | {"metrics": metrics, "protection": protection}


_TIMES = ("privacy_share", "seconds", "cpu_seconds")


def _slim_round(found: Mapping[str, Any], metric: str) -> dict[str, Any]:
    over_all = {
        kind: {
            split: _rounded(scores, () if _is_test(split) else (metric,))
            for split, scores in found[kind].items()
        }
        for kind in ("pooled", "mean")
        if kind in found
    }
    party = {
        name: {s: _rounded(scores, (metric,)) for s, scores in splits.items() if _is_test(s)}
        for name, splits in found["party"].items()
    }
    return {**found, **over_all, "party": party}


def _is_test(split: str) -> bool:
    return split.rpartition("/")[2] == "test"


def _rounded(scores: Scores, metrics: Iterable[str]) -> dict[str, float]:
    """Round scores; keep these metrics and their entity types only, or all without any."""
    kept = tuple(metrics)
    return {
        name: round(value, DIGITS)
        for name, value in scores.items()
        if not kept or name.partition("/")[0] in kept
    }
