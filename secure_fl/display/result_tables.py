"""Tables and lines about a result's document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from secure_fl.display.figures import (
    LOCAL,
    duration,
    main_metric,
    metric_of,
    number,
    of_round,
    overall,
    size,
    traffic,
)
from secure_fl.display.grid import TOGETHER, Grid, grid

ENTITY = "f1/"  # prefix of the F1 of an entity type or a label


def result_table(document: Mapping[str, Any], title: str = "") -> Grid:
    """Make a table of a result: per hospital and mean, last and best round, traffic, seconds."""
    metric = main_metric(document)
    best = document.get("metrics", {}).get("best", {}).get("round", "-")
    scores = [f"dev {metric}", f"test {metric}", f"test, best round ({best})"]
    columns = ["hospital", *scores, "sent", "received", "training"]
    rows = [_row(document, party, party) for party in document["parties"]]
    last = document.get("metrics", {}).get("last", {})
    pooled = overall(last, document.get("main_metric", "")) is last.get("pooled")
    every = TOGETHER if pooled else "mean"
    if any(split.startswith(LOCAL) for split in last.get("mean", {})):
        every = "host's model"
    named = {split.rpartition("/")[0] for split in last.get("pooled", {})} - {"", LOCAL[:-1]}
    beside = [_row(document, f"{every}, {name}", "", f"{name}/") for name in sorted(named)]
    return _without_repetition(title, columns, [_row(document, every, ""), *beside, *rows])


def _without_repetition(title: str, columns: list[str], rows: list[list[str]]) -> Grid:
    """Make the table without the best round's column if it equals the last round's."""
    last, best = 2, 3
    if all(row[last] == row[best] for row in rows):
        columns, *rows = [[*row[:best], *row[best + 1 :]] for row in (columns, *rows)]
    return grid(title, columns, rows)


def entity_table(document: Mapping[str, Any]) -> Grid | None:
    """Make a table of the test F1 per entity type or label, and hospital; None without these."""
    metrics = of_round(document, "delivered")
    pooled, mean = (metrics.get(kind, {}).get("test", {}) for kind in ("pooled", "mean"))
    by_type = any(name.startswith(ENTITY) for name in pooled)  # else label sets differ
    first = {TOGETHER: pooled} if by_type else {"mean": mean}
    own = {name: splits.get("test", {}) for name, splits in metrics.get("party", {}).items()}
    scores = first | own
    types = sorted({name for row in first.values() for name in row if name.startswith(ENTITY)})
    rows = [[party, *(number(f1.get(name)) for name in types)] for party, f1 in scores.items()]
    columns = ["hospital", *(name.removeprefix(ENTITY) for name in types)]
    kind = document.get("task", {}).get("kind")
    what = "label" if kind == "multilabel" else "entity type"
    return grid(f"test F1 of each {what}", columns, rows) if types else None


def _row(document: Mapping[str, Any], label: str, party: str, model: str = "") -> list[str]:
    up, down = traffic(document, party)
    phases = document.get("seconds", {}).get("party", {})
    trained = [p.get("train", 0.0) for name, p in phases.items() if not party or name == party]
    count = 1 if party else max(len(phases), 1)
    return [
        label,
        number(metric_of(document, "last", f"{model}dev", party)),
        number(metric_of(document, "last", f"{model}test", party)),
        number(metric_of(document, "best", f"{model}test", party)),
        size(up / count),
        size(down / count),
        duration(sum(trained) / count),
    ]


def model_line(document: Mapping[str, Any]) -> str | None:
    """Name the best of several models; None if the run has only one."""
    metric, pooled = document["main_metric"], of_round(document, "delivered").get("pooled", {})
    dev = {
        split.rpartition("/")[0] or "model": scores.get(metric)
        for split, scores in pooled.items()
        if split.rpartition("/")[2] == "dev" and not split.startswith(LOCAL)
    }
    if len(dev) < 2 or document.get("use") not in dev:
        return None
    said = ", ".join(f"{name} {number(score)}" for name, score in sorted(dev.items()))
    common = document.get("algorithm_settings", {}).get("teachers") == "shared"
    teacher = "the teacher" if common else "each hospital's teacher"
    whose = "the student" if document["use"] == "student" else teacher
    return f"to use: {whose}; dev {main_metric(document)} over all records: {said}"


def layers_line(document: Mapping[str, Any]) -> str | None:
    """Describe the layers that hospitals do not share; None if there are none."""
    own: dict[str, list[str]] = {}
    for one in document.get("layers") or ():
        if one["stay"]:
            own.setdefault(", ".join(one["stay"]), []).append(one["part"])
    if not own:
        return None
    kept = "; ".join(f"{', '.join(parts)} at {who}" for who, parts in own.items())
    least = document["protection"]["min_cohort"]
    return f"not shared, because fewer than min_cohort ({least}) hospitals have them: {kept}"


def layers_table(document: Mapping[str, Any]) -> list[list[str]]:
    """List each part of the models, the groups that sum it, and its other hospitals."""
    return [
        [
            one["part"],
            "; ".join(", ".join(group) for group in one["sums"]) or "-",
            ", ".join(one["stay"]) or "-",
        ]
        for one in document.get("layers") or ()
    ]


def score_line(document: Mapping[str, Any]) -> str | None:
    """Format the pooled score with its interval; None if no score was pooled."""
    metric, delivered = document["main_metric"], of_round(document, "delivered")
    interval = delivered.get("intervals", {}).get("test", {}).get(metric)
    if interval is None:
        return None
    value = delivered["pooled"]["test"][metric]
    records = delivered["counts"]["test"]["loss"][0]
    low, high = map(number, interval)
    return (
        f"test {main_metric(document)} {number(value)} over {records:.0f} records of all "
        f"hospitals; 95 % interval {low} to {high}"
    )


def noise_line(document: Mapping[str, Any]) -> str | None:
    """Describe the noise on predictions and its privacy cost; None without noise."""
    noise = document.get("noise")
    if not noise:
        return None
    if noise["epsilon"] is None:
        return "noise on predictions: no prediction was released"
    kept = "" if noise["durable"] else ", in no durable ledger"
    weak = ", DROWNED IN IT" if noise["drowned"] else ""
    return (
        f"noise on predictions: ε = {noise['epsilon']:.3f} of {noise['budget']:g} per "
        f"{noise['unit']} at δ = {noise['delta']:g} ({noise['epsilon_of_this_run']:.3f} by this "
        f"run, {noise['releases']} sums{kept}); std {noise['std_all_present']:.2f} on a signal of "
        f"{noise['signal']:.2f}{weak}"
    )


def convicted(document: Mapping[str, Any]) -> str:
    """Name the members convicted of spoiling a sum; empty if there are none."""
    names = ", ".join(document.get("convicted", ()))
    return names and f"spoiled a sum (see evidence/ in the run's folder): {names}"


def approved(document: Mapping[str, Any]) -> str:
    """List the approvals by people of this site, one per line."""
    line = "approved by {who} at {time}: plan {plan}, rules {rules}"
    return "\n".join(line.format(**one) for one in document.get("approvals", ()))


def listed(names: Sequence[str]) -> str:
    """List the awaited members; without any, connected members have not answered."""
    return ", ".join(names) or "answers of connected members"


def until_text(until: float | None) -> str:
    """Format the time until which a run waits; empty without a limit."""
    if until is None:
        return ""
    return f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
