"""Runs beside each other: their scores with intervals over the hospitals they share, and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, stdev
from typing import Any, NamedTuple

from secure_fl.display.charts import Curve, chart
from secure_fl.display.figures import duration, metric_of, number, size, traffic
from secure_fl.display.grid import Grid, grid
from secure_fl.display.html import page, paragraph, section, table
from secure_fl.display.run_history import RunHistory
from secure_fl.display.run_page import article

CONFIDENCE = 0.95
SURER = "`secure-fl evaluate RUN RUN --plan FILE` compares record by record, and sees more."


class Difference(NamedTuple):
    """How much better one run is than another, hospital by hospital."""

    mean: float
    half: float | None  # half of the interval; None: one hospital alone says nothing of others
    hospitals: int

    def __str__(self) -> str:
        interval = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:+.1f}{interval}"


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Difference | None:
    """The mean difference of the main test score over hospitals of both, and its interval."""
    from scipy.stats import t

    pairs = []
    for name in sorted(set(ours.get("parties", ())) & set(theirs.get("parties", ()))):
        scores = [metric_of(document, "last", "test", name) for document in (ours, theirs)]
        if None not in scores and ours.get("main_metric") == theirs.get("main_metric"):
            pairs.append(float(scores[0] or 0.0) - float(scores[1] or 0.0))
    if not pairs:
        return None
    half = None
    if len(pairs) > 1:
        quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1))
        half = quantile * stdev(pairs) / math.sqrt(len(pairs))
    return Difference(fmean(pairs), half, len(pairs))


def side_by_side(stories: Sequence[RunHistory]) -> Grid:
    """A line for each run; differences are to the first, in points."""
    first = stories[0]
    rows = []
    for place, story in enumerate(stories):
        found = difference(story.document, first.document) if place else None
        up, _ = traffic(story.document)
        total = story.document.get("seconds", {}).get("total")
        rows.append(
            [
                _name(stories, place),
                story.algorithm,
                story.protection,
                f"{story.round}/{story.rounds}",
                number(metric_of(story.document, "last", "dev")),
                _tested(story),
                "" if not place else "-" if found is None else str(found),
                size(up) if up else "-",
                "-" if total is None else duration(total),
            ]
        )
    metric = first.metric
    heads = ["run", "algorithm", "protection", "round", f"dev {metric}", f"test {metric}"]
    return grid("", [*heads, "to the first, points", "sent", "time"], rows)


def explained(stories: Sequence[RunHistory]) -> str:
    """What the interval is of."""
    found = [difference(story.document, stories[0].document) for story in stories[1:]]
    hospitals = {one.hospitals for one in found if one is not None}
    if not hospitals:
        return f"The runs share no hospital with test scores, so no interval can be given. {SURER}"
    count = " or ".join(map(str, sorted(hospitals)))
    return (
        f"Differences are means over {count} hospitals of both runs, each compared with itself; "
        "± is a 95 % interval of the paired t test: where it holds 0, nothing can be told. "
        f"{SURER}"
    )


def settings_apart(stories: Sequence[RunHistory]) -> list[list[str]]:
    """The settings in which runs differ: a line each; not those that one algorithm alone has."""
    flat = [dict(_flat(story.settings)) for story in stories]
    rows = []
    for name in sorted(set().union(*flat)):
        known = [found[name] for found in flat if name in found]
        lacking = len(known) < len(flat) and not name.startswith("algorithm.")
        if lacking or len(set(known)) > 1:
            rows.append([name, *(found.get(name, "-") for found in flat)])
    return rows


def comparison_page(
    stories: Sequence[RunHistory], *, shared: bool = False, audited: str = ""
) -> str:
    """Runs on one page: side by side first, then each by itself; `audited`: of their audits."""
    names = names_of(stories)
    body = section("compared", "Side by side", comparison(stories) + audited, 2)
    for place, (name, story) in enumerate(zip(names, stories, strict=True), start=1):
        body += section(f"run{place}", name, article(story, f"run{place}", shared=shared), 2)
    links = {"compared": "Side by side"} | {f"run{k}": name for k, name in enumerate(names, 1)}
    return page(listed(names), "Federated training runs, compared", links, body)


def comparison(stories: Sequence[RunHistory]) -> str:
    """The part of a page that compares."""
    laid = side_by_side(stories)
    names = [row[0] for row in laid.rows]
    body = table("The runs", laid.columns, laid.rows) + paragraph(explained(stories))
    for split in ("dev", "test"):
        curves = [
            Curve(name, story.curve(split) or story.mean(split))
            for name, story in zip(names, stories, strict=True)
        ]
        title = f"{stories[0].metric.capitalize()} over all {split} records, by round"
        body += chart(f"compared-{split}", curves, "round", title, number)
    heads = ["field", *names]
    return body + table("Settings that differ", heads, settings_apart(stories), figures=False)


def _tested(story: RunHistory) -> str:
    """The test score, with its interval where it is over all hospitals' records."""
    value = metric_of(story.document, "last", "test")
    intervals = story.document.get("metrics", {}).get("last", {}).get("intervals", {})
    found = intervals.get("test", {}).get(story.metric)
    return number(value) + (f" [{number(found[0])}, {number(found[1])}]" if found else "")


def names_of(stories: Sequence[RunHistory]) -> list[str]:
    """The runs' names, with their numbers where several are called so."""
    return [_name(stories, place) for place in range(len(stories))]


def listed(names: Sequence[str]) -> str:
    """Names as one says them; what holds commas itself is told apart by semicolons."""
    mark = "; " if any("," in name for name in names) else ", "
    return " and ".join(filter(None, (mark.join(names[:-1]), names[-1])))


def _name(stories: Sequence[RunHistory], place: int) -> str:
    """A run's name; where several are called so, with their number."""
    name = stories[place].name
    return f"{place + 1}. {name}" if [s.name for s in stories].count(name) > 1 else name


def _flat(tables: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in tables.items():
        at = f"{above}{name}"
        if isinstance(value, Mapping):
            found += _flat(value, f"{at}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for place, (entry, _) in enumerate(zip_longest(value, ()), start=1):
                found += _flat(entry, f"{at}.{place}.")
        elif at not in ("run.name", "run.folder"):
            found.append((at, str(value)))
    return found
