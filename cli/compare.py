"""Hospitals alone, in the clear, sealed, and by FedKD: the summary that the demo writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from secure_fl.cli.show import grid, metric_of
from secure_fl.display.grid import TOGETHER, Grid

SCHEMA = "secure-fl/demo/2"
WAYS = ("alone", "clear", "sealed", "fedkd")


def summarise(runs: Sequence[Mapping[str, Mapping[str, Any]]], seconds: float) -> dict[str, Any]:
    """Compare runs of all ways, a set for each seed, by the last round's test metric.

    "margin": sealed above alone; "price": sealed above in the clear, the same algorithm.
    """
    by_way = {way: [run[way] for run in runs] for way in WAYS}
    first = by_way["sealed"][0]
    scores = {way: _scores(documents) for way, documents in by_way.items()}
    best = scores["sealed"]["best"]["mean"] - scores["alone"]["best"]["mean"]
    margin = _apart(scores["sealed"], scores["alone"])
    spent = {
        way: fmean(one["seconds"]["total"] for one in documents)
        for way, documents in by_way.items()
    }
    shares = [one["seconds"]["privacy_share"] for one in by_way["sealed"]]
    return {
        "schema": SCHEMA,
        "algorithm": first["algorithm"],
        "main_metric": first["main_metric"],
        "protection": first["protection"],
        "parties": first["parties"],
        "rounds": first["rounds"],
        "seeds": [document["seed"] for document in by_way["sealed"]],
        **scores,
        "margin": margin | {"min": min(margin["seed"]), "best": best},
        "price": _apart(scores["sealed"], scores["clear"]),
        "bytes": first["bytes"],
        "privacy_share": fmean(shares),
        "seconds": {"total": seconds, **spent},
    }


def _apart(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The difference of two ways, seed by seed."""
    found = [a - b for a, b in zip(ours["seed"], theirs["seed"], strict=True)]
    return _spread(found) | {"seed": found}


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
    """Lay out a summary: all hospitals and each of them, in every way."""
    scores = [summary[way] for way in WAYS]
    lines = [(TOGETHER, scores)]
    lines += [(name, [one["party"][name] for one in scores]) for name in summary["parties"]]
    rows = [[name, *map(_shown, found)] for name, found in lines]
    seeds = len(summary["seeds"])
    title = f"test {summary['main_metric']} in %, {seeds} seed{'s' * (seeds > 1)}, last round"
    heads = ["hospital", "alone", "together, in the clear", "together, sealed", "FedKD, sealed"]
    return grid(title, heads, rows)


def _shown(score: Mapping[str, Any]) -> str:
    spread = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    return f"{100 * score['mean']:.1f}{spread}"
