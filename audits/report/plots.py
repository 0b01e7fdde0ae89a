"""The report's plots. Each has a sentence that says the same; None: there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from secure_fl.audits.document import PointPart, RocPart, SeriesPart
from secure_fl.audits.report.report_tables import area, finite, needed, resolution, steps
from secure_fl.audits.report.sentences import epsilon, number
from secure_fl.display.charts import INK, SOFT, Chart, Curve, draw_svg, line_chart, look, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Spot(NamedTuple):
    """One point of the plot of accuracy and leakage."""

    leakage: float
    label: str
    accuracy: float
    deployed: bool


def accuracy_leakage(points: Sequence[PointPart], name: str) -> Chart | None:
    """Draw each run as a point: its accuracy, and how much an attack recovers."""
    spots = [
        Spot(p.leakage, p.label + (" (deployed)" if p.deployed else ""), p.accuracy, p.deployed)
        for p in points
        if p.accuracy is not None and p.leakage is not None
    ]
    spots = sorted(s for s in spots if math.isfinite(s.leakage + s.accuracy))[::-1]
    if not spots:
        return None
    low, high = min(s.accuracy for s in spots), max(s.accuracy for s in spots)
    pad = max((high - low) * 0.15, 0.02)

    def draw(ax: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        ax.set(xlim=(low - pad, high + pad), ylim=(-0.06, 1.06))
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel("accuracy (right is better)")
        ax.set_ylabel("leakage (lower is better)")
        for spot, height in zip(spots, label_heights([s.leakage for s in spots]), strict=True):
            _mark(ax, spot, height)

    lines = "; ".join(
        f"{s.label}: accuracy {number(s.accuracy)}, leakage {number(s.leakage)}" for s in spots
    )
    return Chart(draw_svg(draw, name, (0.09, 0.47)), f"Accuracy against leakage. {lines}.")


def label_heights(levels: Sequence[float]) -> list[float]:
    """Place labels of points in falling order: near their points, and never on each other."""
    gap = 1.1 / max(len(levels), 9)
    heights, above = [], 1.06 + gap
    for place, level in enumerate(levels):
        room_below = gap * (len(levels) - 1 - place) - 0.06
        above = max(min(above - gap, level), room_below)
        heights.append(above)
    return heights


def _mark(ax: Axes, spot: Spot, height: float) -> None:
    mark, face, weight = ("s", INK, "bold") if spot.deployed else ("o", "none", "normal")
    here = (spot.accuracy, spot.leakage)
    ax.plot(*([x] for x in here), mark, ms=8, mfc=face, mec=INK, clip_on=False, zorder=3)
    ax.annotate(
        short(spot.label, 34),
        here,
        (1.03, height),
        textcoords=ax.get_yaxis_transform(),
        va="center",
        weight=weight,
        annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": SOFT, "lw": 0.6, "shrinkB": 5, "relpos": (0, 0.5)},
    )


def roc(items: Sequence[RocPart], name: str) -> Chart | None:
    """Draw true against false positives of membership attacks, on log axes."""
    known = [curve for curve in items if any(x > 0 for x in curve.fpr)]
    if not known:
        return None
    finest = min(resolution(curve) for curve in known)
    low = 10.0 ** min(max(math.floor(math.log10(finest)), -5), -2)

    def draw(ax: Axes) -> None:
        from matplotlib.ticker import FuncFormatter

        ax.plot([low, 1], [low, 1], color=SOFT, lw=1, ls=":", label="guessing")
        for place, curve in enumerate(known):
            shown = [(max(x, low), max(y, low)) for x, y in steps(curve)]
            ax.step(
                *zip(*shown, strict=True), where="post", label=short(curve.label), **look(place)
            )
        ax.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.05))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_xlabel("false positive rate")
        ax.set_ylabel("true positive rate")

    areas = "; ".join(f"{c.label}: area under the curve {number(area(c))}" for c in known)
    return Chart(
        draw_svg(draw, name), f"True positives against false positives, log axes. {areas}."
    )


def budget(items: Sequence[SeriesPart], limits: Sequence[float], name: str) -> Chart | None:
    """Draw ε spent over rounds, a curve for each ledger, and the budgets."""
    levels = {f"budget {epsilon(limit)}": limit for limit in sorted(set(limits))}
    curves = [Curve(item.label, finite(item)) for item in items]
    return line_chart(
        name, curves, "round", "ε spent over rounds", number, from_zero=True, levels=levels
    )


def spectra(items: Sequence[SeriesPart], name: str) -> Chart | None:
    """Draw cumulative energy against the share of singular values (FedKD, Fig. 6)."""
    known = [(item, [(0.0, 0.0), *finite(item)]) for item in items if finite(item)]
    if not known:
        return None

    def draw(ax: Axes) -> None:
        for place, (item, points) in enumerate(known):
            ax.plot(*zip(*points, strict=True), label=short(item.label), **look(place))
        ax.axhline(0.95, color=SOFT, lw=1, ls=":", label="95 %")
        ax.set(xlim=(0, 1), ylim=(0, 1.03))
        ax.set_xlabel("share of singular values, largest first")
        ax.set_ylabel("cumulative energy")

    lines = "; ".join(
        f"{item.label}: {needed(item, 0.95)} of {len(points) - 1} singular values hold 95 %"
        for item, points in known
    )
    return Chart(draw_svg(draw, name), f"Cumulative energy of singular values. {lines}.")
