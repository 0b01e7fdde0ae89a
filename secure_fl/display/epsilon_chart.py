"""Charts over ε: a logarithmic axis, whose last place is for runs without a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from secure_fl.display.charts import Chart, draw_svg, look, short
from secure_fl.display.figures import metric_of, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from secure_fl.display.run_history import RunHistory

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
        value = metric_of(document, "last", "test")
        if value is None or history.metric != histories[0].metric:
            continue
        noise = f", {privacy['noise']} noise" if "noise" in privacy else ""
        ε = privacy.get("members", privacy.get("overall_epsilon"))
        ε = None if ε is None else float(f"{ε:.3g}")
        points = found.setdefault(history.algorithm + noise, {}).setdefault(ε, [])
        points.append(EpsilonPoint(ε, value, _interval(document, history.metric)))
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


def _interval(document: Mapping[str, Any], metric: str) -> tuple[float, float] | None:
    last = document.get("metrics", {}).get("last", {})
    found = last.get("intervals", {}).get("test", {}).get(metric)
    return None if found is None else (float(found[0]), float(found[1]))
