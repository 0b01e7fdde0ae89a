"""The courier: carries parcels between the coordinator's line and the folder, and opens none.

It holds a kit's TLS files and nothing else: no key that opens or signs a frame, no record, no model
library. It remembers nothing, so it may be killed at any moment. While no trainer is there it holds
no line either: the coordinator then sees what is so, a hospital that is away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from secure_fl.engines.responder import Deliver, PartyConnection
from secure_fl.engines.transport_message import MessageKind, TransportMessage
from secure_fl.features.air_gap.file_message import NOBODY, Endpoint
from secure_fl.features.air_gap.folder_end import PATIENCE, FolderEnd, Taken
from secure_fl.features.air_gap.heartbeat import Told

TICK = 0.1  # seconds between two looks at who is there
SEEN_OFF = 10.0  # seconds that a trainer has to take the coordinator's farewell


class Courier:
    """Runs until the coordinator says that nothing more will come, or `stop` is called."""

    def __init__(
        self,
        folder: Path,
        key: bytes,
        dial: Callable[[Deliver], PartyConnection],
        *,
        patience: float = PATIENCE,
    ) -> None:
        """`dial` begins a line to the coordinator, and is told what to do with what comes."""
        self.why = ""  # there is no connection: for the trainer's log
        self._dial = dial
        self._line: PartyConnection | None = None
        self._for = NOBODY  # the trainer for whom the line is held
        self._mail: SimpleQueue[TransportMessage] = SimpleQueue()
        self._stopping = False
        self.end = FolderEnd(folder, Endpoint.COURIER, key, self._carry, patience=patience)

    def serve(self) -> None:
        """Carry, in this thread."""
        try:
            while not self._stopping and self.end.failed is None:
                self._tend()
                try:
                    parcel = self._mail.get(timeout=TICK)
                except Empty:
                    continue
                posted = self.end.send(parcel)
                if parcel.kind is MessageKind.END:
                    self._see_off(posted.done)
                    return
        finally:
            self._hang_up()
            self.end.close()
        if self.end.failed is not None:
            raise self.end.failed

    def stop(self) -> None:
        """Let `serve` return; any thread or signal handler may call it."""
        self._stopping = True

    def is_connected(self) -> bool:
        """Tell if the coordinator can be reached now."""
        line = self._line
        return line is not None and line.connection() is not None

    def _tend(self) -> None:
        """Hold a line for exactly the trainer that is there, and tell it which one."""
        presence = self.end.presence
        there = presence.peer if presence.there else NOBODY
        if there != self._for:
            self._hang_up()
            self._for = there
            if there != NOBODY:
                self._line = self._dial(self._mail.put)
        name = self._line.connection() if self._line is not None else None
        self.end.say(Told(name or "", "" if name else self.why))

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    def _carry(self, parcel: TransportMessage) -> Taken | None:
        """Send on what the trainer wrote; its letter stays until all of it is on the line."""
        line = self._line
        if line is None or line.connection() is None:
            return None  # the coordinator asks for it again
        sending = line.send(parcel)

        def taken() -> bool:
            if sending.connection == line.connection():
                return sending.done()
            if not sending.done():
                sending.cancel()
            return True

        return taken

    def _see_off(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + SEEN_OFF
        while not done() and self.end.presence.there and time.monotonic() < until:
            time.sleep(TICK / 10)
