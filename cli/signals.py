"""What Ctrl-C and SIGTERM do to a process that goes on for days."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

TELLING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Both end the process at once, but in order, until something is under way that can be asked.

    So SIGTERM is heard from the start on, also by process 1 of a container, which hears no signal
    that it does not listen for.
    """

    def __init__(self) -> None:
        self._ask: Callable[[], object] | None = None
        self._before: dict[int, Any] = {}

    def ask(self, stop: Callable[[], object]) -> None:
        """From now on, ask this to come to its end."""
        self._ask = stop

    def __enter__(self) -> Self:
        for number in TELLING:
            self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _told(self, number: int, frame: FrameType | None) -> None:
        if self._ask is None:
            raise KeyboardInterrupt
        self._ask()
