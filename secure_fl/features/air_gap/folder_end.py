"""One end of the folder, which exchanges messages and heartbeats with the process at the other end.

The reader of a message removes its file to acknowledge it. A lost message does no harm: the
coordinator asks again, and the trainer repeats its answer from memory, as over any connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from secure_fl.engines.transport_message import TransportMessage
from secure_fl.errors import RunError, SecureFLError, WireError
from secure_fl.features.air_gap.file_message import (
    HEADER,
    HEARTBEAT_FILE,
    NO_PROCESS,
    TAG,
    Endpoint,
    FileMessage,
    Kind,
    Mailbox,
    message_name,
)
from secure_fl.features.air_gap.heartbeat import EndStatus, PeerMonitor
from secure_fl.features.air_gap.mailbox_reader import MailboxReader, OnMessage

log = logging.getLogger(__name__)
MAX_BYTES = 2**30 + 2**16  # of a message
EVERY = 1.0  # seconds between two heartbeats
PATIENCE = 30.0  # seconds without one; file systems of clusters show changes late
SHORTEST, LONGEST = 0.005, 0.25  # seconds between two looks into the mailbox
SHARE = 20  # the next look comes after 1/20 of the idle time, which delays a message by 5 %


class PostedMessage:
    """A message that waits for the other end; `connection` is None if it was not written."""

    def __init__(self, mailbox: Mailbox, name: str, connection: str | None) -> None:
        self.connection = connection
        self.began, self.ended = time.monotonic(), 0.0
        self._mailbox, self._name = mailbox, name

    def done(self) -> bool:
        """Return true once the file is gone: it was read, refused, cancelled or never written."""
        if not self.ended and not (self.connection and self._mailbox.has(self._name)):
            self.ended = time.monotonic()
        return self.ended > 0

    def cancel(self) -> None:
        """Remove the message unless it was read."""
        with suppress(OSError):
            self._mailbox.remove(self._name)


class FolderEnd:
    """A running end: it writes messages, and its thread reads messages and keeps heartbeats."""

    def __init__(
        self,
        folder: Path,
        endpoint: Endpoint,
        key: bytes,
        on_message: OnMessage,
        *,
        max_bytes: int = MAX_BYTES,
        patience: float = PATIENCE,
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare both mailboxes, replace an earlier process of this end, and start the thread.

        `patience`: seconds without a heartbeat after which the other end counts as gone.
        `on_error`: called when an error stops this end.
        """
        size = HEADER.size + max_bytes + TAG
        incoming, self._outgoing = (mailbox(folder, to, size) for to in (endpoint, endpoint.other))
        self.monitor = PeerMonitor(endpoint, patience)
        self.error: SecureFLError | None = None  # the error that stopped this end
        self._on_error, self._key = on_error, key
        self._message_count = self._heartbeat_count = 0
        self._reader = MailboxReader(incoming, key, self.monitor, on_message)
        self._status = EndStatus()
        self._posted: list[PostedMessage] = []
        self._writing, self._wake, self._closing = threading.Lock(), threading.Event(), False
        self._active_at = time.monotonic()  # time of the last message
        for box in (incoming, self._outgoing):
            box.prepare()
        # An earlier process of this end has ended, or does so when it reads our heartbeat.
        self._earlier_process = self._last_writer()
        self._outgoing.clear()
        self._write_heartbeat()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def refused(self) -> dict[str, int]:
        """The number of refused files, by reason."""
        return dict(self._reader.refused)

    def send(self, message: TransportMessage) -> PostedMessage:
        """Write a message, if the other end is alive to read it."""
        with self._writing:
            self._message_count += 1
            number, monitor, connection = self._message_count, self.monitor, self.connection()
            sender, recipient, name = monitor.process_id, monitor.peer, message_name(number)
            file = FileMessage(monitor.endpoint, Kind.MESSAGE, sender, recipient, number)
            if connection and not self._write(name, file.sealed(self._key, message.to_buffers())):
                connection = None
            posted = PostedMessage(self._outgoing, name, connection)
            self._posted.append(posted)
        self._active_at = time.monotonic()
        self._wake.set()
        return posted

    def connection(self) -> str | None:
        """Return the name of the present connection, or None; a new connection has a new name.

        A courier's connection ends at the trainer, and a trainer's at the coordinator.
        """
        monitor = self.monitor
        offline = monitor.endpoint is Endpoint.TRAINER and not monitor.status.connection
        if offline or not monitor.alive:
            return None
        return f"{monitor.peer.hex()} {monitor.status.connection}"

    def set_status(self, status: EndStatus) -> None:
        """Change the status in this end's heartbeats."""
        if status != self._status:
            self._status = status
            self._wake.set()

    def close(self) -> None:
        """Stop the thread, and write a last heartbeat that says that this end has left."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        if self.error is None:
            self._status = EndStatus(leaving=True)
            with suppress(SecureFLError):  # the folder was removed
                self._write_heartbeat()

    def _run(self) -> None:
        while not self._closing and self.error is None:
            idle = time.monotonic() - self._active_at
            self._wake.wait(min(LONGEST, max(SHORTEST, idle / SHARE)))
            self._wake.clear()
            try:
                self._look()
            except SecureFLError as error:
                self.error = error
                self._on_error()
            except OSError as error:  # a disk or its network, which may recover
                log.warning("the folder cannot be read: %s", error.strerror)

    def _look(self) -> None:
        """Read a heartbeat, write one if it is due, and read messages."""
        self._reader.read_heartbeat()
        content = (self.monitor.last_received, self._status)  # of the next heartbeat
        if content != self._sent_content or time.monotonic() - self._sent_at >= EVERY:
            self._require_no_successor()
            self._write_heartbeat()
        if self._reader.read_messages():
            self._active_at = time.monotonic()
        with self._writing:  # `done` notes the time at which a message was read
            self._posted = [posted for posted in self._posted if not posted.done()]

    def _write_heartbeat(self) -> None:
        self._heartbeat_count += 1
        self._sent_content = (self.monitor.last_received, self._status)
        self._sent_at = time.monotonic()
        heartbeat = self.monitor.heartbeat(self._heartbeat_count)
        body = [msgspec.json.encode(self._status)]
        self._write(HEARTBEAT_FILE, heartbeat.sealed(self._key, body))

    def _require_no_successor(self) -> None:
        """Stop this end if another process was started for it later."""
        if self._last_writer() not in (NO_PROCESS, self.monitor.process_id, self._earlier_process):
            raise RunError(
                f"another {self.monitor.endpoint.name.lower()} was started with this folder, and "
                "has replaced this one",
                fix="run one only; if you did not start it, somebody else has this site's kit",
                file=self._outgoing.folder.parent,
                reason="in-use",
            )

    def _last_writer(self) -> bytes:
        """Return the id of the process that wrote this end's heartbeat."""
        with suppress(WireError):
            data = self._outgoing.read(HEARTBEAT_FILE)
            return NO_PROCESS if data is None else FileMessage.opened(data, self._key).process_id
        return NO_PROCESS

    def _write(self, name: str, pieces: Sequence[bytes]) -> bool:
        try:
            self._outgoing.write(name, pieces)
        except OSError as error:  # a full disk has the effect of a lost message
            log.warning("a message cannot be written: %s", error.strerror)
            return False
        return True


def mailbox(folder: Path, reader: Endpoint, max_bytes: int = MAX_BYTES) -> Mailbox:
    """Return the mailbox that an end reads from."""
    return Mailbox(folder / f"to-{reader.name.lower()}", max_bytes)
