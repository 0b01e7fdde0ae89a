"""Reception of heartbeats and messages from the other end's mailbox."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from secure_fl.engines.transport_message import TransportMessage
from secure_fl.errors import WireError
from secure_fl.features.air_gap.file_message import (
    HEARTBEAT_FILE,
    NO_PROCESS,
    FileMessage,
    Kind,
    Mailbox,
    message_name,
)
from secure_fl.features.air_gap.heartbeat import PeerMonitor

log = logging.getLogger(__name__)
Acknowledged = Callable[[], bool]  # true once the file of a message can be removed
OnMessage = Callable[[TransportMessage], Acknowledged | None]  # None: remove it at once


class MailboxReader:
    """Reads heartbeats, and delivers each message once and in order."""

    def __init__(
        self, mailbox: Mailbox, key: bytes, monitor: PeerMonitor, on_message: OnMessage
    ) -> None:
        self.refused: Counter[str] = Counter()  # files, by reason
        self._mailbox, self._key = mailbox, key
        self._monitor, self._on_message = monitor, on_message
        self._sender, self._last_number = NO_PROCESS, 0  # of the last message
        self._handled: dict[str, Acknowledged] = {}  # files to remove
        self._warnings: set[str] = set()  # logged once each, although every look repeats them

    def read_heartbeat(self) -> None:
        """Read the other end's heartbeat; its writer replaces a bad one."""
        try:
            data = self._mailbox.read(HEARTBEAT_FILE)
            if data is not None:
                self._monitor.receive(FileMessage.opened(data, self._key))
        except WireError as error:
            self._warn_once(
                f"the heartbeat in {self._mailbox.folder.name} is refused: {error.what}"
            )

    def read_messages(self) -> int:
        """Deliver new messages, remove handled ones, and return the number of new ones."""
        count = 0
        for name in self._mailbox.message_names():
            if name in self._handled:
                continue
            try:
                count += self._read_message(name)
            except WireError as error:
                self._note_refusal(error)
                self._handled[name] = lambda: True
        for name in [name for name, acknowledged in self._handled.items() if acknowledged()]:
            try:
                self._mailbox.remove(name)
                del self._handled[name]
            except OSError as error:
                folder = self._mailbox.folder.name
                self._warn_once(f"a read message in {folder} cannot be removed: {error.strerror}")
        return count

    def _read_message(self, name: str) -> bool:
        """Deliver one message; return false if it is not there, or must wait for a heartbeat."""
        data = self._mailbox.read(name)
        if data is None:
            return False
        file = FileMessage.opened(data, self._key)
        if file.recipient == self._monitor.process_id and not self._monitor.knows(file.process_id):
            return False  # its writer knows our process, but we have not read its heartbeat yet
        self._require_next(file, name)
        message = TransportMessage.from_bytes(file.body)
        self._sender, self._last_number = file.process_id, file.number
        self._handled[name] = self._on_message(message) or (lambda: True)
        return True

    def _require_next(self, file: FileMessage, name: str) -> None:
        """Refuse a file that is not a new message from the present peer to this process."""
        if (file.sender, file.kind) != (self._monitor.endpoint.other, Kind.MESSAGE):
            raise WireError("it is of another kind", field="kind")
        if file.recipient != self._monitor.process_id or file.process_id != self._monitor.peer:
            raise WireError("it was written by or for a process that has ended", field="stale")
        last = self._last_number if file.process_id == self._sender else 0
        if file.number <= last or name != message_name(file.number):
            raise WireError("it is a message from before", field="number")

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            log.warning(text)

    def _note_refusal(self, error: WireError) -> None:
        reason = str(error.where.get("field", "form"))
        self.refused[reason] += 1
        if reason != "stale":  # a killed process leaves such files
            log.warning("a file in %s is refused: %s", self._mailbox.folder.name, error.what)
