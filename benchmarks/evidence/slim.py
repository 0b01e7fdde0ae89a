"""What is kept of a finished cell: all that tables read, and little else.

Finished cells are evidence that lies in the repository, so a line is a few kilobytes. Of each
model the means over the test records keep every figure; of dev records and of single
parties only the main metric remains, and that of entity types. Six digits are more than any table
shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Plain = Mapping[str, Any]

DIGITS = 6
NEVER_READ = ("statement",)  # of the protection: the mode says it


def slim(outcome: Plain) -> dict[str, Any]:
    """Reduce an outcome; what is reduced already stays as it is."""
    kept = dict(outcome)
    metric = kept["metric"]
    kept["metrics"] = {which: _round(found, metric) for which, found in kept["metrics"].items()}
    protection = kept["protection"]
    kept["protection"] = {k: v for k, v in protection.items() if k not in NEVER_READ}
    for name in ("privacy_share", "seconds", "cpu_seconds"):
        kept[name] = round(kept[name], DIGITS)
    return kept


def _round(found: Plain, metric: str) -> dict[str, Any]:
    over_all = {
        kind: {
            split: _all(scores) if _is_test(split) else _main(scores, metric)
            for split, scores in found[kind].items()
        }
        for kind in ("pooled", "mean")
        if kind in found
    }
    party = {
        name: {split: _main(scores, metric) for split, scores in splits.items() if _is_test(split)}
        for name, splits in found["party"].items()
    }
    return {**found, **over_all, "party": party}


def _is_test(split: str) -> bool:
    return split.rpartition("/")[2] == "test"


def _all(scores: Plain) -> dict[str, float]:
    return {name: round(v, DIGITS) for name, v in scores.items()}


def _main(scores: Plain, metric: str) -> dict[str, float]:
    """Keep the metric itself, and that of each entity type."""
    return {
        name: round(v, DIGITS)
        for name, v in scores.items()
        if name == metric or name.startswith(f"{metric}/")
    }
