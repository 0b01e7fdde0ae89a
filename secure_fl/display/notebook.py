"""A place in a notebook's output that is drawn anew.

Rich's own way needs ipywidgets, and without them shows a warning and nothing else.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from html import escape
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 100
PAUSE = 0.25  # seconds between two drawings


class NotebookCell:
    """Shows what it is asked to, again and again, in the cell that it was started in."""

    def __init__(
        self, shown: Callable[[], RenderableType], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shown, self._clock, self._drawn = shown, clock, 0.0
        self._handle: Any = None

    def start(self) -> None:
        """Take a place in the output."""
        from IPython.display import display

        self._handle = display(self._html(), display_id=True)
        self._drawn = self._clock()

    def refresh(self) -> None:
        """Draw anew, but not too often: each drawing is a message to the browser."""
        if self._clock() - self._drawn >= PAUSE:
            self.stop()

    def stop(self) -> None:
        """Draw how it is now."""
        if self._handle is not None:
            self._handle.update(self._html())
            self._drawn = self._clock()

    def _html(self) -> Any:
        from IPython.display import HTML

        text = io.StringIO()
        console = Console(
            file=text,
            force_jupyter=False,
            force_terminal=False,
            color_system=None,
            width=WIDTH,
            markup=False,
            emoji=False,
            highlight=False,
        )
        console.print(self._shown())
        return HTML(f'<pre style="line-height: 1.3">{escape(text.getvalue())}</pre>')
