"""Comparison of rendered output at 80 columns with stored text.

`SCREENS=write pytest tests/display` rewrites the stored files; then read the diff.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

WIDTHS = (80,)
KEPT = Path(__file__).parent.parent / "display" / "screens"


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(thing: RenderableType, width: int) -> str:
    """A thing as a terminal of this width shows it, without what is blank at the right."""
    said = io.StringIO()
    console = Console(file=said, width=width, markup=False, emoji=False, highlight=False)
    console.print(thing)
    return "\n".join(line.rstrip() for line in said.getvalue().splitlines())


def require_screen(name: str, thing: RenderableType) -> None:
    """Compare what all widths show with what is kept."""
    require_text(name, "\n".join(f"--- {w} columns\n{drawn(thing, w)}" for w in WIDTHS))


def require_text(name: str, text: str) -> None:
    """Compare a text with what is kept under this name."""
    kept = KEPT / f"{name}.txt"
    if os.environ.get("SCREENS") == "write":
        kept.write_text(f"{text}\n", encoding="utf-8")
    assert f"{text}\n" == kept.read_text(encoding="utf-8")
