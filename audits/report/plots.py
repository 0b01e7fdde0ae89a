"""The report's plots: each with a sentence that says the same, or nothing if there is no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from secure_fl.audits.document import PointPart, RocPart, SeriesPart
from secure_fl.audits.report import curves
from secure_fl.audits.report.svg import INK, MARKS, SOFT, look, short, svg
from secure_fl.audits.report.terms import epsilon, number, size


class Plot(NamedTuple):
    """An SVG element and the sentence that stands in for it."""

    svg: str
    alternative: str


class Spot(NamedTuple):
    """One point of the plot of accuracy and leakage."""

    leakage: float
    label: str
    accuracy: float
    deployed: bool


def accuracy_leakage(points: Sequence[PointPart], name: str) -> Plot | None:
    """Each run a point: how well it predicts, and how much an attack recovers."""
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
        ax.set(xlim=(low - pad, high + pad), ylim=(-0.06, 1.06))
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel("accuracy (right is better)")
        ax.set_ylabel("leakage (lower is better)")
        for spot, height in zip(spots, _apart([s.leakage for s in spots]), strict=True):
            _mark(ax, spot, height)

    said = "; ".join(
        f"{s.label}: accuracy {number(s.accuracy)}, leakage {number(s.leakage)}" for s in spots
    )
    return Plot(svg(draw, name, (0.09, 0.47)), f"Accuracy against leakage. {said}.")


def _apart(levels: Sequence[float]) -> list[float]:
    """Heights for labels of points that fall: near their points, and never on each other."""
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


def roc(items: Sequence[RocPart], name: str) -> Plot | None:
    """True against false positives of membership attacks, on log axes."""
    known = [curve for curve in items if any(x > 0 for x in curve.fpr)]
    if not known:
        return None
    finest = min(curves.resolution(curve) for curve in known)
    low = 10.0 ** min(max(math.floor(math.log10(finest)), -5), -2)

    def draw(ax: Axes) -> None:
        ax.plot([low, 1], [low, 1], color=SOFT, lw=1, ls=":", label="guessing")
        for place, curve in enumerate(known):
            shown = [(max(x, low), max(y, low)) for x, y in curves.steps(curve)]
            ax.step(
                *zip(*shown, strict=True), where="post", label=short(curve.label), **look(place)
            )
        ax.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.05))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_xlabel("false positive rate")
        ax.set_ylabel("true positive rate")

    said = "; ".join(f"{c.label}: area under the curve {number(curves.area(c))}" for c in known)
    return Plot(svg(draw, name), f"True positives against false positives, log axes. {said}.")


def budget(items: Sequence[SeriesPart], limits: Sequence[float], name: str) -> Plot | None:
    """ε spent over rounds, a curve for each ledger, and the budget that may not be exceeded."""

    def limit(ax: Axes) -> None:
        for one in sorted(set(limits)):
            ax.axhline(one, color=SOFT, lw=1, ls=":", label=f"budget {epsilon(one)}")
        ax.set_ylabel("ε spent")

    return _over_rounds(items, name, limit, "ε spent over rounds", number)


def traffic(items: Sequence[SeriesPart], name: str) -> Plot | None:
    """Bytes over rounds."""

    def bytes_axis(ax: Axes) -> None:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
        ax.set_ylabel("bytes in a round")

    return _over_rounds(items, name, bytes_axis, "Bytes over rounds", size)


def spectra(items: Sequence[SeriesPart], name: str) -> Plot | None:
    """Cumulative energy against the share of singular values (FedKD, Fig. 6)."""
    known = [(curve, *curves.points(curve)) for curve in items if curves.points(curve)[0]]
    if not known:
        return None

    def draw(ax: Axes) -> None:
        for place, (curve, xs, ys) in enumerate(known):
            ax.plot([0.0, *xs], [0.0, *ys], label=short(curve.label), **look(place))
        ax.axhline(0.95, color=SOFT, lw=1, ls=":", label="95 %")
        ax.set(xlim=(0, 1), ylim=(0, 1.03))
        ax.set_xlabel("share of singular values, largest first")
        ax.set_ylabel("cumulative energy")

    said = "; ".join(
        f"{curve.label}: {curves.needed(curve, 0.95)} of {len(ys)} singular values hold 95 %"
        for curve, _, ys in known
    )
    return Plot(svg(draw, name), f"Cumulative energy of singular values. {said}.")


def _over_rounds(
    items: Sequence[SeriesPart],
    name: str,
    finish: Callable[[Axes], None],
    title: str,
    say: Callable[[float], str],
) -> Plot | None:
    known = [(c.label, xs, ys) for c in items for xs, ys in [curves.points(c)] if xs]
    if not known:
        return None

    def draw(ax: Axes) -> None:
        for place, (label, xs, ys) in enumerate(known):
            mark: dict[str, Any] = {"marker": MARKS[place % len(MARKS)], "ms": 4.5, "mfc": "none"}
            ax.plot(xs, ys, label=short(label), **look(place), **mark)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("round")
        finish(ax)
        ax.set_ylim(0, (max(ax.get_ylim()[1], 0) or 1) * 1.04)

    said = "; ".join(f"{label}: {say(ys[0])} first, {say(ys[-1])} last" for label, _, ys in known)
    return Plot(svg(draw, name), f"{title}. {said}.")
