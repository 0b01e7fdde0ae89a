"""Comparison of runs: scores with intervals over their common hospitals, and costs.

Charts over ε have a logarithmic axis, whose last place is for runs without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from secure_fl.display.charts import Chart, Curve, chart, draw_svg, figure, look, short
from secure_fl.display.figures import duration, interval_of, metric_of, number, size, traffic
from secure_fl.display.grid import Grid, grid
from secure_fl.display.html import page, paragraph, section, table
from secure_fl.display.run_history import RunHistory, shareable
from secure_fl.display.run_page import article

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONFIDENCE = 0.95
SURER = (
    "`secure-fl evaluate RUN RUN --plan FILE` compares record by record, which finds smaller "
    "differences."
)


class ScoreDifference(NamedTuple):
    """Mean difference of two runs, paired by hospital."""

    mean: float
    half: float | None  # half of the interval; None: there is only one hospital
    hospitals: int

    def __str__(self) -> str:
        interval = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:+.1f}{interval}"


def difference(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], fewest: int = 1
) -> ScoreDifference | None:
    """Compute the mean difference of the main test score over at least `fewest` hospitals."""
    from scipy.stats import t

    pairs = []
    for name in sorted(set(ours.get("parties", ())) & set(theirs.get("parties", ()))):
        scores = [metric_of(document, "delivered", "test", name) for document in (ours, theirs)]
        if None not in scores and ours.get("main_metric") == theirs.get("main_metric"):
            pairs.append(float(scores[0] or 0.0) - float(scores[1] or 0.0))
    if len(pairs) < fewest:
        return None
    half = None
    if len(pairs) > 1:
        quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1))
        half = quantile * stdev(pairs) / math.sqrt(len(pairs))
    return ScoreDifference(fmean(pairs), half, len(pairs))


def side_by_side(histories: Sequence[RunHistory]) -> Grid:
    """Make a row for each run; differences are from the first, in points."""
    first, names = histories[0], names_of(histories)
    rows = []
    for place, history in enumerate(histories):
        found = difference(history.document, first.document, first.fewest) if place else None
        up, _ = traffic(history.document)
        total = history.document.get("seconds", {}).get("total")
        rows.append(
            [
                names[place],
                history.algorithm,
                history.protection,
                f"{history.round}/{history.rounds}",
                number(metric_of(history.document, "delivered", "dev")),
                _tested(history),
                "" if not place else "-" if found is None else str(found),
                size(up) if up else "-",
                "-" if total is None else duration(total),
            ]
        )
    metric = first.metric_name
    heads = ["run", "algorithm", "protection", "round", f"dev {metric}", f"test {metric}"]
    return grid("", [*heads, "to the first, points", "sent", "time"], rows)


def explained(histories: Sequence[RunHistory]) -> str:
    """Explain the interval."""
    first = histories[0]
    found = [difference(one.document, first.document, first.fewest) for one in histories[1:]]
    hospitals = {one.hospitals for one in found if one is not None}
    if not hospitals:
        return f"The runs share no hospital with test scores, so no interval can be given. {SURER}"
    count = " or ".join(map(str, sorted(hospitals)))
    return (
        f"Differences are means over the {count} hospitals of both runs, paired by hospital; "
        "± is a 95 % interval of the paired t test; one that contains 0 shows no difference. "
        f"{SURER}"
    )


def other_data(histories: Sequence[RunHistory]) -> str | None:
    """Warn of runs on different records or tasks; None if these settings are equal."""
    fields = [row[0] for row in settings_apart(histories) if row[0].startswith(("data.", "task."))]
    if not fields:
        return None
    return f"These runs have different data, so their scores do not compare: {', '.join(fields)}."


def settings_apart(histories: Sequence[RunHistory]) -> list[list[str]]:
    """List settings with different values; skip those of one algorithm only."""
    flat = [dict(_flat(history.settings)) for history in histories]
    rows = []
    for name in sorted(set().union(*flat)):
        known = [found[name] for found in flat if name in found]
        lacking = len(known) < len(flat) and not name.startswith("algorithm.")
        if lacking or len(set(known)) > 1:
            rows.append([name, *(found.get(name, "-") for found in flat)])
    return rows


def comparison_page(
    histories: Sequence[RunHistory], *, shared: bool = False, audited: str = ""
) -> str:
    """Render runs on one page: the comparison, then each run; `audited` is about their audits."""
    histories = [shareable(history) if shared else history for history in histories]
    names = names_of(histories)
    body = section("compared", "Side by side", comparison(histories) + audited, 2)
    for place, (name, history) in enumerate(zip(names, histories, strict=True), start=1):
        body += section(f"run{place}", name, article(history, f"run{place}", shared=shared), 2)
    links = {"compared": "Side by side"} | {f"run{k}": name for k, name in enumerate(names, 1)}
    return page(listed(names), "Federated training runs, compared", links, body)


def comparison(histories: Sequence[RunHistory]) -> str:
    """Render the comparison of runs."""
    laid = side_by_side(histories)
    names = [row[0] for row in laid.rows]
    body = table("The runs", laid.columns, laid.rows) + paragraph(explained(histories))
    for split in ("dev", "test"):
        curves = [
            Curve(name, history.curve(split) or history.mean(split))
            for name, history in zip(names, histories, strict=True)
        ]
        metric = histories[0].metric_name
        title = f"{metric[:1].upper()}{metric[1:]} over all {split} records, by round"
        body += chart(f"compared-{split}", curves, "round", title, number)
    body += figure("scores-epsilon", score_chart("scores-epsilon", histories))
    heads = ["field", *names]
    return body + table("Settings that differ", heads, settings_apart(histories), figures=False)


def _tested(history: RunHistory) -> str:
    """Format the test score, with its interval if it is over all hospitals' records."""
    value = metric_of(history.document, "delivered", "test")
    found = interval_of(history.document)
    return number(value) + (f" [{number(found[0])}, {number(found[1])}]" if found else "")


def names_of(histories: Sequence[RunHistory]) -> list[str]:
    """Return the runs' names, numbered if they are not unique."""
    names = [history.name for history in histories]
    numbered = [f"{place}. {name}" for place, name in enumerate(names, start=1)]
    pairs = zip(names, numbered, strict=True)
    return [place if names.count(name) > 1 else name for name, place in pairs]


def listed(names: Sequence[str]) -> str:
    """Join names for a sentence, by semicolons if a name contains a comma."""
    mark = "; " if any("," in name for name in names) else ", "
    return " and ".join(filter(None, (mark.join(names[:-1]), names[-1])))


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


AWAY = 4.0  # times the largest ε: the place of runs without a bound
APART = 1.04  # factor between the places of two lines, so that intervals stay legible


class EpsilonPoint(NamedTuple):
    """A value of a run, with its 95 % interval if one is known."""

    epsilon: float | None  # None: without bound
    value: float
    interval: tuple[float, float] | None = None


Lines = Mapping[str, Sequence[EpsilonPoint]]


def bounds_of(lines: Lines) -> list[float]:
    """Return the different ε of all points, without those that are not bounded."""
    every = (point.epsilon for points in lines.values() for point in points)
    return sorted({ε for ε in every if ε is not None})


def ends_of(lines: Lines) -> tuple[float, float]:
    """Return the first place of the axis, and that of runs without a bound."""
    bounded = bounds_of(lines)
    return bounded[0] / 2, AWAY * bounded[-1]


def draw_over_epsilon(ax: Axes, lines: Lines) -> None:
    """Draw lines with intervals, and the axis."""
    from matplotlib.ticker import FuncFormatter

    low, edge = ends_of(lines)
    for place, (label, points) in enumerate(lines.items()):
        xs = [(edge if p.epsilon is None else p.epsilon) * APART**place for p in points]
        ends = [p.interval or (p.value, p.value) for p in points]
        below = [max(p.value - end[0], 0.0) for p, end in zip(points, ends, strict=True)]
        above = [max(end[1] - p.value, 0.0) for p, end in zip(points, ends, strict=True)]
        values = [p.value for p in points]
        style: dict[str, Any] = {"label": short(label), "ms": 5, "capsize": 3}
        style |= look(place, True)
        ax.errorbar(xs, values, yerr=[below, above], **style)
    unbounded = any(p.epsilon is None for points in lines.values() for p in points)
    ax.set(xscale="log", xlim=(low, edge * 1.5))
    ax.set_xticks([*bounds_of(lines), *([edge] if unbounded else [])])
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "none" if value == edge else f"{value:.3g}")
    )
    ax.minorticks_off()


def score_chart(name: str, histories: Sequence[RunHistory]) -> Chart | None:
    """Draw the test score over ε, a line for each algorithm and kind of noise.

    Runs with one ε, such as those of several seeds, are averaged. None: no ε differs.
    """
    lines = scores_over_epsilon(histories)
    different = {p.epsilon for points in lines.values() for p in points}
    if len(different) < 2:
        return None
    metric = histories[0].metric_name
    title = f"{metric[:1].upper()}{metric[1:]} over ε, test records"

    def draw(ax: Axes) -> None:
        draw_over_epsilon(ax, lines)
        ax.set_xlabel(f"ε of a {unit_of(histories)} (none: without bound)")
        ax.set_ylabel(metric)

    told = [
        f"{label}, ε = {'∞' if p.epsilon is None else f'{p.epsilon:.3g}'}: {number(p.value)}"
        for label, points in lines.items()
        for p in points
    ]
    return Chart(draw_svg(draw, name), f"{title}. {'; '.join(told)}.", title)


def scores_over_epsilon(histories: Sequence[RunHistory]) -> dict[str, list[EpsilonPoint]]:
    """Collect the test scores of finished runs by method, in the order of ε."""
    found: dict[str, dict[float | None, list[EpsilonPoint]]] = {}
    for history in histories:
        document, privacy = history.document, history.document.get("privacy") or {}
        value = metric_of(document, "delivered", "test")
        other = history.metric != histories[0].metric
        if value is None or other or privacy.get("withheld"):
            continue
        noise = f", {privacy['noise']} noise" if "noise" in privacy else ""
        ε = privacy.get("members", privacy.get("overall_epsilon"))
        ε = None if ε is None else float(f"{ε:.3g}")
        points = found.setdefault(history.algorithm + noise, {}).setdefault(ε, [])
        points.append(EpsilonPoint(ε, value, interval_of(document)))
    return {label: [_mean(by[ε]) for ε in sorted(by, key=_order)] for label, by in found.items()}


def unit_of(histories: Sequence[RunHistory]) -> str:
    """Return the unit of ε; several units make it "unit"."""
    units = {(h.document.get("privacy") or {}).get("unit") for h in histories} - {None}
    return str(units.pop()) if len(units) == 1 else "unit"


def _mean(points: Sequence[EpsilonPoint]) -> EpsilonPoint:
    if len(points) == 1:
        return points[0]
    return EpsilonPoint(points[0].epsilon, fmean(point.value for point in points))


def _order(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon
