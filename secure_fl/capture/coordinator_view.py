"""The coordinator's view: every frame that it sent or received, with its time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from secure_fl.capture.blobs import Blobs, Journal, Span, lines
from secure_fl.coordinator.machine import Engine
from secure_fl.protocol.frames import Envelope, Frame, digest, peek

STEM = "wire"


class FrameLine(msgspec.Struct, frozen=True):
    """One frame in the index."""

    session: int  # a resumed run has several
    sent: bool  # by the coordinator
    party: str
    at: float  # seconds since this process began to record
    head: Span
    bulk: Span


@dataclass(frozen=True)
class CapturedFrame:
    """One frame that the coordinator sent or received."""

    number: int  # from 1; "wire/17" in reports
    line: FrameLine
    _blobs: Blobs = field(repr=False)

    @property
    def sent(self) -> bool:
        """True if the coordinator sent it; otherwise a party did."""
        return self.line.sent

    @property
    def party(self) -> str:
        """The party at the other end."""
        return self.line.party

    @property
    def size(self) -> int:
        """Its number of bytes on the wire."""
        return self.line.head[1] + self.line.bulk[1]

    @property
    def place(self) -> str:
        """Its name in reports."""
        return f"{STEM}/{self.number}"

    @cached_property
    def envelope(self) -> Envelope:
        """Its head, decoded."""
        return peek(self._blobs[self.line.head])

    @property
    def bulk(self) -> bytes:
        """Its sealed bytes."""
        return self._blobs[self.line.bulk]


class RecordedEngine:
    """An engine that records its frames, on the coordinator's side."""

    def __init__(self, inner: Engine, journal: Journal, session: int) -> None:
        self._inner, self._journal, self._session = inner, journal, session
        self._started = time.perf_counter()
        self._bulks: dict[bytes, Span] = {}  # of one exchange: equal totals are recorded once

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Exchange the frames, and record both directions."""
        self._bulks.clear()
        for party, frame in frames.items():
            self._note(party, frame, sent=True)
        for party, frame in self._inner.exchange(frames, deadline):
            self._note(party, frame, sent=False)
            yield party, frame

    def _note(self, party: str, frame: Frame, *, sent: bool) -> None:
        at, key = time.perf_counter() - self._started, digest(frame.bulk)
        if key not in self._bulks:
            self._bulks[key] = self._journal.put(frame.bulk)
        head = self._journal.put(frame.head)
        self._journal.line(FrameLine(self._session, sent, party, at, head, self._bulks[key]))


def read(folder: Path) -> tuple[CapturedFrame, ...]:
    """Read all frames of a recorded run, in order."""
    stem = folder / STEM
    blobs = Blobs(stem)
    return tuple(CapturedFrame(n, line, blobs) for n, line in enumerate(lines(stem, FrameLine), 1))
