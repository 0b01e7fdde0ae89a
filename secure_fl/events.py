"""What a party writes down about its own run; it stays at the party.

Events, metrics, seconds per phase, and every message that crossed its door.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Event = dict[str, Any]
Counts = dict[str, list[float]]
Listener = Callable[[Event], None]


class Crossing(NamedTuple):
    """One message through the door: who may learn what it carries, its size and its digest."""

    round: int
    exchange: int
    direction: str  # "out" or "in"
    kind: str
    audience: str
    head_bytes: int
    bulk_bytes: int
    digest: str


@dataclass(slots=True)
class EventLog:
    """Collects what happened and passes each event on as it happens."""

    party: str
    listener: Listener | None = None
    round: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    clock: Callable[[], float] = time.perf_counter  # of phases

    def event(self, kind: str, /, **details: Any) -> None:
        """Tell the listener (a run's folder, a progress display)."""
        if self.listener:
            self.listener({"event": kind, "party": self.party} | details)

    def metrics(
        self, round: int, values: dict[str, float], counts: Counts | None = None, **labels: Any
    ) -> None:
        """Remember a round's metrics; checkpoints keep the history, so a resumed run has it too.

        `counts`: what they follow from, and what adds up over hospitals.
        """
        counted = {} if counts is None else {"counts": counts}
        self.history.append({"round": round, **labels, **values, **counted})
        self.event("metrics", round=round, **labels, **values)

    def pooled(self, round: int, values: dict[str, float], counts: Counts, **labels: Any) -> None:
        """Remember metrics over the records of all hospitals, and the sums they follow from."""
        found = {"round": round, "pooled": True, **labels, **values, "counts": counts}
        self.history.append(found)
        self.event("pooled", round=round, **labels, **values)

    def crossing(self, crossing: Crossing) -> None:
        """Enter a message into the transcript."""
        size = crossing.head_bytes + crossing.bulk_bytes
        if crossing.direction == "out":
            self.bytes_up += size
        else:
            self.bytes_down += size
        self.event("crossing", **crossing._asdict())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to the phase's total."""
        start = self.clock()
        try:
            yield
        finally:
            self.spent(name, self.clock() - start)

    def spent(self, name: str, seconds: float) -> None:
        """Add seconds to a phase's total."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
