"""One end of the folder: posts parcels to the other process, and takes in its own.

A letter is removed when it was taken, and that is its receipt. Nothing is lost for good if a letter
is: the coordinator asks again, and the trainer repeats its answer from memory, as over any line.
`look` shows the state of both ends to a command that changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from secure_fl.engines import responder
from secure_fl.engines.transport_message import TransportMessage
from secure_fl.errors import RunError, SecureFLError, WireError
from secure_fl.features.air_gap.file_message import (
    BEAT,
    HEADER,
    NOBODY,
    TAG,
    Endpoint,
    FileMessage,
    Kind,
    Mailbox,
    letter_name,
)
from secure_fl.features.air_gap.heartbeat import Heartbeat, Told, read_told
from secure_fl.protocol.frames import Frame

log = logging.getLogger(__name__)
MAX_BYTES = 2**30 + 2**16  # a parcel
EVERY = 1.0  # seconds between two beats
PATIENCE = 30.0  # seconds without one; file systems of clusters show changes late
SHORTEST, LONGEST = 0.005, 0.25  # seconds between two looks
SHARE = 20  # a look waits for a twentieth of what was waited already: 5 % is added at most

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


class Posted:
    """A letter on its way; `connection` is None if it was never written."""

    def __init__(self, box: Mailbox, name: str, connection: str | None) -> None:
        self.connection = connection
        self.began, self.ended = time.monotonic(), 0.0
        self._box, self._name = box, name

    def done(self) -> bool:
        """Tell if the other end has read the message."""
        if not self.ended and not (self.connection and self._box.has(self._name)):
            self.ended = time.monotonic()
        return self.ended > 0

    def cancel(self) -> None:
        """Take it back, if it is still there."""
        self._box.remove(self._name)


class FolderEnd:
    """A started end, and the line to the other."""

    def __init__(
        self,
        folder: Path,
        me: Endpoint,
        key: bytes,
        deliver: Deliver,
        *,
        max_bytes: int = MAX_BYTES,
        patience: float = PATIENCE,
        failing: Callable[[], None] = lambda: None,
    ) -> None:
        """`patience`: seconds of silence after which the other end counts as gone.

        `failing` is called when this end cannot go on.
        """
        size = HEADER.size + max_bytes + TAG
        incoming = Mailbox(folder / f"to-{me.name.lower()}", size)
        self._out = Mailbox(folder / f"to-{me.other.name.lower()}", size)
        self.presence = Heartbeat(me, patience)
        self.failed: SecureFLError | None = None  # why this end goes on no more
        self._failing = failing
        self._key, self._numbers, self._beats = key, 0, 0
        self._in = Incoming(incoming, key, self.presence, deliver)
        self._told, self._said, self._beat_at = Told(), (NOBODY, Told()), -EVERY
        self._posted: list[Posted] = []
        self._writing, self._wake, self._over = threading.Lock(), threading.Event(), False
        self._active = time.monotonic()
        for box in (incoming, self._out):
            box.prepare()
        self._before = self._own_beat()  # of an end that is gone, or goes when it sees ours
        self._out.clear()
        self._beat()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def refused(self) -> dict[str, int]:
        """How many files were no letters to this end, by reason."""
        return dict(self._in.refused)

    def send(self, parcel: TransportMessage) -> Posted:
        """Write a letter, if the other end is there to take it."""
        with self._writing:
            self._numbers += 1
            name, connection, me = letter_name(self._numbers), self.connection(), self.presence
            letter = FileMessage(me.me, Kind.PARCEL, me.life, me.peer, self._numbers)
            if connection and not self._write(name, letter.sealed(self._key, parcel.to_buffers())):
                connection = None
            posted = Posted(self._out, name, connection)
            self._posted.append(posted)
        self._active = time.monotonic()
        self._wake.set()
        return posted

    def connection(self) -> str | None:
        """Which way there is now: a trainer's to the coordinator, a courier's to the trainer."""
        told = self.presence.told
        if not self.presence.there or (self.presence.me is Endpoint.TRAINER and not told.line):
            return None
        return f"{self.presence.peer.hex()} {told.line}"

    def state(self) -> str:
        """How the other end is, in a word; a trainer's also says how its courier's line is."""
        other = self.presence
        if other.peer == NOBODY:
            return "nobody"
        return _state(other.me.other, other.told, silent=not other.there)

    def say(self, told: Told) -> None:
        """Let our beats tell this from now on."""
        if told != self._told:
            self._told = told
            self._wake.set()

    def close(self) -> None:
        """Leave, and say so."""
        self._over = True
        self._wake.set()
        self._thread.join()
        if self.failed is None:
            self._told = Told(leaving=True)
            with suppress(SecureFLError):  # the folder is gone, and nobody is there to be told
                self._beat()

    def _run(self) -> None:
        while not self._over and self.failed is None:
            idle = time.monotonic() - self._active
            self._wake.wait(min(LONGEST, max(SHORTEST, idle / SHARE)))
            self._wake.clear()
            try:
                self._look()
            except SecureFLError as error:
                self.failed = error
                self._failing()
            except OSError as error:  # a disk or its network; it may come back
                log.warning("the folder cannot be read: %s", error.strerror)

    def _look(self) -> None:
        """Hear the other end, let it hear us, and take in what is there."""
        self._in.hear()
        news = (self.presence.heard, self._told) != self._said
        if news or time.monotonic() - self._beat_at >= EVERY:
            self._require_alone()
            self._beat()
        if self._in.take():
            self._active = time.monotonic()
        with self._writing:
            self._posted = [posted for posted in self._posted if not posted.done()]

    def _beat(self) -> None:
        self._beats += 1
        self._said, self._beat_at = (self.presence.heard, self._told), time.monotonic()
        body = [msgspec.json.encode(self._told)]
        self._write(BEAT, self.presence.beat(self._beats).sealed(self._key, body))

    def _require_alone(self) -> None:
        """Make room for another process in our place: it was started later, by somebody."""
        if self._own_beat() not in (NOBODY, self.presence.life, self._before):
            raise RunError(
                f"another {self.presence.me.name.lower()} was started here, and goes on instead",
                fix="one is enough; if it was not you, somebody has this site's kit",
                file=self._out.folder.parent,
                reason="in-use",
            )

    def _own_beat(self) -> bytes:
        with suppress(WireError):
            data = self._out.read(BEAT)
            return NOBODY if data is None else FileMessage.opened(data, self._key).life
        return NOBODY

    def _write(self, name: str, pieces: Sequence[bytes]) -> bool:
        try:
            self._out.post(name, pieces)
        except OSError as error:  # a full disk: as if the letter were lost on its way
            log.warning("a letter cannot be written: %s", error.strerror)
            return False
        return True


class FolderParty(responder.Responder):
    """Answers the coordinator's frames, which a courier carries."""

    end: FolderEnd

    def __init__(
        self,
        folder: Path,
        key: bytes,
        *,
        patience: float = PATIENCE,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`refusing` hears why a frame was not answered: only here it is said."""

        def post(deliver: responder.Deliver) -> FolderEnd:
            self.end = FolderEnd(
                folder, Endpoint.TRAINER, key, deliver, patience=patience, failing=self.stop
            )
            return self.end

        super().__init__(post, refusing=refusing)

    def serve(
        self,
        step: Callable[[Frame], Frame],
        done: Callable[[], bool] = lambda: False,
        linger: float = 10.0,
    ) -> None:
        """As every party does; raise what keeps the folder from being used."""
        super().serve(step, done, linger)
        if self.end.failed is not None:
            raise self.end.failed


@dataclass(frozen=True, slots=True)
class MailboxState:
    """One end, by the last sign of life that it wrote."""

    who: str
    state: str  # nobody, here, left, silent; a courier that is here: connected or unconnected
    at: float | None  # seconds since the epoch, by the disk's clock
    why: str = ""  # a courier has no connection


def is_letters(folder: Path) -> bool:
    """Tell if this is a folder between a courier and a training machine."""
    return all(_box(folder, side).folder.is_dir() for side in Endpoint)


def look(folder: Path, key: bytes, *, patience: float = PATIENCE) -> list[MailboxState]:
    """Courier and trainer; a sign that this site's kit did not write raises WireError."""
    return [_seen(folder, side, key, patience) for side in Endpoint]


def _seen(folder: Path, side: Endpoint, key: bytes, patience: float) -> MailboxState:
    box, name = _box(folder, side.other), side.name.lower()
    data = box.read(BEAT)
    if data is None:
        return MailboxState(name, "nobody", None)
    told, at = read_told(FileMessage.opened(data, key).body), time.time()
    with suppress(FileNotFoundError):  # it was replaced just now
        at = (box.folder / BEAT).stat().st_mtime
    return MailboxState(name, _state(side, told, silent=time.time() - at > patience), at, told.why)


def _state(side: Endpoint, told: Told, *, silent: bool) -> str:
    if told.leaving:
        return "left"
    if silent:
        return "silent"
    if side is Endpoint.TRAINER:
        return "here"
    return "connected" if told.line else "unconnected"


def _box(folder: Path, reader: Endpoint) -> Mailbox:
    return Mailbox(folder / f"to-{reader.name.lower()}", MAX_BYTES)
