"""Shares of a run's answers on test records; a model that answers one class only learned nothing.

They are read from every hospital's counts of the last round. A sum over hospitals would hide
models that were never aggregated and prefer different classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.metric_counts import ALL, ROW, TRULY

SIDED = 0.95  # a model with a larger share of one answer counts as one-sided

Plain = Mapping[str, Any]
Shares = dict[str, float]


def answers(document: Plain) -> dict[str, Shares]:
    """Compute the shares of each model's answers over all test records.

    `answers`: share of the most frequent answer; `majority`: share of the largest class; `sided`:
    share of the hospitals whose model answers one class although their records have several;
    `found`: entities found per entity present.
    """
    last = document["metrics"].get("last", {}).get("round")  # None: only their mean was measured
    squares: dict[str, list[NDArray[np.float64]]] = {}
    spans: dict[str, list[NDArray[np.float64]]] = {}
    for entry in document["history"]:
        of_test = entry.get("split") == "test" and entry["round"] == last
        if not of_test or entry.get("pooled") or "counts" not in entry:
            continue
        model = str(entry.get("model", ""))
        counts = entry["counts"]
        if square := [row for name, row in counts.items() if name.startswith(TRULY)]:
            squares.setdefault(model, []).append(np.array(square, float))
        elif rows := [row for name, row in counts.items() if name == ALL or name.startswith(ROW)]:
            spans.setdefault(model, []).append(np.array(rows, float).sum(0))
    classes = {model: _classes(found) for model, found in squares.items()}
    return classes | {model: _entities(found) for model, found in spans.items()}


def one_class(shares: Mapping[str, float]) -> bool:
    """Return True if a model, or most models of its name, answer one class or find nothing."""
    if "found" in shares:
        return shares["found"] == 0
    at_one = shares["answers"] > SIDED > shares["majority"]
    return at_one or shares["sided"] > 1 / 2


def _classes(squares: Sequence[NDArray[np.float64]]) -> Shares:
    total = _shares(np.sum(squares, axis=0))
    parties = [_shares(square) for square in squares]
    sided = [party["answers"] > SIDED > party["majority"] for party in parties]
    return {name: round(v, 4) for name, v in total.items()} | {"sided": sum(sided) / len(sided)}


def _shares(square: NDArray[np.float64]) -> Shares:
    total = max(1.0, float(square.sum()))
    answered, true = square.sum(0).max(), square.sum(1).max()
    return {"answers": float(answered) / total, "majority": float(true) / total}


def _entities(rows: Sequence[NDArray[np.float64]]) -> Shares:
    hits, false, missed = np.sum(rows, axis=0)
    return {"found": round(float((hits + false) / max(1.0, hits + missed)), 4)}
