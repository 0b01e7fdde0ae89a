"""A coordinator that changes what it sends, under its own signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.protocol import frames as wire
from secure_fl.protocol.frames import Frame, Link

Change = Callable[[str, Any, bytes], tuple[Any, bytes]]  # of a receiver, a message and its bulk


@dataclass
class LyingEngine:
    """Changes the coordinator's frames on their way to a party, and signs them again."""

    inner: Engine
    links: Mapping[str, Link]
    change: Change

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        yield from self.inner.exchange(
            {party: self._changed(party, frame) for party, frame in frames.items()}, deadline
        )

    def _changed(self, party: str, frame: Frame) -> Frame:
        envelope = wire.peek(frame.head)
        message, data = self.change(party, envelope.message, frame.bulk)
        if message is envelope.message and data is frame.bulk:
            return frame
        size, digest = len(data), wire.digest(data)
        again = structs.replace(envelope, message=message, size=size, digest=digest)
        return wire.encode(again, data, self.links[party].me.sign)


def lying_coordinator(change: Change) -> Callable[..., Coordinator]:
    """For `federate(lead=...)`."""

    def make(links: Mapping[str, Link], engine: Engine, *rest: Any, **named: Any) -> Coordinator:
        return Coordinator(links, LyingEngine(engine, links, change), *rest, **named)

    return make
