"""The courier, which relays messages between the coordinator and the folder, and can open none.

It has a kit's TLS files and nothing else: no key that opens or signs a frame, no record, no model
library. It has no state, so it may be killed at any moment. It is connected to the coordinator only
while a trainer is alive, so that the coordinator sees a hospital without a trainer as absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from secure_fl.engines.responder import Deliver, PartyConnection
from secure_fl.engines.transport_message import MessageKind, TransportMessage
from secure_fl.features.air_gap.file_message import NO_PROCESS, Endpoint
from secure_fl.features.air_gap.folder_end import PATIENCE, FolderEnd
from secure_fl.features.air_gap.heartbeat import EndStatus
from secure_fl.features.air_gap.mailbox_reader import Acknowledged

TICK = 0.1  # seconds between two checks of the trainer
GRACE = 10.0  # seconds in which a trainer must read the coordinator's last message


class Courier:
    """Relays messages until the coordinator ends the conversation, or `stop` is called."""

    def __init__(
        self,
        folder: Path,
        key: bytes,
        dial: Callable[[Deliver], PartyConnection],
        *,
        patience: float = PATIENCE,
    ) -> None:
        """`dial`: connects to the coordinator, and delivers its messages to the given function."""
        self.reason = ""  # why there is no connection; the caller sets it for the trainer's log
        self._dial = dial
        self._coordinator: PartyConnection | None = None
        self._trainer = NO_PROCESS  # the process for which the connection was made
        self._from_coordinator: SimpleQueue[TransportMessage] = SimpleQueue()
        self._stopping = False
        self.end = FolderEnd(folder, Endpoint.COURIER, key, self._send_on, patience=patience)

    def serve(self) -> None:
        """Relay messages, in this thread."""
        try:
            while not self._stopping and self.end.error is None:
                self._update_connection()
                try:
                    message = self._from_coordinator.get(timeout=TICK)
                except Empty:
                    continue
                posted = self.end.send(message)
                if message.kind is MessageKind.END:
                    self._wait_until_read(posted.done)
                    return
        finally:
            self._disconnect()
            self.end.close()
        if self.end.error is not None:
            raise self.end.error

    def stop(self) -> None:
        """Let `serve` return; any thread or signal handler may call it."""
        self._stopping = True

    def is_connected(self) -> bool:
        """Return true while the coordinator can be reached."""
        coordinator = self._coordinator
        return coordinator is not None and coordinator.connection() is not None

    def _update_connection(self) -> None:
        """Keep one connection for each trainer process, and report its name to the trainer."""
        monitor = self.end.monitor
        trainer = monitor.peer if monitor.alive else NO_PROCESS
        if trainer != self._trainer:
            self._disconnect()
            self._trainer = trainer
            if trainer != NO_PROCESS:
                self._coordinator = self._dial(self._from_coordinator.put)
        name = self._coordinator.connection() if self._coordinator is not None else None
        self.end.set_status(EndStatus(name or "", "" if name else self.reason))

    def _disconnect(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
        self._coordinator = None

    def _send_on(self, message: TransportMessage) -> Acknowledged | None:
        """Send a trainer's message to the coordinator; its file stays until all of it was sent."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.connection() is None:
            return None  # it is lost, and the coordinator asks again
        sending = coordinator.send(message)

        def acknowledged() -> bool:
            if sending.connection == coordinator.connection():
                return sending.done()
            if not sending.done():
                sending.cancel()
            return True

        return acknowledged

    def _wait_until_read(self, read: Callable[[], bool]) -> None:
        until = time.monotonic() + GRACE
        while not read() and self.end.monitor.alive and time.monotonic() < until:
            time.sleep(TICK / 10)
