"""Heartbeats between both ends of the folder; each must answer this process to be believed.

Each process has a life, a random number. Its beats say it, and repeat the life that it heard last.
A beat that repeats ours was written after we began, and one whose count rises was written since
the last. So a file of yesterday, put back today, brings nobody to life. Clocks are never compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from secure_fl.errors import WireError
from secure_fl.features.air_gap.file_message import LIFE, NOBODY, Endpoint, FileMessage, Kind


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a heartbeat: the sender's process and its state."""

    line: str = ""  # the courier's connection to the coordinator
    why: str = ""  # there is none
    leaving: bool = False


class Heartbeat:
    """One end's knowledge of the other end."""

    def __init__(
        self, me: Endpoint, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`patience`: seconds without a new beat after which the other end counts as gone."""
        self.me, self.life = me, os.urandom(LIFE)
        self.heard = NOBODY  # to be repeated to it
        self.peer = NOBODY  # it has repeated ours
        self.told = Told()
        self.patience, self._clock = patience, clock
        self._past: set[bytes] = set()
        self._count, self._at = 0, 0.0

    def hear(self, beat: FileMessage) -> None:
        """Look at a beat that is genuine, and perhaps old."""
        if (beat.side, beat.kind) != (self.me.other, Kind.BEAT) or beat.life in self._past:
            return
        self.heard = beat.life
        if beat.to != self.life:
            return
        if beat.life != self.peer:
            self._past.add(self.peer)
            self.peer, self._count = beat.life, 0
        if beat.number > self._count:
            self._count, self._at = beat.number, self._clock()
            self.told = read_told(beat.body)

    @property
    def there(self) -> bool:
        """Tell if the other end is alive, as far as this end can know."""
        silent = self._clock() - self._at > self.patience
        return self.peer != NOBODY and not silent and not self.told.leaving

    def knows(self, life: bytes) -> bool:
        """Tell if this is a present or earlier process of the other end."""
        return life == self.peer or life in self._past

    def beat(self, number: int) -> FileMessage:
        """Our next sign of life, without its body."""
        return FileMessage(self.me, Kind.BEAT, self.life, self.heard, number)


def read_told(body: bytes | memoryview) -> Told:
    """Read a heartbeat, if it is genuine."""
    try:
        return msgspec.json.decode(body, type=Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WireError(
            "a beat says what this version does not know",
            field="kind",
            fix="install equal versions at both ends",
        ) from None
