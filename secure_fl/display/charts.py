"""Line charts as SVG, drawn by hand: without a library a page can be written every few seconds.

Colours are names that the page's style defines, for light, dark and paper; curves also differ by
their dashes. Resting on a point shows its figures, without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple, TypeAlias

Point: TypeAlias = tuple[float, float]
Say: TypeAlias = Callable[[float], str]

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 100, 14, 12, 40
DASHES = ("", "7 3", "2 3", "9 3 2 3", "1 3", "12 4")
MOST, FEW = 200, 50  # points of a curve, and of one of many; more are thinned out
STEPS = 5  # between lines across, at most
NAMED = 6  # curves that have a colour of their own


class Curve(NamedTuple):
    """Points from left to right, and what they are."""

    label: str
    points: Sequence[Point]
    faint: bool = False  # one of many, drawn thin and without a name


def chart(
    name: str, curves: Sequence[Curve], across: str, up: str, say: Say, *, from_zero: bool = False
) -> str:
    """A figure with its legend, and a sentence that says the same; nothing if nothing is known."""
    known = [_thinned(curve) for curve in curves if curve.points]
    if not known:
        return ""
    box = _Box.around([point for curve in known for point in curve.points], from_zero)
    named = [curve for curve in known if not curve.faint]
    faint = [curve for curve in known if curve.faint]
    drawn = [_line(curve, box, "var(--line)", "", 1.2, say) for curve in faint]
    drawn += [
        _line(curve, box, _ink(place), DASHES[place % len(DASHES)], 2, say)
        for place, curve in enumerate(named)
    ]
    keys = [_key(curve.label, _ink(k), DASHES[k % len(DASHES)]) for k, curve in enumerate(named)]
    if faint:
        keys.append(_key(f"each of {len(faint)} hospitals", "var(--line)", ""))
    said = escape(_sentence(named or faint[:1], say))
    return (
        f'<figure class="chart"><p class="over" id="{name}-over">{escape(up)}</p>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{name}-over {name}-says">'
        f"{_axes(box, across, up, say)}{''.join(drawn)}</svg>"
        f'<p class="keys">{" ".join(keys)}</p>'
        f'<figcaption id="{name}-says">{said}</figcaption>'
        "</figure>"
    )


class _Box(NamedTuple):
    """What part of the plane is shown."""

    west: float
    east: float
    south: float
    north: float
    step: float  # between lines across, which stand at its multiples

    @classmethod
    def around(cls, points: Sequence[Point], from_zero: bool) -> _Box:
        across, up = [x for x, _ in points], [y for _, y in points]
        low, high = min(up), max(up)
        pad = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        south = 0.0 if from_zero or 0 <= low < high - low else low - pad
        step = _step((high + pad - south) / STEPS)
        east = max(across) if max(across) > min(across) else min(across) + 1
        return cls(
            min(across), east, step * floor(south / step), step * ceil((high + pad) / step), step
        )

    def x(self, value: float) -> float:
        share = (value - self.west) / (self.east - self.west)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.south) / (self.north - self.south)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, as readers count; no smaller than this."""
    power = 10.0 ** floor(log10(least))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))


def _thinned(curve: Curve) -> Curve:
    step = -(-len(curve.points) // (FEW if curve.faint else MOST))
    kept = [*curve.points[:-1:step], curve.points[-1]]
    return curve._replace(points=kept) if step > 1 else curve


def _ink(place: int) -> str:
    return f"var(--s{place % NAMED + 1})"


def _line(curve: Curve, box: _Box, ink: str, dash: str, width: float, say: Say) -> str:
    places = [(box.x(x), box.y(y)) for x, y in curve.points]
    path = " ".join(f"{x},{y}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="{3 if len(places) < 40 else 1.5}" fill="{ink}">'
        f"<title>{escape(curve.label)}: {escape(say(value))} at {at:g}</title></circle>"
        for (x, y), (at, value) in zip(places, curve.points, strict=True)
        if not curve.faint
    )
    style = f'fill="none" stroke="{ink}" stroke-width="{width}" stroke-dasharray="{dash}"'
    return f'<polyline points="{path}" {style}/>{dots}'


def _key(label: str, ink: str, dash: str) -> str:
    line = f'<line x1="0" y1="5" x2="26" y2="5" stroke="{ink}" stroke-width="2.5"'
    sample = (
        f'<svg width="26" height="10" aria-hidden="true">{line} stroke-dasharray="{dash}"/></svg>'
    )
    return f'<span class="key">{sample} {escape(label)}</span>'


def _axes(box: _Box, across: str, up: str, say: Say) -> str:
    bottom, parts = HEIGHT - BOTTOM, []
    for k in range(round((box.north - box.south) / box.step) + 1):
        value = box.south + box.step * k
        y = box.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" class="rule"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(say(value))}</text>'
        )
    whole = box.east - box.west
    step = max(1, round(whole / 8))
    for tick in range(round(box.west), round(box.east) + 1, step):
        parts.append(
            f'<text x="{box.x(tick)}" y="{bottom + 18}" text-anchor="middle">{tick}</text>'
        )
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(across)}</text>'
    )
    return f'<g class="axes">{"".join(parts)}</g><title>{escape(up)}</title>'


def _sentence(curves: Sequence[Curve], say: Say) -> str:
    said = [
        f"{curve.label}: {say(curve.points[0][1])} first, {say(curve.points[-1][1])} last"
        for curve in curves
    ]
    return f"{'; '.join(said)}."
