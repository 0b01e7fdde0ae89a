"""Bytes to and from a server's port, headers, handshakes and heartbeats included.

Messages between the processes of a site do not count.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

EVERYTHING = 0x0003  # ETH_P_ALL
OUTGOING = 4  # loopback shows each packet twice; this is the first time
FORCE = 33  # SO_RCVBUFFORCE
LINK, HEAD = 14, 96  # bytes of a link's header, and of all headers


class Wire:
    """Bytes to a port, and from it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.up = self.down = 0
        self._end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
        with suppress(PermissionError):  # as root of this network alone: the usual buffer
            self._end.setsockopt(socket.SOL_SOCKET, FORCE, 1 << 28)
        self._end.bind(("lo", 0))
        self._end.settimeout(0.2)

    def watch(self, over: threading.Event) -> None:
        """Count until the end."""
        head = memoryview(bytearray(HEAD))
        while not over.is_set():
            try:
                size, about = self._end.recvfrom_into(head, HEAD, socket.MSG_TRUNC)
            except TimeoutError:
                continue
            if about[2] != OUTGOING:
                self.count(head[LINK:], size - LINK)

    def count(self, packet: memoryview, size: int) -> None:
        """Count one packet, if it is TCP to or from the port."""
        version = packet[0] >> 4
        kind, start = (packet[9], 4 * (packet[0] & 15)) if version == 4 else (packet[6], 40)
        if version in (4, 6) and kind == socket.IPPROTO_TCP:
            source, target = struct.unpack_from("!HH", packet, start)
            self.up += size * (target == self._port)
            self.down += size * (source == self._port)
