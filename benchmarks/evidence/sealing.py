"""Pairs of cells that differ only in their protection: its cost in accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.evidence.cells import Outcome
from benchmarks.evidence.rows import Row, models_of
from benchmarks.evidence.store import IDENTITY, Evidence, place_of
from benchmarks.report import Grid
from secure_fl.algorithms.registry import ALGORITHMS

CLEAR, SEALED = "none", "he+secagg"


@dataclass(frozen=True, slots=True)
class Pair:
    """One model of one run, in the clear and sealed, with each seed."""

    title: str
    bits: int
    changes: Sequence[float]  # sealed minus clear, in points


def pairs(evidence: Evidence) -> list[Pair]:
    """Find all pairs of a table; a run that belongs to several groups is compared once."""
    clear = {_run(o): o for _, o in evidence.finished if _mode(o) == CLEAR}
    found: dict[tuple[str, int], list[float]] = {}
    seen = set()
    for cell, sealed in evidence.finished:
        run, bits = _run(sealed), sealed["settings"]["protection"]["bits"]
        silent = ALGORITHMS[sealed["algorithm"]["name"]].sums_nothing
        if _mode(sealed) != SEALED or run not in clear or silent or (run, bits) in seen:
            continue
        seen.add((run, bits))
        for model in models_of(sealed):
            title = " · ".join(part for part in (*place_of(cell), model) if part)
            change = 100 * (_score(sealed, model) - _score(clear[run], model))
            found.setdefault((title, bits), []).append(change)
    return [Pair(title, bits, changes) for (title, bits), changes in found.items()]


def markdown(found: Sequence[Pair]) -> Iterator[str]:
    """Lay out the change of each run's score."""
    lines = [
        [p.title, str(p.bits), str(len(p.changes)), f"{fmean(p.changes):+.1f}", _most(p.changes)]
        for p in found
    ]
    yield "The same cells with and without protection: sealed minus clear, in points."
    yield ""
    yield from Grid("", ["run", "bits", "seeds", "mean", "largest"], lines).markdown()


def summary(found: Sequence[Pair]) -> Iterator[str]:
    """Sum up the changes of all tables."""
    changes = [change for pair in found for change in pair.changes]
    if changes:
        yield from ("## Sealed compared with clear", "")
        yield (
            f"In {len(changes)} pairs of models that differ only in the protection of their run, "
            f"scores change by {fmean(changes):+.1f} points on average and by at most "
            f"{_most(changes)} points. Tests show that sealed and clear sums are equal up to "
            "rounding (`tests/conformance`)."
        )


def _most(changes: Sequence[float]) -> str:
    return f"{max(map(abs, changes)):.1f}"


def _score(outcome: Outcome, model: str) -> float:
    return Row("", "", "", model, "", {0: outcome}, None).values().get(0, 0.0)


def _mode(outcome: Outcome) -> str:
    return str(outcome["settings"]["protection"]["mode"])


def _run(outcome: Outcome) -> str:
    """Identify a run without its protection."""
    protection = outcome["settings"]["protection"]
    rest = {k: v for k, v in protection.items() if k not in ("mode", "bits")}
    settings = outcome["settings"] | {"protection": rest}
    identity = {name: outcome[name] for name in IDENTITY} | {"settings": settings}
    return json.dumps(identity, sort_keys=True)
