"""A cell's filter: it accepts raw bytes for us, from authenticated peers of the roster.

CellNet alone relays between sites, believes the sender's name in a message of any authenticated
site, and decodes objects before our code sees them. This filter runs before all of that. What is
refused is dropped without an answer, and counted by reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.f3.streaming.stream_types import StreamError

log = logging.getLogger(__name__)
CHANNEL, TOPIC = "secure_fl", "parcel"
RAW = (Encoding.BYTES, Encoding.NONE)
MAX_STREAMS = 8  # open at a time, from one peer
MAX_CHUNK = 2**21  # bytes; FLARE cuts streams into pieces of 1 MiB
IDLE = 90.0  # seconds after which a stream without progress is given up
SLACK = 2**16  # bytes that other streams may have beside one of full size


@dataclass(slots=True)
class _Incoming:
    size: int
    last: float
    received: int = 0


@dataclass(slots=True)
class FrameFilter:
    """Refuses what is forged, relayed, encoded, too large, or not ours."""

    me: str
    peers: Collection[str]
    max_bytes: int
    refused: Counter[str] = field(default_factory=Counter)
    heard: dict[str, float] = field(default_factory=dict)  # when each peer last sent something
    _streams: defaultdict[str, dict[int, _Incoming]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _noted: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, message: Any) -> Any:
        """CellNet's incoming filter: anything but None drops the message, and so does an error."""
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        peer = getattr(endpoint, "name", "")
        reason = self._sender(peer, message) or self._content(peer, message)
        if reason:
            self._note(peer if peer in self.peers else "a stranger", reason)
            return Message()
        self.heard[peer] = time.monotonic()
        return None

    def forget(self, peer: str) -> None:
        """Give up what this peer was sending: it is gone, and begins anew."""
        with self._lock:
            streams = self._streams.pop(peer, {})
        for stream in streams:
            _give_up(peer, stream)

    def _note(self, peer: str, reason: str) -> None:
        with self._lock:
            self.refused[reason] += 1
            first = (peer, reason) not in self._noted
            self._noted.add((peer, reason))
        if first:
            log.warning("messages of %s are refused: %s", peer, reason)

    def _sender(self, peer: str, message: Any) -> str:
        if peer not in self.peers:
            return "stranger"
        if message.get_header(MessageHeaderKey.ORIGIN) != peer:
            return "origin"
        if message.get_header(MessageHeaderKey.DESTINATION) != self.me:
            return "destination"
        if message.get_header(MessageHeaderKey.FROM_CELL) != peer:
            return "origin"
        if message.get_header(MessageHeaderKey.CONN_URL) is not None:
            return "url"  # CellNet would dial it, wherever it leads
        return ""

    def _content(self, peer: str, message: Any) -> str:
        get = message.get_header
        if get(MessageHeaderKey.PAYLOAD_ENCODING) not in RAW:
            return "encoding"
        if get(StreamHeaderKey.PAYLOAD_ENCODING, Encoding.BYTES) not in RAW:
            return "encoding"
        if get(MessageHeaderKey.SECURE) or get(MessageHeaderKey.ENCRYPTED):
            return "encoding"  # of CellNet's own; it would fetch certificates from the sender
        if get(MessageHeaderKey.CHANNEL) != STREAM_CHANNEL:
            return "channel"
        if get(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
            return "kind"
        match get(MessageHeaderKey.TOPIC):
            case topic if topic == STREAM_DATA_TOPIC:
                return self._data(peer, message)
            case topic if topic in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC):
                return _reply(peer, message)
        return "channel"

    def _data(self, peer: str, message: Any) -> str:
        get = message.get_header
        if (get(StreamHeaderKey.CHANNEL), get(StreamHeaderKey.TOPIC)) != (CHANNEL, TOPIC):
            return "channel"
        if get(StreamHeaderKey.RELIABLE):
            return "kind"  # its sender would say how long we keep it
        stream, size = get(StreamHeaderKey.STREAM_ID), get(StreamHeaderKey.SIZE)
        length = len(message.payload or b"")
        if type(stream) is not int or length > MAX_CHUNK:
            return "size"
        if get(StreamHeaderKey.ERROR_MSG) is not None:  # the sender gives it up
            with self._lock:
                known = self._streams[peer].pop(stream, None)
            return "" if known and not length else "kind"
        if type(size) is not int or not 0 < size <= self.max_bytes:
            return "size"
        return self._admit(peer, stream, size, length)

    def _admit(self, peer: str, stream: int, size: int, length: int) -> str:
        """Memory stays bounded: one large frame at a time, and no byte more than announced."""
        now, idle = time.monotonic(), []
        with self._lock:
            streams = self._streams[peer]
            incoming = streams.get(stream)
            if incoming is None:
                idle = [sid for sid, other in streams.items() if now - other.last > IDLE]
                for sid in idle:
                    del streams[sid]
                promised = sum(other.size for other in streams.values())
                if len(streams) >= MAX_STREAMS or promised + size > self.max_bytes + SLACK:
                    return "memory"
                incoming = streams[stream] = _Incoming(size, now)
            if size != incoming.size or incoming.received + length > size:
                return "size"
            incoming.received, incoming.last = incoming.received + length, now
            if incoming.received == size:
                del streams[stream]
        for sid in idle:
            _give_up(peer, sid)
        return ""


def _reply(peer: str, message: Any) -> str:
    """Only whom a stream goes to may acknowledge or refuse it."""
    if message.payload:
        return "size"
    stream = message.get_header(StreamHeaderKey.STREAM_ID)
    if type(stream) is not int:
        return "size"
    with ByteStreamer.map_lock:
        task = ByteStreamer.tx_task_map.get(stream)
    return "" if task is None or task.target == peer else "origin"


def _give_up(peer: str, stream: int) -> None:
    """Free what CellNet holds of a stream; without its first piece it would hold it for good."""
    with RxTask.map_lock:
        task = RxTask.rx_task_map.get((peer, stream))
    if task is not None:
        task.stop(StreamError("given up"), notify=False)
