"""Lines that stay below a log, at a terminal: drawn again each second, and after every line."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable, Sequence

EVERY = 1.0  # seconds
MOST = 6  # lines: a log above them should still be seen
NARROWEST = 20


class Footer:
    """Draws what `lines` says at the end of a terminal, until it is stopped."""

    def __init__(self, lines: Callable[[], Sequence[str]], terminal: int) -> None:
        """`terminal`: a file descriptor of one."""
        self._lines, self._terminal = lines, terminal
        self._lock, self._over = threading.Lock(), threading.Event()
        self._drawn = 0  # lines that stand there now
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        """Draw from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Take the lines away."""
        self._over.set()
        self._thread.join()
        with self._lock:
            self._erase()

    def above(self, write: Callable[[], object]) -> None:
        """Write whole lines where the footer stands, and draw it below them."""
        with self._lock:
            self._erase()
            write()
            if not self._over.is_set():
                self._draw()

    def _keep(self) -> None:
        while not self._over.is_set():
            self.above(lambda: None)
            self._over.wait(EVERY)

    def _erase(self) -> None:
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            self._put(f"\r{up}\x1b[J")
        self._drawn = 0

    def _draw(self) -> None:
        lines = fitted(self._lines(), self._columns())
        self._put("\n".join(lines))
        self._drawn = len(lines)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal).columns or 80
        except OSError:
            return 80

    def _put(self, text: str) -> None:
        try:
            os.write(self._terminal, text.encode())
        except OSError:  # the terminal has gone; the run goes on
            self._over.set()


def fitted(lines: Sequence[str], columns: int) -> list[str]:
    """Broken between words to fit a terminal; what is left out at the end leaves a mark."""
    room = max(columns - 1, NARROWEST)  # a full line would wrap by itself
    folded = [part for line in lines for part in _wrapped(line, room)]
    if len(folded) <= MOST:
        return folded
    last = folded[MOST - 1]
    return [*folded[: MOST - 1], f"{last[: room - 4]} ..."]


def _wrapped(line: str, room: int) -> list[str]:
    """Names with hyphens stay whole as long as they fit."""
    return textwrap.wrap(line, room, subsequent_indent="  ", break_on_hyphens=False)
