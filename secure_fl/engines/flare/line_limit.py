"""Limits on the coordinator's connections, so that one certificate cannot use up all workers.

Each open stream takes one of the server's workers, before and after CellNet's handshake. For each
name in a certificate the newest `MAX_LINES` streams stay open; older ones are closed, so that a
hospital whose connection broke unnoticed can always come back. A stream without a handshake is
closed after `HANDSHAKE` seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.fuel.f3.connection import ConnState
from nvflare.fuel.f3.drivers.driver_params import DriverParams

log = logging.getLogger(__name__)
MAX_LINES = 2  # open streams with one certificate: a hospital's own, and one that replaces it
HANDSHAKE = 10.0  # seconds
TICK = 1.0  # seconds between two looks for streams without a handshake


class LineLimit:
    """Closes surplus and silent streams of a server."""

    def __init__(self, report: Callable[[Any], None], known: Mapping[str, Any]) -> None:
        """`report`: CellNet's listener; `known`: its connections, with endpoints once greeted."""
        self._report, self._known = report, known
        self._lines: defaultdict[str, dict[str, tuple[Any, float]]] = defaultdict(dict)
        self._noted: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="line_limit", daemon=True).start()

    def state_change(self, connection: Any) -> None:
        """Count a new or closed connection, and close the oldest of too many."""
        owner = str(connection.get_conn_properties().get(DriverParams.PEER_CN.value, ""))
        with self._lock:
            lines = self._lines[owner]
            if connection.state == ConnState.CONNECTED:
                lines[connection.name] = connection, time.monotonic()
            else:
                lines.pop(connection.name, None)
            surplus = [line for line, _ in list(lines.values())[:-MAX_LINES]]
            if not lines:
                del self._lines[owner]
        self._report(connection)
        self._end(owner, surplus, f"has more than {MAX_LINES} connections")

    def close(self) -> None:
        """Stop looking for silent streams."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(TICK):
            due = time.monotonic() - HANDSHAKE
            with self._lock:
                old = [
                    (owner, line)
                    for owner, lines in self._lines.items()
                    for line, since in lines.values()
                    if since < due and not self._greeted(line)
                ]
            for owner, line in old:
                self._end(owner, [line], f"has sent no handshake in {HANDSHAKE:g} s")

    def _greeted(self, line: Any) -> bool:
        known = self._known.get(line.name)
        return known is not None and known.sfm_endpoint is not None

    def _end(self, owner: str, lines: list[Any], why: str) -> None:
        for line in lines:
            if owner not in self._noted:
                self._noted.add(owner)
                log.warning("the certificate of %r %s: the oldest is closed", owner, why)
            if (call := line.context) is not None:
                call.cancel()  # `close` alone would wait for the sender to end the stream
            line.close()
