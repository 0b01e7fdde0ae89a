"""How one-sided a run's answers on test records are: a model that says one class has learned none.

Read off every hospital's counts of the last round. The sum over hospitals alone would hide models
that never met and are one-sided to different sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.display.run_history import ROW, TRULY
from secure_fl.learning.metric_counts import ALL

SIDED = 0.95  # a class with a larger share of the answers is all that is said

Plain = Mapping[str, Any]
Shares = dict[str, float]


def answers(document: Plain) -> dict[str, Shares]:
    """What each model of a result answers, over all test records.

    `answers`: the share of its most frequent answer; `majority`: of the largest class; `sided`: of
    the hospitals whose own answers are one class, though their records are not. Of entities
    `found`: how many there were for each that is there.
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
    """Whether a model, or most of the models of its name, say one class, or find nothing."""
    if "found" in shares:
        return shares["found"] == 0
    at_one = shares["answers"] > SIDED > shares["majority"]
    return at_one or shares["sided"] > 1 / 2


def _classes(squares: Sequence[NDArray[np.float64]]) -> Shares:
    whole = _shares(np.sum(squares, axis=0))
    each = [_shares(square) for square in squares]
    sided = [one["answers"] > SIDED > one["majority"] for one in each]
    return {name: round(v, 4) for name, v in whole.items()} | {"sided": sum(sided) / len(sided)}


def _shares(square: NDArray[np.float64]) -> Shares:
    total = max(1.0, float(square.sum()))
    answered, true = square.sum(0).max(), square.sum(1).max()
    return {"answers": float(answered) / total, "majority": float(true) / total}


def _entities(rows: Sequence[NDArray[np.float64]]) -> Shares:
    hits, false, missed = np.sum(rows, axis=0)
    return {"found": round(float((hits + false) / max(1.0, hits + missed)), 4)}
