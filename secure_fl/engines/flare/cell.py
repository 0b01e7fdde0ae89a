"""One end of NVIDIA FLARE's CellNet: mutual TLS, reconnecting and streaming, and nothing more.

No job layer and no administration run here, so nothing can be pushed to a hospital but parcels.
FLARE's threads only hand parcels over; what is to be done about them is done elsewhere.
`FlareParty`, a hospital's end, dials out to the coordinator, and to nobody else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from secure_fl.engines.flare.diagnosis import address, require_free, require_listening
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.engines.responder import Deliver, Responder
from secure_fl.engines.transport_message import TransportMessage
from secure_fl.errors import SecureFLError, SettingsError, WireError

# Before nvflare is imported: a finished stream is then kept for 2 s and not for 65.
os.environ["NVFLARE_STREAMING_RETRY_TIMEOUT"] = "1"
os.environ["NVFLARE_STREAMING_RETRY_WAIT"] = "1"

try:
    from nvflare.fuel.f3.cellnet.cell import Cell
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.comm_config import CommConfigurator
    from nvflare.fuel.f3.connection import ConnState
    from nvflare.fuel.f3.drivers.driver_params import DriverParams
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.f3.stats_pool import StatsPool, StatsPoolManager
    from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
    from nvflare.fuel.f3.streaming.stream_const import (
        STREAM_ACK_TOPIC,
        STREAM_CHANNEL,
        StreamDataType,
        StreamHeaderKey,
    )
    from nvflare.fuel.f3.streaming.stream_types import StreamError
except ModuleNotFoundError:
    raise SettingsError(
        "NVIDIA FLARE is not installed",
        fix="from a checkout: pip install --constraint constraints.txt '.[flare]'",
    ) from None

from secure_fl.engines.flare.frame_filter import CHANNEL, MAX_CHUNK, TOPIC, FrameFilter

HUB = "server"  # what CellNet calls the root that the others dial
GRPC = {
    # Nothing larger than a piece of a stream is ever received: refused before it is in memory.
    "grpc.max_send_message_length": 2 * MAX_CHUNK,
    "grpc.max_receive_message_length": 2 * MAX_CHUNK,
    "grpc.so_reuseport": 0,  # a second coordinator on the port must fail, not share it
    # A line that swallows everything is noticed after 20 s; the last one decides on gRPC 1.85.
    "grpc.keepalive_time_ms": 15_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.http2.ping_timeout_ms": 5_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
}
ACK_EVERY = 4 * 2**20  # bytes of a stream: those acknowledgements open its window
NO_STREAM = 0
_OPENING = threading.Lock()
SETTINGS = {
    "allow_adhoc_conns": False,  # nobody connects past the coordinator
    "streaming_window_size": 16 * 2**20,  # what may wait for a slow line
    "streaming_ack_interval": ACK_EVERY,
    "streaming_read_timeout": 60,
    "grpc": {"max_workers": 256, "options": list(GRPC.items())},  # one worker a connection
}


def cell_name(party: str) -> str:
    """CellNet's name of a party: a dot would make it somebody's child, and `server` is taken."""
    return f"~{party}" if party == HUB else party.replace(".", "~")


class CellOutgoing:
    """A parcel on its way out."""

    def __init__(self, future: Any, connection: str | None) -> None:
        self.connection = connection
        self.began, self.ended = time.monotonic(), 0.0
        self._future = future
        future.add_done_callback(self._end)

    def done(self) -> bool:
        """Tell if the connection has accepted all of it; it may not have arrived."""
        return self.ended > 0

    def _end(self) -> None:
        self.ended = time.monotonic()

    def cancel(self) -> None:
        """Stop sending; of the task, as the future's own `cancel` waits for itself in 2.9."""
        self._future.task_handle.cancel()


class CellEnd:
    """A started cell: sends parcels to its peers, and delivers theirs."""

    def __init__(
        self,
        name: str,
        url: str,
        tls: TlsFiles,
        peers: Mapping[str, str],  # the cells it talks to, and the names in their certificates
        max_bytes: int,
        deliver: Callable[[str, TransportMessage], None],
    ) -> None:
        address(url)
        self._deliver = deliver
        self._peers = frozenset(peers)
        self.guard = FrameFilter(name, self._peers, max_bytes)
        if name == HUB:
            require_free(url)
        side = "server" if name == HUB else "client"
        credentials = {
            "ca_cert": str(tls.root),
            f"{side}_cert": str(tls.certificate),
            f"{side}_key": str(tls.key),
            "connection_security": "mtls",
        }
        self._cell = new_cell(name, url, credentials, peers)
        core = self._cell.core_cell
        core.add_incoming_filter("*", "*", self.guard.check)
        spare_acks(core)
        core.set_cell_disconnected_cb(self._disconnected)
        self._limit = limit_lines(core) if name == HUB else None
        self._cell.register_blob_cb(CHANNEL, TOPIC, self._arrived)
        core.start()
        if name == HUB:
            require_listening(url)

    def send(self, peer: str, parcel: TransportMessage) -> CellOutgoing:
        """Start to send; nothing says whether it arrived."""
        connection, buffers = self.connection(peer), parcel.to_buffers()
        message = Message({}, buffers if len(buffers) > 1 else buffers[0])
        future = self._cell.send_blob(CHANNEL, TOPIC, peer, message, optional=True)
        sending = CellOutgoing(future, connection)
        future.add_done_callback(last_word, self._cell.core_cell, peer)
        return sending

    def connection(self, peer: str) -> str | None:
        """Which connection there is to this peer now; a new one has a new name."""
        core = self._cell.core_cell
        lines = list(core.communicator.conn_manager.get_connections(peer) or ())
        return str(lines[-1].get_name()) if lines and core.is_cell_connected(peer) else None

    def close(self) -> None:
        """Leave: close the connections, and end what would hold up the process for a minute."""
        core = self._cell.core_cell
        with core.agent_lock:
            core.agents.clear()  # no goodbyes: who came back at once would stay unknown after one
        core.stop()
        if self._limit is not None:
            self._limit.close()
        for peer in self._peers:
            self.guard.forget(peer)
        with ByteStreamer.map_lock:
            outgoing = [task for task in ByteStreamer.tx_task_map.values() if task.cell is core]
        for task in outgoing:
            task.stop(StreamError("closed"), notify=False)

    def _arrived(self, future: Any) -> None:
        try:
            parcel = TransportMessage.from_bytes(future.result())
        except (StreamError, WireError):
            self.guard.refused["parcel"] += 1  # cut off on its way, or malformed: as if never sent
            return
        self._deliver(future.headers[MessageHeaderKey.ORIGIN], parcel)

    def _disconnected(self, agent: Any) -> None:
        self.guard.forget(agent.get_fqcn())


class _Uncounted:
    """Stands in for CellNet's statistics, which keep an entry for each name that any site sends."""

    def record_value(self, *_: object, **__: object) -> None:
        """Count nothing."""

    def increment(self, *_: object, **__: object) -> None:
        """Count nothing."""


def new_cell(name: str, url: str, credentials: Mapping[str, str], peers: Mapping[str, str]) -> Any:
    """Make a cell that owes nothing to this process: no table, file or folder of it."""
    with _OPENING:
        # Otherwise it looks for a file in all folders below this one, and loads what that names.
        CommConfigurator._configuration, CommConfigurator._config_loaded = SETTINGS, True
        cell = Cell(name, url, True, dict(credentials), auth_identity_map=dict(peers))
        # Cells of one process would talk to each other past TLS, and a name could never come back.
        CoreCell.ALL_CELLS.pop(name)
        for attribute, pool in list(vars(cell.core_cell).items()):
            if isinstance(pool, StatsPool):
                StatsPoolManager.delete_pool(pool.name)
                setattr(cell.core_cell, attribute, _Uncounted())
    return cell


def limit_lines(core: Any) -> LineLimit:
    """Let a limit hear of each connection before CellNet's connection manager does."""
    manager = core.communicator.conn_manager
    limit = LineLimit(manager.state_change, manager.sfm_conns)
    manager.state_change = limit.state_change
    return limit


def spare_acks(core: Any) -> None:
    """Let this cell send only those acknowledgements that a sender can wait for."""

    def unneeded(message: Any) -> Message | None:
        offset = message.get_header(StreamHeaderKey.OFFSET) or 0
        return Message() if 0 < offset < ACK_EVERY else None  # an answer here: it is not sent

    core.add_outgoing_request_filter(STREAM_CHANNEL, STREAM_ACK_TOPIC, unneeded)


def last_word(core: Any, peer: str) -> None:
    """Send something behind a parcel, so that the loss of its last packet is found out soon."""
    if not core.is_cell_connected(peer):
        return
    about = {
        StreamHeaderKey.STREAM_ID: NO_STREAM,
        StreamHeaderKey.DATA_TYPE: StreamDataType.ACK,
        StreamHeaderKey.OFFSET: 0,
        StreamHeaderKey.SEQUENCE: 0,
    }
    core.fire_and_forget(STREAM_CHANNEL, STREAM_ACK_TOPIC, peer, Message(about), optional=True)


log = logging.getLogger(__name__)
MAX_LINES = 2  # open streams with one certificate: a hospital's own, and one that replaces it
HANDSHAKE = 10.0  # seconds
TICK = 1.0  # seconds between two looks for streams without a handshake


class LineLimit:
    """Limits on the coordinator's connections, so that one certificate cannot use up all workers.

    Each open stream takes one of the server's workers, before and after CellNet's handshake. For
    each name in a certificate the newest `MAX_LINES` streams stay open; older ones are closed, so
    that a hospital whose connection broke unnoticed can always come back. A stream without a
    handshake is closed after `HANDSHAKE` seconds.
    """

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


MAX_BYTES = 2**30


class Dialled:
    """A line to the coordinator over mutual TLS."""

    def __init__(
        self, name: str, url: str, tls: TlsFiles, hub: str, max_bytes: int, deliver: Deliver
    ) -> None:
        """`hub` is the name in the coordinator's certificate; over gRPC its host name decides."""

        def delivered(cell: str, parcel: TransportMessage) -> None:
            deliver(parcel)

        self._end = CellEnd(cell_name(name), url, tls, {HUB: hub}, max_bytes, delivered)

    def send(self, parcel: TransportMessage) -> CellOutgoing:
        """Start to send; nothing says whether it arrived."""
        return self._end.send(HUB, parcel)

    def connection(self) -> str | None:
        """Which connection there is now; a new one has a new name."""
        return self._end.connection(HUB)

    def close(self) -> None:
        """Leave."""
        self._end.close()


class FlareParty(Responder):
    """Answers the coordinator's frames, over its own connection."""

    def __init__(
        self,
        name: str,
        url: str,
        tls: TlsFiles,
        *,
        hub: str = "coordinator",
        max_bytes: int = MAX_BYTES,
        refusing: Callable[[SecureFLError], None] = lambda error: None,
    ) -> None:
        """`refusing`: called with the error of a frame that is not answered."""
        super().__init__(
            lambda deliver: Dialled(name, url, tls, hub, max_bytes, deliver), refusing=refusing
        )
