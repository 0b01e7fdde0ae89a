"""An engine that sends frames through folders, as to training machines without network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from secure_fl.engines.transport_message import MessageKind, StepId, TransportMessage
from secure_fl.features.air_gap.file_message import Endpoint
from secure_fl.features.air_gap.folder_end import FolderEnd
from secure_fl.features.air_gap.folder_party import FolderParty
from secure_fl.features.air_gap.heartbeat import EndStatus
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame

KEY = b"k" * 32
DEADLINE = 60  # seconds


class Folders:
    """A coordinator with all couriers; each party answers through its own folder."""

    def __init__(self, sessions: Mapping[str, Session], folder: Path, stack: ExitStack) -> None:
        self._answers: SimpleQueue[tuple[str, TransportMessage]] = SimpleQueue()
        self._ends: dict[str, FolderEnd] = {}
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        for name, session in sessions.items():
            deliver = partial(self._deliver, name)
            end = self._ends[name] = FolderEnd(folder / name, Endpoint.COURIER, KEY, deliver)
            stack.callback(end.close)
            end.set_status(EndStatus("connection"))
            party = stack.enter_context(FolderParty(folder / name, KEY))
            thread = threading.Thread(target=party.serve, args=(session.step,))
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(party.stop)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Write each frame into the folder of its party, and wait for the answers."""
        self._number += 1
        for name, frame in frames.items():
            while not self._ends[name].connection():
                time.sleep(0.005)
            step = StepId(bytes(16), self._number)
            self._ends[name].send(TransportMessage(MessageKind.STEP, step, frame))
        for _ in frames:
            name, answer = self._answers.get(timeout=DEADLINE)
            yield name, answer.frame

    def _deliver(self, name: str, message: TransportMessage) -> None:
        self._answers.put((name, message))


def killed(end: FolderEnd) -> None:
    """End it as a signal would, without a last heartbeat."""
    end._closing = True
    end._thread.join()
