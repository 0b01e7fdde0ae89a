"""An evaluation as tables and as a page: models side by side over all hospitals' test records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from secure_fl.display.charts import Bar, bar_chart, figure
from secure_fl.display.figures import confusion_rows, main_metric, number
from secure_fl.display.grid import Grid, grid
from secure_fl.display.html import page, paragraph, section, table
from secure_fl.display.learning_check import not_learned
from secure_fl.events import metric_name
from secure_fl.learning.metric_counts import LOSS
from secure_fl.learning.noised_counts import records_of

SPLIT = "/test"
OPEN = 0.02  # uncertainty from bins that is not reported
EXACT = "These scores are exact sums without noise: they are not differentially private."


def models_of(document: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Collect the figures of each model: "pooled", "intervals", "bounds" or "counts"."""
    last = document["metrics"]["last"].get(kind, {})
    labels = [one["label"] for one in document["evaluation"]["models"]]
    return {label: dict(last.get(label + SPLIT, {})) for label in labels}


def score_table(document: Mapping[str, Any]) -> Grid:
    """Tabulate each metric, the main one first, with each model's value and interval."""
    pooled, intervals = (models_of(document, kind) for kind in ("pooled", "intervals"))
    main = document["main_metric"]
    names = dict.fromkeys([main, *(name for one in pooled.values() for name in one)])
    rows = [
        [
            _named(document, name),
            *(_with(one.get(name), intervals[label].get(name)) for label, one in pooled.items()),
        ]
        for name in names
    ]
    records = _records(document)
    title = f"{records:.0f} test records of {len(document['parties'])} hospitals"
    if document.get("records") is None:
        title = f"{records:.0f} test records of all hospitals"
    return grid(title, ["95 % interval in brackets", *pooled], rows)


def _records(document: Mapping[str, Any]) -> float:
    """Return the number of test records, or its estimate from noised counts."""
    counts = next(iter(models_of(document, "counts").values()))
    if LOSS in counts:
        return float(counts[LOSS][0])
    return max(0.0, round(records_of(counts, tuple(document["task"]["labels"]))))


def noise_line(document: Mapping[str, Any]) -> str:
    """Describe the noise on the scores, or its absence."""
    noise = document["evaluation"].get("noise")
    if noise is None:
        return EXACT
    return (
        f"These scores have noise: ε = {noise['epsilon']:g} per test {noise['unit']} at "
        f"δ = {noise['delta']:g}. Each count has a standard deviation of {noise['std']:.1f}. The "
        "intervals include it; a metric that the noise hides is missing."
    )


def difference_table(document: Mapping[str, Any]) -> Grid | None:
    """Tabulate the differences from the first model, with paired intervals; None: one model.

    A star marks an interval without 0.
    """
    compared = document["evaluation"].get("compared")
    if not compared:
        return None
    names = dict.fromkeys([document["main_metric"], *(n for c in compared for n in c["metrics"])])
    rows = [
        [_named(document, name), *(_apart(c["metrics"].get(name)) for c in compared)]
        for name in names
    ]
    first = compared[0]["to"]
    heads = [f"less {first}; * is sure", *(c["model"] for c in compared)]
    paired = document["evaluation"].get("noise") is None
    title = "differences, record by record" if paired else "differences, with wide intervals"
    return grid(title, heads, rows)


def hospitals_of(document: Mapping[str, Any], *, own: bool = True) -> dict[str, dict[str, float]]:
    """Collect each model's main metric at hospitals that share it, and at this result's hospitals.

    `own=False` leaves out the latter, so that the table may be passed on.
    """
    main = document["main_metric"]
    scores = {name: dict(one) for name, one in document["evaluation"].get("shared", {}).items()}
    for name, splits in document["metrics"]["last"].get("party", {}).items() if own else ():
        values = {
            label: splits.get(label + SPLIT, {}).get(main)
            for label in models_of(document, "pooled")
        }
        scores[name] = {label: value for label, value in values.items() if value is not None}
    return dict(sorted(scores.items()))


def hospital_table(document: Mapping[str, Any], *, own: bool = True) -> Grid | None:
    """Tabulate the main metric at each hospital with a known value."""
    labels = list(models_of(document, "pooled"))
    rows = [
        [name, *(number(values.get(label)) for label in labels)]
        for name, values in hospitals_of(document, own=own).items()
    ]
    return (
        grid(f"{main_metric(document)} at each hospital", ["hospital", *labels], rows)
        if rows
        else None
    )


def bin_lines(document: Mapping[str, Any]) -> list[str]:
    """List the metrics that bins make uncertain, with their bounds without bins."""
    found = []
    for label, bounds in models_of(document, "bounds").items():
        wide = {n: pair for n, pair in bounds.items() if pair[1] - pair[0] > OPEN}
        said = ", ".join(f"{n} {number(low)} to {number(high)}" for n, (low, high) in wide.items())
        found += [f"{label}, without bins of scores: {said}"] if said else []
    return found


def weak_models(document: Mapping[str, Any]) -> list[str]:
    """Describe each model that answers one class or guesses."""
    labels = [one["label"] for one in document["evaluation"]["models"]]
    found = {label: not_learned(document, f"{label}/", pooled=True) for label in labels}
    return [f"{label}: {text}" for label, text in found.items() if text is not None]


def model_lines(document: Mapping[str, Any]) -> list[str]:
    """List the models, without paths of folders on this machine."""
    found = []
    for one in document["evaluation"]["models"]:
        place = PurePath(one["name"])
        said = "" if place.is_absolute() or place.name == one["label"] else f": {place}"
        found.append(f"{one['label']}{said} (sha256 {one['digest'][:16]}...)")
    return found


def evaluation_page(document: Mapping[str, Any], *, shared: bool = False) -> str:
    """Write an evaluation as a page; `shared` leaves out a hospital's own figures."""
    scores, apart = score_table(document), difference_table(document)
    body = "".join(map(paragraph, model_lines(document)))
    body += _bars(document, shared)
    body += table(scores.title, scores.columns, scores.rows)
    body += "".join(map(paragraph, (*bin_lines(document), *weak_models(document))))
    if apart is not None:
        body += table(apart.title, apart.columns, apart.rows)
    for label, counts in models_of(document, "counts").items():
        rows = confusion_rows(document, counts)
        cells = [[f"truly {name}", *map(str, row)] for name, row in rows.items()]
        body += table(f"{label}: confusion", ["", *(f"taken for {n}" for n in rows)], cells)
    own = hospital_table(document, own=not shared)
    if own is not None:
        body += table(own.title, own.columns, own.rows)
    body += paragraph(document["protection"]["statement"]) + paragraph(noise_line(document))
    whole = section("scores", "Scores over all hospitals", body, 2)
    return page("Evaluation", "Models on hospitals' test records", {"scores": "Scores"}, whole)


def _bars(document: Mapping[str, Any], shared: bool) -> str:
    """Draw the main metric of each model as a bar with its interval, and of each hospital below."""
    main = document["main_metric"]
    pooled, intervals = (models_of(document, kind) for kind in ("pooled", "intervals"))
    own = hospitals_of(document, own=not shared)
    bars: list[Bar] = []
    for label, scores in pooled.items():
        if main in scores:
            bars.append(Bar(label, scores[main], intervals[label].get(main)))
        bars += [Bar(f"at {n}", v[label], faint=True) for n, v in own.items() if label in v]
    title = (
        f"Test {main_metric(document)} over all records; a line across a bar is its 95 % interval"
    )
    return figure("bars", bar_chart("bars", bars, title, number, top=1.0))


def _named(document: Mapping[str, Any], metric: str) -> str:
    return metric_name(metric, document.get("scored_class"))


def _with(value: float | None, interval: Any) -> str:
    if value is None or interval is None:
        return number(value)
    return f"{number(value)} [{number(interval[0])}, {number(interval[1])}]"


def _apart(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = found["interval"]
    star = " *" if low > 0 or high < 0 else ""
    return f"{found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]{star}"
