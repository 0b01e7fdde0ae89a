"""Heartbeats between both ends of the folder, which show that the other process is alive.

A heartbeat contains the random id of the process that wrote it, the id of the process that it last
received one from, and a counter. One that repeats our id was written after our process started, and
one with a higher counter was written after the last one. So an old file that is put back has no
effect. The two ends compare no clocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from secure_fl.errors import WireError
from secure_fl.features.air_gap.file_message import (
    NO_PROCESS,
    PROCESS_ID_BYTES,
    Endpoint,
    FileMessage,
    Kind,
)


class EndStatus(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"connection": "line", "reason": "why"},
):
    """The status of one end, which is the body of its heartbeats."""

    connection: str = ""  # name of the courier's connection to the coordinator; empty without one
    reason: str = ""  # why the courier has no connection
    leaving: bool = False

    @classmethod
    def from_bytes(cls, body: bytes | memoryview) -> EndStatus:
        """Decode the body of an authenticated heartbeat."""
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise WireError(
                "a heartbeat has a status that this version does not know",
                field="kind",
                fix="install equal versions at both ends",
            ) from None

    def state(self, endpoint: Endpoint, *, silent: bool) -> str:
        """Return the state of an end with this status, in one word."""
        if self.leaving:
            return "left"
        if silent:
            return "silent"
        if endpoint is Endpoint.TRAINER:
            return "here"
        return "connected" if self.connection else "unconnected"


class PeerMonitor:
    """One end's knowledge of the process at the other end, from heartbeats."""

    def __init__(
        self, endpoint: Endpoint, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`patience`: seconds without a heartbeat after which the other end counts as gone."""
        self.endpoint, self.process_id = endpoint, os.urandom(PROCESS_ID_BYTES)
        self.last_received = NO_PROCESS  # the process of the last heartbeat, perhaps an old one
        self.peer = NO_PROCESS  # the process that has repeated our id
        self.status = EndStatus()  # of the peer
        self.patience, self._clock = patience, clock
        self._earlier_peers: set[bytes] = set()
        self._counter, self._received_at = 0, 0.0

    def receive(self, heartbeat: FileMessage) -> None:
        """Update the knowledge by an authenticated heartbeat, which may be an old one."""
        expected = (heartbeat.sender, heartbeat.kind) == (self.endpoint.other, Kind.HEARTBEAT)
        if not expected or heartbeat.process_id in self._earlier_peers:
            return
        status = EndStatus.from_bytes(heartbeat.body)
        self.last_received = heartbeat.process_id
        if heartbeat.recipient != self.process_id:
            return  # it does not repeat our id, so it may be old
        if heartbeat.process_id != self.peer:
            self._earlier_peers.add(self.peer)
            self.peer, self._counter = heartbeat.process_id, 0
        if heartbeat.number > self._counter:
            self._counter, self._received_at = heartbeat.number, self._clock()
            self.status = status

    @property
    def alive(self) -> bool:
        """True while the other process sends heartbeats and has not left."""
        silent = self._clock() - self._received_at > self.patience
        return self.peer != NO_PROCESS and not silent and not self.status.leaving

    def knows(self, process_id: bytes) -> bool:
        """Return true for the present or an earlier process of the other end."""
        return process_id == self.peer or process_id in self._earlier_peers

    def heartbeat(self, number: int) -> FileMessage:
        """Return this end's heartbeat with a number, without its body."""
        return FileMessage(
            self.endpoint, Kind.HEARTBEAT, self.process_id, self.last_received, number
        )

    def state(self) -> str:
        """Return the state of the other end, in one word."""
        if self.peer == NO_PROCESS:
            return "nobody"
        return self.status.state(self.endpoint.other, silent=not self.alive)
