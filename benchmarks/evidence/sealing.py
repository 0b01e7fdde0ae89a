"""What protection costs in accuracy: pairs of cells that differ in nothing but their protection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from benchmarks.evidence.cells import Outcome
from benchmarks.evidence.finished import Evidence, Place, place_of, said
from benchmarks.evidence.markdown import grid, points
from benchmarks.evidence.sketch import distance
from benchmarks.evidence.summary import Scores, models_of
from secure_fl.algorithms.registry import ALGORITHMS

OPEN, SEALED = "none", "he+secagg"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same run in the clear and sealed, of each seed."""

    place: Place  # of the sealed one
    runs: Sequence[tuple[Outcome, Outcome]]


def pairs(evidence: Evidence) -> list[Pair]:
    """All pairs of a table; a run that stands in several groups is compared once."""
    clear = {_but_for_protection(o): o for _, o in evidence.finished if _mode(o) == OPEN}
    found: dict[Place, list[tuple[Outcome, Outcome]]] = {}
    seen = set()
    for cell, outcome in evidence.finished:
        run = _but_for_protection(outcome)
        alone = ALGORITHMS[outcome["algorithm"]["name"]].sums_nothing
        if _mode(outcome) != SEALED or run not in clear or alone:
            continue
        bits = outcome["settings"]["protection"]["bits"]
        if (run, bits) not in seen:
            found.setdefault(place_of(cell), []).append((clear[run], outcome))
            seen.add((run, bits))
    return [Pair(place, runs) for place, runs in found.items()]


def differences(found: Sequence[Pair]) -> Iterator[str]:
    """Lay out the differences, sealed less clear, with the largest in front."""
    lines, largest, far = [], 0.0, []
    for pair in found:
        bits = pair.runs[0][1]["settings"]["protection"]["bits"]
        apart = [distance(a.get("sketch"), b.get("sketch")) for a, b in pair.runs]
        known = [d for d in apart if d is not None]
        far += known
        for model in models_of(pair.runs[0][0]):
            changes = [change(a, b, model) for a, b in pair.runs]
            largest = max([largest, *(abs(c) for c in changes)])
            title = " · ".join(part for part in (*pair.place, model) if part)
            seeds, most = str(len(changes)), f"{max(map(abs, changes)):.1f}"
            models = f"{max(known):.3g}" if known else "not kept"
            between = "".join(f"{distance:.3g}" for distance in nearest(pair))
            lines.append([title, str(bits), seeds, points(changes), most, models, between])
    ends = f"{max(far):.3g} of their norm" if far else "not kept"
    yield f"Largest difference of a main metric: {largest:.1f} points. Of the models: {ends}."
    yield ""
    yield from grid(
        ("run", "bits", "seeds", "mean", "largest", "models apart", "two seeds apart"), lines
    )


def change(clear: Outcome, sealed: Outcome, model: str) -> float:
    """What protection changed in a score, in points."""
    scores = Scores(model, clear["metric"])
    before, after = (scores.of(o, "last", "test") for o in (clear, sealed))
    return 100 * ((after or 0.0) - (before or 0.0))


def nearest(pair: Pair) -> list[float]:
    """How far the nearest two seeds' clear models are apart: what to compare a pair's with."""
    clear = [outcome.get("sketch") for outcome, _ in pair.runs]
    found = [d for a, b in combinations(clear, 2) if (d := distance(a, b)) is not None]
    return [min(found)] if found else []


def _mode(outcome: Outcome) -> Any:
    return outcome["settings"]["protection"]["mode"]


def _but_for_protection(outcome: Outcome) -> str:
    what = said(outcome)
    protection = what["settings"]["protection"]
    rest = {k: v for k, v in protection.items() if k not in ("mode", "bits")}
    settings = what["settings"] | {"protection": rest}
    return json.dumps(what | {"settings": settings}, sort_keys=True)
