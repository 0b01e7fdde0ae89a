"""Clocks for parties that take turns in one process: each counts its own CPU seconds only."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from secure_fl.events import EventLog, Listener
from secure_fl.federation import federation, prepared

T = TypeVar("T")


class CpuRecorder(EventLog):
    """A recorder whose phases are CPU seconds: other jobs on the machine do not count."""

    def __init__(self, party: str, listener: Listener | None = None) -> None:
        super().__init__(party, listener, clock=time.process_time)


@contextmanager
def cpu_seconds() -> Iterator[None]:
    """While it lasts, federations in this process record CPU seconds."""
    for module in (federation, prepared):
        setattr(module, "EventLog", CpuRecorder)  # noqa: B010 - a class, for a while
    try:
        yield
    finally:
        for module in (federation, prepared):
            setattr(module, "EventLog", EventLog)  # noqa: B010


class Clocked(Generic[T]):
    """A coroutine with a clock that runs while it does, and not while it waits for others."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        """Pass on what the coroutine asks, and what it is answered."""
        answer = None
        while True:
            start = time.process_time()
            try:
                asked = self._work.send(answer)
            except StopIteration as ended:
                value: T = ended.value
                return value
            finally:
                self.seconds += time.process_time() - start
            answer = yield asked
