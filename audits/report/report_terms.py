"""Terms and number formats of the report.

Each term has an icon of its own shape, so a page printed in black and white loses nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Term(NamedTuple):
    """One term of the report, with its icon and its meaning."""

    icon: str  # the shape's name in icons.html.j2
    word: str
    meaning: str


ACCESS: Mapping[str, Term] = {
    "everything": Term("full", "everything", "readable, in full or in large part"),
    "of a sum": Term("half", "only a sum", "readable only added up over several hospitals"),
    "sizes": Term("quarter", "sizes only", "sizes, counts and timing; no content"),
    "nothing": Term("empty", "nothing", "attacks find nothing, but work without protection"),
    "own": Term("own", "its own", "the role's own data, or what it makes itself"),
    "not tested": Term("untried", "not tested", "no attack was run, so nothing is claimed"),
    "inconclusive": Term("doubt", "inconclusive", "attacks ran, but their controls failed"),
}
ABSENT = Term("dash", "not stated", "the audit says nothing about it")

VERDICTS: Mapping[str, Term] = {
    "holds": Term("empty", "holds", "the attack works without protection, and not here"),
    "leaks": Term("full", "leaks", "the attack works here"),
    "inconclusive": Term("doubt", "inconclusive", "a control failed: this shows nothing"),
    "not tested": Term("untried", "not tested", "the attack was not run on all three"),
}

STATUS: Mapping[str, Term] = {
    "within policy": Term("check", "kept", "Every limit is kept."),
    "beyond policy": Term("cross", "exceeded", "At least one limit is exceeded."),
    "inconclusive": Term(
        "doubt", "not shown", "The audit could not show that every limit is kept."
    ),
}


def number(value: float | None) -> str:
    """Format a figure with three significant digits, and whole numbers in full."""
    if value is None:
        return "none"
    if not math.isfinite(value):
        return "∞" if value == math.inf else "not a number"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1:
        return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return re.sub(r"e([+-])0*", lambda power: f"e{power[1].strip('+')}", f"{value:.3g}")


def epsilon(value: float | None) -> str:
    """Format a privacy loss; None means that there is no bound."""
    return "∞ (no bound)" if value is None or value == math.inf else number(value)


def plain(value: Any) -> str:
    """Format any JSON value as short text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(v)}" for key, v in ordered(value)) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(plain(v) for v in value) or "none"
    return json.dumps(value, sort_keys=True)


def capital(text: str) -> str:
    """Capitalise the first letter, and leave the others."""
    return text[:1].upper() + text[1:]


def ordered(items: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort names and values by name, as the document's file does."""
    return sorted(items.items())


def shortened(text: str, longest: int = 600) -> str:
    """Cut a long text, and say where the rest is."""
    return text if len(text) <= longest else f"{text[:longest]} ... (all of it is in audit.json)"


def positions(evidence: Iterable[str]) -> str:
    """List places of evidence, with neighbours merged: "wire/17 to 19, model/0"."""
    places: list[str] = []
    last: tuple[str, int] | None = None
    for item in evidence:
        cut = re.fullmatch(r"(.*/)(\d{1,15})", item, re.DOTALL)
        here = (cut[1], int(cut[2])) if cut else None
        if here and last and here == (last[0], last[1] + 1):
            places[-1] = f"{places[-1].split(' to ')[0]} to {here[1]}"
        else:
            places.append(item)
        last = here
    return shortened(", ".join(places)) or "none"


def listing(items: Iterable[str]) -> str:
    """Join items as a sentence does: "a, b and c"."""
    *most, last = list(items) or ["none"]
    return f"{', '.join(most)} and {last}" if most else last
