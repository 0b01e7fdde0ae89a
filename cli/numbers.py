"""Numbers on a command line: told what is allowed as in settings; NaN is in no range."""

from __future__ import annotations

import math

import click

MOST_RECORDS = 10_000_000  # of a hospital: more is a slip of the hand, and would fill the disk


class Whole(click.IntRange):
    """A whole number in a range."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read it, or say what is allowed."""
        try:
            number = int(str(value))
        except ValueError:
            self.fail(refusal(value, "a whole number", self), param, ctx)
        if not _inside(number, self):
            self.fail(refusal(value, "a whole number", self), param, ctx)
        return number


class Real(click.FloatRange):
    """A finite number in a range."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it, or say what is allowed."""
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not _inside(number, self):
            self.fail(refusal(value, "a number", self), param, ctx)
        return number


Range = Whole | Real


def refusal(value: object, kind: str, range_: Range) -> str:
    """Say what was found, and what is allowed."""
    least, most = range_.min, range_.max
    parts = [kind]
    if least is not None:
        parts.append(f"{'above' if range_.min_open else 'from'} {least:g}")
    if most is not None:
        to = "to" if least is not None and not range_.min_open else "up to"
        parts.append(f"{'and below' if range_.max_open else to} {most:,.0f}")
    elif least is not None and not range_.min_open:
        parts.append("on")
    return f"found {str(value)[:40]}; allowed: {' '.join(parts)}"


def _inside(number: float, range_: Range) -> bool:
    least = -math.inf if range_.min is None else range_.min
    most = math.inf if range_.max is None else range_.max
    above = number > least if range_.min_open else number >= least
    below = number < most if range_.max_open else number <= most
    return above and below
