"""Charts for pages and notebooks: matplotlib draws them, pages embed the SVG.

Colours are names that the page's style defines, so one chart serves light, dark and paper. Lines
also differ by dashes and markers, so no reader needs the colours. Equal figures give equal bytes.
matplotlib is imported when the first chart is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from secure_fl.display.html import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point: TypeAlias = tuple[float, float]
Format: TypeAlias = Callable[[float], str]

INK, SOFT, LINE = "#010101", "#020202", "#030303"
INKS = ("#040404", "#050505", "#060606", "#070707", "#080808", "#090909")
NAMES = {INK: "ink", SOFT: "soft", LINE: "line"} | {c: f"s{i}" for i, c in enumerate(INKS, 1)}
DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (7, 2, 1, 2)), (0, (1, 1)), (0, (10, 3)))
MARKS = ("o", "s", "^", "D", "v", "P")
WIDTH, HEIGHT, KEY = 7.4, 3.3, 0.24  # inches: of a plot, and of one line of its legend
MOST, FEW = 200, 50  # points of a line, and of one faint line; further points are thinned out
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


class Curve(NamedTuple):
    """One line of a chart: its name, and points from left to right."""

    label: str
    points: Sequence[Point]
    faint: bool = False  # one of many, drawn thin and without a name


class Chart(NamedTuple):
    """An SVG element, and the sentence that replaces it for readers who do not see it."""

    svg: str
    alternative: str
    title: str = ""


class Bar(NamedTuple):
    """One horizontal bar, with a 95 % interval where one is known."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    faint: bool = False


def chart(name: str, curves: Sequence[Curve], across: str, up: str, form: Format,
          **options: Any) -> str:  # fmt: skip
    """Draw lines as a figure of a page (see `line_chart`); empty: too few points."""
    return figure(name, line_chart(name, curves, across, up, form, **options))


def figure(name: str, drawn: Chart | None) -> str:
    """Embed a chart in a page, with its title and its sentence."""
    if drawn is None:
        return ""
    title = escape(drawn.title)
    head = f'<p class="over">{title}</p>' if title else ""
    return (
        f'<figure>{head}<div class="plot" role="region" tabindex="0" aria-label="Plot: {title}">'
        f"{drawn.svg}</div>\n"
        f'<figcaption id="{name}-alternative">{escape(drawn.alternative)}</figcaption></figure>\n'
    )


def line_chart(
    name: str,
    curves: Sequence[Curve],
    across: str,
    up: str,
    form: Format,
    *,
    from_zero: bool = False,
    levels: Mapping[str, float] | None = None,
    many: str = "each of {} hospitals",
    fewest: int = 2,
) -> Chart | None:
    """Draw lines from left to right.

    `levels` are named horizontal lines, such as a budget; `many` names all faint lines together.
    None: no line has `fewest` points. A page of one round needs no picture of one point.
    """
    known = [_thinned(curve) for curve in curves if len(curve.points) >= fewest]
    if not known:
        return None
    named = [curve for curve in known if not curve.faint]
    faint = [curve for curve in known if curve.faint]

    def draw(ax: Axes) -> None:
        _draw_lines(ax, named, faint, many)
        for label, level in (levels or {}).items():
            ax.axhline(level, color=SOFT, lw=1, ls=":", label=label)
        _scale(ax, across, form, from_zero)

    svg = draw_svg(draw, name)
    for place, curve in enumerate(named):
        titles = [f"{curve.label}: {form(y)} at {x:g}" for x, y in curve.points]
        svg = _titled(svg, f"{name}-c{place}", titles)
    ends = [
        f"{curve.label}: {form(curve.points[0][1])} first, {form(curve.points[-1][1])} last"
        for curve in named or faint[:1]
    ]
    return Chart(svg, f"{'; '.join(ends)}.", up)


def bar_chart(
    name: str, bars: Sequence[Bar], title: str, form: Format, *, top: float | None = None
) -> Chart | None:
    """Draw horizontal bars from 0 to `top`, or to the longest; None: there are none."""
    if not bars:
        return None

    def draw(ax: Axes) -> None:
        for place, bar in enumerate(bars):
            ax.barh(place, bar.value, color=LINE if bar.faint else INKS[0], height=0.7)
            if bar.interval is not None:
                ax.plot(bar.interval, [place, place], color=INKS[1], lw=3)
            ax.annotate(
                form(bar.value), (1.01, place), xycoords=ax.get_yaxis_transform(), va="center"
            )
        ax.set_yticks(range(len(bars)), [short(bar.label, 28) for bar in bars])
        ax.set(ylim=(len(bars) - 0.5, -0.5), xlim=(0, top))
        ax.grid(axis="y", visible=False)

    alternative = "; ".join(f"{bar.label}: {form(bar.value)}" for bar in bars if not bar.faint)
    svg = draw_svg(draw, name, (0.36, 0.9), height=0.5 + 0.27 * len(bars))
    return Chart(svg, f"{alternative}.", title)


def look(place: int, marked: bool = False) -> dict[str, Any]:
    """Choose colour, dashes and, if asked for, marker of the line in this place."""
    marker = {"marker": MARKS[place % len(MARKS)], "mfc": "none"} if marked else {}
    return {"color": INKS[place % len(INKS)], "ls": DASHES[place % len(DASHES)], **marker}


def short(text: str, longest: int = 60) -> str:
    """Shorten a label to one line that matplotlib shows as it is."""
    text = " ".join(text.split())
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return f" {text}" if text.startswith("_") else text  # it hides labels that begin with _


def draw_svg(
    draw: Callable[[Axes], None],
    name: str,
    sides: tuple[float, float] = (0.12, 0.97),
    height: float = HEIGHT,
) -> str:
    """Draw on axes between these sides, with the legend, if any, below: names may be long."""
    import matplotlib
    from matplotlib.figure import Figure

    # A reader's own matplotlib settings must not change the page.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has the fonts that we lack
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        drawing = Figure(figsize=(WIDTH, height))
        ax = drawing.add_axes((sides[0], 0.5 / height, sides[1] - sides[0], 1 - 0.63 / height))
        draw(ax)
        lines, labels = ax.get_legend_handles_labels()
        if lines:
            tall = height + KEY * len(lines)
            drawing.set_size_inches(WIDTH, tall)
            bottom = (0.5 + KEY * len(lines)) / tall
            ax.set_position((sides[0], bottom, sides[1] - sides[0], 1 - 0.13 / tall - bottom))
            drawing.legend(lines, labels, loc="lower left", bbox_to_anchor=(sides[0] - 0.02, 0))
        text = io.StringIO()
        drawing.savefig(text, format="svg", transparent=True, metadata=WITHOUT)
    return _inline(text.getvalue(), name)


def standalone(drawn: Chart) -> str:
    """Write a chart as an SVG file, which has no page to define colours and words."""
    head, rest = drawn.svg.split(">", 1)
    head = re.sub(r' (aria-labelledby|focusable)="[^"]*"', "", head)
    title = f"<title>{escape(drawn.alternative)}</title>"
    style = colours("svg", "font-family: system-ui, sans-serif")
    return f'{head} xmlns="http://www.w3.org/2000/svg">{title}{style}{rest}\n'


def colours(element: str, more: str = "") -> str:
    """Write the style that defines the colours of charts for an element outside our pages."""
    sheet = STYLE.read_text(encoding="utf-8")
    light, dark = re.findall(r":root {(.*?)}", sheet, flags=re.DOTALL)[:2]
    named = [f"{element} {{ {' '.join(scheme.split())} {more} }}" for scheme in (light, dark)]
    return f"<style>{named[0]} @media (prefers-color-scheme: dark) {{ {named[1]} }}</style>"


def _draw_lines(ax: Axes, named: Sequence[Curve], faint: Sequence[Curve], many: str) -> None:
    for place, curve in enumerate(faint):
        label = "_" if place else many.format(len(faint))
        ax.plot(*zip(*curve.points, strict=True), color=LINE, lw=0.9, label=label)
    for place, curve in enumerate(named):
        size = 4.5 if len(curve.points) < 40 else 2
        points = zip(*curve.points, strict=True)
        ax.plot(*points, label=short(curve.label), gid=f"c{place}", ms=size, **look(place, True))


def _scale(ax: Axes, across: str, form: Format, from_zero: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
    ax.set_xlabel(across)
    if from_zero:
        ax.set_ylim(0, (max(ax.get_ylim()[1], 0) or 1) * 1.04)


def _thinned(curve: Curve) -> Curve:
    step = -(-len(curve.points) // (FEW if curve.faint else MOST))
    kept = [*curve.points[:-1:step], curve.points[-1]]
    return curve._replace(points=kept) if step > 1 else curve


def _titled(svg: str, group: str, titles: Sequence[str]) -> str:
    """Give each marker of a line a title, which browsers show without a script."""
    before, mark, after = svg.partition(f'<g id="{group}">')
    text = iter(titles)
    titled = re.sub(
        r"<use ([^>]*)/>",
        lambda use: f"<use {use[1]}><title>{escape(next(text))}</title></use>",
        after,
        count=len(titles),
    )
    return before + mark + titled


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
