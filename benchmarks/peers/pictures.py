"""The pictures of docs/peers.md: what a round takes with each system, and how that grows.

Each is a file that needs no page around it, with a title that says what it shows in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from secure_fl.display.charts import INK, MARKS, SOFT, Chart, draw_svg, look, standalone
from secure_fl.display.figures import size

Document = Mapping[str, Any]

KINDS = ((True, "the server is blind"), (False, "the server reads updates"))


def rounds(document: Document) -> str:
    """Seconds of a round and bytes of a site, system by system, each with its least and most."""
    rows = [row for row in document["rows"].values() if row["turns"]][::-1]
    names = [f"{row['system'].removesuffix(', TLS')}: {size(_sent(row))}" for row in rows]

    def draw(ax: Axes) -> None:
        for (blind, what), mark, face in zip(KINDS, "so", (INK, "none"), strict=True):
            here = [k for k, row in enumerate(rows) if row["protected"] is blind]
            middles = [rows[k]["seconds"][0] for k in here]
            ax.plot(middles, here, mark, ms=8, mfc=face, mec=INK, label=what)
        for place, row in enumerate(rows):
            ax.plot(row["seconds"][1:], [place, place], color=SOFT, lw=1.2, zorder=1)
        ax.set(xscale="log", yticks=range(len(rows)), yticklabels=names)
        ax.set_ylim(-0.6, len(rows) - 0.4)
        _plain(ax)
        ax.set_xlabel("seconds of a round (log)")

    said = "; ".join(
        f"{name}, {row['seconds'][0]:.2f} s, {dict(KINDS)[row['protected']]}"
        for name, row in reversed(list(zip(names, rows, strict=True)))
    )
    about = f"Bytes of a site in a round, up and down, and seconds of a round. {said}."
    return standalone(Chart(draw_svg(draw, "rounds", (0.38, 0.97)), about))


def growth(curves: Mapping[str, Sequence[tuple[int, Document]]]) -> str:
    """Seconds of a round over the values of a model, a curve for each system."""

    def draw(ax: Axes) -> None:
        for place, (name, points) in enumerate(curves.items()):
            values, taken = zip(*((v, row["seconds"][0]) for v, row in points), strict=True)
            mark: dict[str, Any] = {"marker": MARKS[place], "ms": 6, "mfc": "none"}
            ax.plot(values, taken, label=name, **look(place), **mark)
        ax.set(xscale="log", yscale="log")
        _plain(ax)
        ax.set_xlabel("trained values (log)")
        ax.set_ylabel("seconds of a round (log)")

    said = ". ".join(f"{name}: {'; '.join(_points(points))}" for name, points in curves.items())
    about = f"Seconds of a round over the values of a model, log axes. {said}."
    return standalone(Chart(draw_svg(draw, "growth"), about))


def _points(points: Sequence[tuple[int, Document]]) -> Iterator[str]:
    for values, row in points:
        yield f"{values:,} values {row['seconds'][0]:.2f} s"


def _sent(row: Document) -> float:
    return float(row["up"][0] + row["down"][0])


def _plain(ax: Axes) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter(FuncFormatter(_figure))
            axis.set_minor_formatter(NullFormatter())


def _figure(value: float, _place: int | None) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
