"""Incoming messages: each is verified, and accepted once and in order, or refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from secure_fl.engines.transport_message import TransportMessage
from secure_fl.errors import WireError
from secure_fl.features.air_gap.file_message import NOBODY, FileMessage, Kind
from secure_fl.features.air_gap.heartbeat import Heartbeat
from secure_fl.features.air_gap.mailbox import BEAT, Mailbox, letter_name

log = logging.getLogger(__name__)
Taken = Callable[[], bool]  # whether a parcel that was handed on needs its letter no more
Deliver = Callable[[TransportMessage], Taken | None]  # None: the letter can go at once


class Incoming:
    """Takes letters out of a box."""

    def __init__(self, box: Mailbox, key: bytes, presence: Heartbeat, deliver: Deliver) -> None:
        self.refused: Counter[str] = Counter()  # files, by reason
        self._box, self._key, self._presence, self._deliver = box, key, presence, deliver
        self._of, self._last = NOBODY, 0
        self._kept: dict[str, Taken] = {}

    def hear(self) -> None:
        """Look at the other end's sign of life."""
        try:
            data = self._box.read(BEAT)
            if data is not None:
                self._presence.hear(FileMessage.opened(data, self._key))
        except WireError as error:
            self._refuse(BEAT, error)

    def take(self) -> int:
        """Take in what is there; return how much it was."""
        count = 0
        for name in self._box.letters():
            try:
                count += name not in self._kept and self._take(name)
            except WireError as error:
                self._refuse(name, error)
        for name in [name for name, taken in self._kept.items() if taken()]:
            del self._kept[name]
            self._box.remove(name)
        return count

    def _take(self, name: str) -> bool:
        data = self._box.read(name)
        if data is None:
            return False
        letter = FileMessage.opened(data, self._key)
        if letter.to == self._presence.life and not self._presence.knows(letter.life):
            return False  # its writer answers us, and we have not heard it yet: next time
        self._require_next(letter, name)
        parcel = TransportMessage.from_bytes(letter.body)
        self._of, self._last = letter.life, letter.number
        taken = self._deliver(parcel)
        if taken is None:
            self._box.remove(name)
        else:
            self._kept[name] = taken
        return True

    def _require_next(self, letter: FileMessage, name: str) -> None:
        if (letter.side, letter.kind) != (self._presence.me.other, Kind.PARCEL):
            raise WireError("it is of another kind", field="kind")
        if letter.to != self._presence.life or letter.life != self._presence.peer:
            raise WireError("it was written by or to a process that is gone", field="stale")
        last = self._last if letter.life == self._of else 0
        if letter.number <= last or name != letter_name(letter.number):
            raise WireError("it was taken before", field="number")

    def _refuse(self, name: str, error: WireError) -> None:
        """Drop a file that is no letter to us, and say why."""
        reason = str(error.where.get("field", "form"))
        self.refused[reason] += 1
        if reason != "stale":  # what a killed end leaves behind is nobody's fault
            log.warning("a file in %s is refused: %s", self._box.folder.name, error.what)
        if name != BEAT:  # its writer replaces that
            self._box.remove(name)
