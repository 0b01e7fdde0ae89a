"""Draws with matplotlib and gives SVG to be inlined: same figures, same bytes, ids of its own.

Colours are names that the page's style defines, so one plot serves light, dark and paper. Lines
also differ by dashes and markers, so that colour is never needed to tell them apart.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secure_fl.display.html import STYLE

INK, SOFT, LINE = "#010101", "#020202", "#030303"
INKS = ("#040404", "#050505", "#060606", "#070707", "#080808", "#090909")
NAMES = {INK: "ink", SOFT: "soft", LINE: "line"} | {c: f"s{i}" for i, c in enumerate(INKS, 1)}
DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (7, 2, 1, 2)), (0, (1, 1)), (0, (10, 3)))
WIDTH, HEIGHT, KEY = 7.4, 3.3, 0.24  # inches; of a plot, and of a line of its legend
MARKS = ("o", "s", "^", "D", "v", "P")
WITHOUT: dict[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "secure_fl",
    "text.parse_math": False,  # labels are data: a dollar sign is a dollar sign
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
}


def look(place: int) -> dict[str, Any]:
    """Colour and dashes of the curve in this place."""
    return {"color": INKS[place % len(INKS)], "ls": DASHES[place % len(DASHES)]}


def short(text: str, longest: int = 60) -> str:
    """A label on one line, which matplotlib takes as it is."""
    text = " ".join(text.split())
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return f" {text}" if text.startswith("_") else text  # it hides labels that begin with _


def svg(draw: Callable[[Axes], None], name: str, sides: tuple[float, float] = (0.12, 0.62)) -> str:
    """Draw on axes between these sides, with the legend, if any, below: names may be long."""
    # A reader's own matplotlib settings must not change the report.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has the fonts that we lack
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        figure = Figure(figsize=(WIDTH, HEIGHT))
        ax = figure.add_axes((sides[0], 0.15, sides[1] - sides[0], 0.81))
        draw(ax)
        lines, labels = ax.get_legend_handles_labels()
        if lines:
            whole = HEIGHT + KEY * len(lines)
            figure.set_size_inches(WIDTH, whole)
            top, tall = 1 - 0.04 * HEIGHT / whole, 0.81 * HEIGHT / whole
            ax.set_position((sides[0], top - tall, 0.97 - sides[0], tall))
            figure.legend(lines, labels, loc="lower left", bbox_to_anchor=(sides[0] - 0.02, 0))
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=WITHOUT)
    return _inline(text.getvalue(), name)


def alone(inlined: str, about: str) -> str:
    """A plot as a file of its own, which has no page to define colours and words."""
    sheet = STYLE.read_text(encoding="utf-8")
    light, dark = re.findall(r":root {(.*?)}", sheet, flags=re.DOTALL)[:2]
    style = (
        f"<style>svg {{ {' '.join(light.split())} font-family: system-ui, sans-serif }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {' '.join(dark.split())} }} }}</style>"
    )
    head, rest = inlined.split(">", 1)
    head = re.sub(r' (aria-labelledby|focusable)="[^"]*"', "", head)
    title = f"<title>{escape(about)}</title>"
    return f'{head} xmlns="http://www.w3.org/2000/svg">{title}{style}{rest}\n'


def _inline(text: str, name: str) -> str:
    head, rest = text[text.index("<svg") :].split(">", 1)
    head = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", head)
    head += f' role="img" aria-labelledby="{name}-alternative" focusable="false">'
    rest = re.sub(r"\s*<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = rest.replace("xlink:href", "href")
    rest = re.sub(r'<(\w+) id="', rf'<\1 id="{name}-', rest)
    rest = re.sub(r'(href="#|url\(#)', rf"\1{name}-", rest)
    coloured = re.sub("#0[1-9]0[1-9]0[1-9]", lambda hit: f"var(--{NAMES[hit[0]]})", rest)
    return head + coloured.strip()
