"""Hospitals alone against hospitals together, over seeds: the summary that the demo writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from secure_fl.cli.show import grid, metric_of
from secure_fl.display.grid import TOGETHER, Grid

SCHEMA = "secure-fl/demo/1"


def summarise(
    runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], seconds: float
) -> dict[str, Any]:
    """Compare runs (alone, together), one pair per seed, by the last round's test metric."""
    alone, together = [pair[0] for pair in runs], [pair[1] for pair in runs]
    first = together[0]
    local, federated = _scores(alone), _scores(together)
    best = federated["best"]["mean"] - local["best"]["mean"]
    margins = [b - a for a, b in zip(local["seed"], federated["seed"], strict=True)]
    return {
        "schema": SCHEMA,
        "algorithm": first["algorithm"],
        "main_metric": first["main_metric"],
        "protection": first["protection"],
        "parties": first["parties"],
        "rounds": first["rounds"],
        "seeds": [document["seed"] for document in together],
        "local": local,
        "federated": federated,
        "margin": _spread(margins) | {"min": min(margins), "seed": margins, "best": best},
        "bytes": first["bytes"],
        "privacy_share": fmean(document["seconds"]["privacy_share"] for document in together),
        "seconds": {
            "total": seconds,
            "local": fmean(document["seconds"]["total"] for document in alone),
            "federated": fmean(document["seconds"]["total"] for document in together),
        },
    }


def _scores(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Give the main metric on all test records: over seeds, and for each hospital, last round.

    "best" is the round whose dev metric is best, as in a run's result.json.
    """
    means = [metric_of(document, "last", "test") or 0.0 for document in documents]
    best = [metric_of(document, "best", "test") or 0.0 for document in documents]
    party = {
        name: _spread([metric_of(document, "last", "test", name) or 0.0 for document in documents])
        for name in documents[0]["parties"]
    }
    return _spread(means) | {"seed": means, "party": party, "best": _spread(best)}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}


def table(summary: Mapping[str, Any]) -> Grid:
    """Lay out a summary: each hospital alone and together."""
    local, federated = summary["local"], summary["federated"]
    pairs = [(name, local["party"][name], federated["party"][name]) for name in summary["parties"]]
    rows = [
        [name, _shown(a), _shown(b), f"{100 * (b['mean'] - a['mean']):+.1f}"]
        for name, a, b in [(TOGETHER, local, federated), *pairs]
    ]
    seeds = len(summary["seeds"])
    title = f"test {summary['main_metric']}, {seeds} seed{'s' * (seeds > 1)}, last round"
    return grid(title, ["hospital", "alone", "together", "gain, points"], rows)


def _shown(score: Mapping[str, Any]) -> str:
    spread = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    return f"{100 * score['mean']:.1f}{spread}"
