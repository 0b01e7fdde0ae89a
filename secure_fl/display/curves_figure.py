"""A figure of matplotlib with a score over rounds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


class NotebookFigure(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        """Render for notebooks."""
        image = io.BytesIO()
        self.savefig(image, format="png", bbox_inches="tight")
        return image.getvalue()


def curves_figure(points: Mapping[str, Sequence[tuple[float, float]]], metric: str) -> Figure:
    """Draw a line for each name over rounds; lines over all records are thick."""
    figure = NotebookFigure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for label, curve in sorted(points.items()):
        rounds, values = zip(*curve, strict=True)
        pooled = label.startswith("all ")
        axes.plot(rounds, values, label=label, marker="o", ms=3, lw=2.2 if pooled else 0.9)
    axes.set_xlabel("round")
    axes.set_ylabel(metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")
    return figure
