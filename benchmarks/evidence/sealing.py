"""Pairs of cells that differ only in their protection: its cost in accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from statistics import fmean

from benchmarks.evidence.cells import Outcome
from benchmarks.evidence.rows import Row, models_of
from benchmarks.evidence.store import IDENTITY, Evidence
from secure_fl.algorithms.registry import ALGORITHMS

CLEAR, SEALED = "none", "he+secagg"


def changes(evidence: Evidence) -> list[float]:
    """Subtract the score of every model in the clear from that of the same model sealed, in points.

    A run that belongs to several groups is compared once.
    """
    clear = {_run(o): o for _, o in evidence.finished if _mode(o) == CLEAR}
    found, seen = [], set()
    for _, sealed in evidence.finished:
        run, bits = _run(sealed), sealed["settings"]["protection"]["bits"]
        silent = ALGORITHMS[sealed["algorithm"]["name"]].sums_nothing
        if _mode(sealed) == SEALED and run in clear and not silent and (run, bits) not in seen:
            seen.add((run, bits))
            found += [100 * (_score(sealed, m) - _score(clear[run], m)) for m in models_of(sealed)]
    return found


def summary(found: Sequence[float]) -> Iterator[str]:
    """Sum up the changes of all tables."""
    if found:
        yield from ("## Sealed compared with clear", "")
        yield (
            f"In {len(found)} pairs of models that differ only in the protection of their run, "
            f"scores change by {fmean(found):+.1f} points on average and by at most "
            f"{max(map(abs, found)):.1f} points. Tests show that sealed and clear sums are equal "
            "up to rounding (`tests/conformance`)."
        )


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
