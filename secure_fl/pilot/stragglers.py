"""For whom a coordinator waits, and since when: noted once, and again when it is somebody else."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from threading import Event
from typing import Protocol

from secure_fl.events import EventLog, Stragglers, StragglersAnswered, Waiting

PATIENCE = 60.0  # seconds that a step may take before it is told whose answer is missing


class Presence(Protocol):
    """An engine's end that knows who is there."""

    def wait_for(self, parties: Collection[str], timeout: float) -> frozenset[str]:
        """Wait until these are connected; return those that are not."""

    def waited_for(self) -> Mapping[str, float]:
        """Who has not answered the step under way, and for how many seconds."""


def arrived(
    hub: Presence,
    names: Collection[str],
    patience: float,
    log: EventLog,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Wait for all, as long as patience lasts and nobody stops it; note for whom, at changes."""
    until, noted = time.monotonic() + patience, None
    while missing := hub.wait_for(names, min(1.0, max(0.0, until - time.monotonic()))):
        if missing != noted:
            here = sorted(set(names) - missing)
            end = round(time.time() + max(0.0, until - time.monotonic()))
            away, there = tuple(sorted(missing)), tuple(here)
            log.event(Waiting(code="arrival", parties=away, members=there, until=end))
            noted = missing
        if stopping() or time.monotonic() >= until:
            return


class StragglerWatch:
    """Looks whose answer a step waits for; called every few seconds."""

    def __init__(self, hub: Presence, log: EventLog, patience: float = PATIENCE) -> None:
        self._hub, self._log, self._patience = hub, log, patience
        self._noted: dict[str, float] = {}  # who is late, and at which second it is told again

    def __call__(self, over: Event) -> None:
        """Note who is late: at once, and each time that it has taken twice as long."""
        waited = self._hub.waited_for()
        late = {n: s for n, s in waited.items() if s > self._patience}
        if over.is_set():
            return
        if back := sorted(self._noted.keys() - late.keys()):
            self._log.event(StragglersAnswered(parties=tuple(back)))
        self._noted = {n: at for n, at in self._noted.items() if n in late}
        if any(seconds > self._noted.get(name, 0.0) for name, seconds in late.items()):
            slowest = max(late.values())
            self._log.event(Stragglers(parties=tuple(sorted(late)), seconds=slowest))
            self._noted = {name: 2 * seconds for name, seconds in late.items()}
