"""Attacks on FLARE as engine: each works on CellNet alone, and none with what we put before it."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgpack
import pytest
from nvflare.fuel.f3.cellnet import utils
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    Encoding,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
)
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame as GrpcFrame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.f3.streaming.stream_types import StreamError

from secure_fl.engines.flare.cell import HUB, CellEnd, FlareParty, new_cell
from secure_fl.engines.flare.frame_filter import CHANNEL, MAX_STREAMS, TOPIC, FrameFilter
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.engines.transport_message import MessageKind, StepId, TransportMessage
from secure_fl.pilot.certificates import Kits, make_kits
from secure_fl.protocol.frames import Frame
from tests.support.hubs import echo, free_url, parties

SITES = ("east", "north")
PARCEL = TransportMessage(MessageKind.ANSWER, StepId(b"l" * 16, 1), Frame(b"head", b"bulk"))
both = pytest.mark.parametrize("guarded", [False, True], ids=["off", "on"])


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits"), SITES)


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(holds())


def credentials(tls: TlsFiles, side: str = "client", security: str = "mtls") -> dict[str, str]:
    return {
        "ca_cert": str(tls.root),
        f"{side}_cert": str(tls.certificate),
        f"{side}_key": str(tls.key),
        "connection_security": security,
    }


@contextmanager
def running(cell: Any) -> Iterator[Any]:
    cell.core_cell.start()
    try:
        yield cell
    finally:
        cell.core_cell.stop()


class Coordinator:
    """The coordinator's end of the wire, with its guard or without."""

    def __init__(self, kits: Kits, guarded: bool) -> None:
        self.url, self.heard = free_url(), list[tuple[str, TransportMessage]]()
        self.end = CellEnd(
            HUB,
            self.url,
            kits.coordinator,
            {name: name for name in SITES},
            2**20,
            lambda peer, parcel: self.heard.append((peer, parcel)),
        )
        if not guarded:
            self.end._cell.core_cell.in_filter_reg.reg.clear()

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.end.guard.refused)


@pytest.fixture
def coordinator(kits: Kits, guarded: bool) -> Iterator[Coordinator]:
    found = Coordinator(kits, guarded)
    yield found
    found.end.close()
    for task in list(RxTask.rx_task_map.values()):  # what an attack left behind
        task.stop(StreamError("the test is over"), notify=False)
    RxTask.rx_task_map.clear()


@pytest.fixture
def east(kits: Kits, coordinator: Coordinator) -> Iterator[Any]:
    """A site whose certificate is right, and whose program is not ours."""
    with running(new_cell("east", coordinator.url, credentials(kits.sites["east"]), {})) as cell:
        assert eventually(lambda: cell.core_cell.is_cell_connected(HUB))
        yield cell


def data(stream: object, size: object = 10, **more: object) -> dict[str, object]:
    names = {"seq": StreamHeaderKey.SEQUENCE, "reliable": StreamHeaderKey.RELIABLE}
    return {
        StreamHeaderKey.CHANNEL: CHANNEL,
        StreamHeaderKey.TOPIC: TOPIC,
        StreamHeaderKey.STREAM_ID: stream,
        StreamHeaderKey.SIZE: size,
    } | {names[key]: value for key, value in more.items()}


def throw(cell: Any, headers: dict[str, object], payload: object, topic: str = "") -> None:
    message = Message(headers, payload)
    cell.core_cell.fire_and_forget(STREAM_CHANNEL, topic or STREAM_DATA_TOPIC, HUB, message)


@both
def test_a_site_cannot_speak_as_another(coordinator: Coordinator, east: Any, guarded: bool) -> None:
    east.core_cell.add_outgoing_request_filter(
        "*", "*", lambda message: message.set_header(MessageHeaderKey.ORIGIN, "north")
    )
    east.send_blob(CHANNEL, TOPIC, HUB, Message({}, b"".join(PARCEL.to_buffers())))
    if guarded:
        assert eventually(lambda: coordinator.refused == {"origin": 1})
        assert coordinator.heard == []
    else:
        assert eventually(lambda: coordinator.heard == [("north", PARCEL)])


@both
def test_a_site_does_not_speak_as_part(kits: Kits, coordinator: Coordinator, guarded: bool) -> None:
    files = credentials(kits.sites["east"])
    with running(new_cell("east.child", coordinator.url, files, {})) as child:
        assert eventually(lambda: child.core_cell.is_cell_connected(HUB))
        child.send_blob(CHANNEL, TOPIC, HUB, Message({}, b"".join(PARCEL.to_buffers())))
        if guarded:
            assert eventually(lambda: coordinator.refused == {"stranger": 1})
        else:
            assert eventually(lambda: coordinator.heard == [("east.child", PARCEL)])
        assert guarded is not bool(coordinator.heard)


@both
def test_sites_cannot_reach_each_other_through_the_coordinator(
    kits: Kits, coordinator: Coordinator, east: Any, guarded: bool
) -> None:
    heard = list[tuple[str, TransportMessage]]()
    north = CellEnd(
        "north",
        coordinator.url,
        kits.sites["north"],
        {HUB: "coordinator"},
        2**20,
        lambda peer, parcel: heard.append((peer, parcel)),
    )
    try:
        assert eventually(lambda: coordinator.end.connection("north"))

        def send() -> None:
            east.send_blob(CHANNEL, TOPIC, "north", Message({}, b"".join(PARCEL.to_buffers())))

        send()
        if guarded:
            assert eventually(lambda: coordinator.refused == {"destination": 1})
            return
        assert eventually(lambda: north.guard.refused == {"origin": 1})  # its own guard stands
        north._cell.core_cell.in_filter_reg.reg.clear()
        send()
        assert eventually(lambda: heard == [("east", PARCEL)])
    finally:
        north.close()


@both
def test_objects_are_not_decoded(
    coordinator: Coordinator, east: Any, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, loads = list[object](), utils.fobs.loads

    def spying(*args: Any, **options: Any) -> object:
        decoded.append(loads(*args, **options))
        return decoded[-1]

    monkeypatch.setattr(utils.fobs, "loads", spying)
    throw(east, data(1), {"any": "object"})
    if guarded:
        assert eventually(lambda: coordinator.refused == {"encoding": 1})
    assert eventually(lambda: decoded == ([] if guarded else [{"any": "object"}]))


@both
def test_nobody_says_whom_to_dial(coordinator: Coordinator, east: Any, guarded: bool) -> None:
    where = {MessageHeaderKey.CONN_URL: "grpc://127.0.0.1:9", MessageHeaderKey.FROM_CELL: "relay"}
    if guarded:
        del where[MessageHeaderKey.FROM_CELL]  # which alone would be refused
    east.core_cell.add_outgoing_request_filter("*", "*", lambda message: message.add_headers(where))
    throw(east, data(1, seq=0), b"x" * 10)
    core = coordinator.end._cell.core_cell
    if guarded:
        assert eventually(lambda: coordinator.refused == {"url": 1})
        assert not core.adhoc_connectors
    else:
        assert eventually(lambda: list(core.adhoc_connectors) == ["east"])


@both
def test_announced_bytes_take_no_memory(coordinator: Coordinator, east: Any, guarded: bool) -> None:
    throw(east, data(1, size=300_000_000, seq=0), b"x")
    if guarded:
        assert eventually(lambda: coordinator.refused == {"size": 1})
        assert not RxTask.rx_task_map
    else:
        assert eventually(lambda: [t.size for t in RxTask.rx_task_map.values()] == [300_000_000])


@both
def test_streams_do_not_pile_up(coordinator: Coordinator, east: Any, guarded: bool) -> None:
    count = 3 * MAX_STREAMS
    for stream in range(count):
        throw(east, data(stream, seq=5), b"x")
    if guarded:
        assert eventually(lambda: coordinator.refused == {"memory": count - MAX_STREAMS})
        assert len(RxTask.rx_task_map) == MAX_STREAMS
        coordinator.end.guard.forget("east")  # as when it disconnects
        assert all(task.failed for task in RxTask.rx_task_map.values())
    else:
        assert eventually(lambda: len(RxTask.rx_task_map) == count)


@both
def test_only_a_receiver_stops_a_stream(coordinator: Coordinator, east: Any, guarded: bool) -> None:
    core = coordinator.end._cell.core_cell
    stream = BlobStream(b"x" * 10, {})
    task = TxTask(core, 2**20, CHANNEL, TOPIC, "north", {}, stream, False, False, True)
    ByteStreamer.tx_task_map[task.sid] = task  # on its way to north
    try:
        headers = {StreamHeaderKey.STREAM_ID: task.sid, StreamHeaderKey.ERROR_MSG: "stop"}
        throw(east, headers, None, STREAM_ACK_TOPIC)
        if guarded:
            assert eventually(lambda: coordinator.refused == {"origin": 1})
        assert eventually(lambda: task.stopped is not guarded)
    finally:
        ByteStreamer.tx_task_map.pop(task.sid, None)


def message(**changes: object) -> Message:
    """A message that the guard of `server` accepts from `east`, but for the changes."""
    made = Message(
        {
            MessageHeaderKey.ORIGIN: "east",
            MessageHeaderKey.FROM_CELL: "east",
            MessageHeaderKey.DESTINATION: HUB,
            MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
            MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
        }
        | data(1)
        | changes,
        b"x",
    )
    made.set_prop(MessagePropKey.ENDPOINT, Endpoint("east"))
    return made


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("", {}),
        ("channel", {MessageHeaderKey.CHANNEL: CellChannel.CELLNET}),
        (
            "channel",
            {MessageHeaderKey.CHANNEL: CellChannel.CELLNET, MessageHeaderKey.TOPIC: "bulk"},
        ),
        ("channel", {MessageHeaderKey.CHANNEL: "credential_manager"}),
        ("channel", {StreamHeaderKey.CHANNEL: CellChannel.RETURN_ONLY}),
        ("channel", {StreamHeaderKey.TOPIC: "other"}),
        ("encoding", {MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}),
        ("encoding", {MessageHeaderKey.PAYLOAD_ENCODING: None}),
        ("encoding", {StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}),
        ("encoding", {MessageHeaderKey.SECURE: True}),
        ("encoding", {MessageHeaderKey.ENCRYPTED: True}),
        ("kind", {StreamHeaderKey.RELIABLE: True}),
        ("kind", {MessageHeaderKey.MSG_TYPE: MessageType.REPLY}),
        ("kind", {StreamHeaderKey.ERROR_MSG: "of a stream that is not open"}),
        ("size", {StreamHeaderKey.SIZE: 0}),
        ("size", {StreamHeaderKey.SIZE: -1}),
        ("size", {StreamHeaderKey.SIZE: True}),
        ("size", {StreamHeaderKey.SIZE: 1001}),
        ("size", {StreamHeaderKey.SIZE: "10"}),
        ("size", {StreamHeaderKey.STREAM_ID: [1]}),
        ("origin", {MessageHeaderKey.ORIGIN: "north"}),
        ("origin", {MessageHeaderKey.ORIGIN: None}),
        ("origin", {MessageHeaderKey.FROM_CELL: "north"}),
        ("destination", {MessageHeaderKey.DESTINATION: "north"}),
        ("url", {MessageHeaderKey.CONN_URL: ""}),
    ],
)
def test_the_guard_names_its_reason(reason: str, changes: dict[str, object]) -> None:
    guard = FrameFilter(HUB, SITES, 1000)
    assert (guard.check(message(**changes)) is None) is (reason == "")
    assert dict(guard.refused) == ({reason: 1} if reason else {})


def test_no_byte_more_than_announced_and_one_large_stream_at_a_time() -> None:
    guard = FrameFilter(HUB, SITES, 100_000)

    def say(stream: int, size: int, count: int) -> bool:
        made = message(**{StreamHeaderKey.STREAM_ID: stream, StreamHeaderKey.SIZE: size})
        made.payload = b"x" * count
        return guard.check(made) is None

    assert say(1, 10, 6)
    assert not say(1, 10, 5)  # 11 bytes of 10
    assert not say(1, 12, 1)  # another size than before
    assert say(1, 10, 4)  # complete: its place is free
    assert say(2, 100_000, 1)
    assert not say(3, 100_000, 1)
    assert say(4, 1000, 1)
    assert say(2, 100_000, 99_999)
    assert say(3, 100_000, 1)
    assert dict(guard.refused) == {"size": 2, "memory": 1}


def test_nothing_malformed_passes_or_crashes() -> None:
    random.seed(7)
    odd: list[Any] = [None, 0, -1, 2**70, "", "east", b"", [], {}, {"a": 1}, True, 1.5, "\ud800"]
    cell = new_cell("fuzzed", free_url(), {"connection_security": "clear"}, {}).core_cell
    guard = FrameFilter(HUB, SITES, 1000)
    for _ in range(2000):
        made = message()
        for key in random.sample(sorted(made.headers), 3):
            made.headers[key] = random.choice(odd)
        before = sum(guard.refused.values())
        refused = cell._try_cb(made, guard.check)  # as CellNet calls it: an error refuses, too
        assert refused is not None or sum(guard.refused.values()) == before


# --- connections that must not come to be ------------------------------------------------------


def strangers(kits: Kits, folder: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Who claims to be east, by the protection that must be off for it to get in."""
    others = make_kits(folder / "others", SITES)
    unknown = credentials(others.sites["east"]) | {"ca_cert": str(kits.coordinator.root)}
    return {
        "unknown authority": (unknown, "tls"),
        "no certificate": (
            {"ca_cert": str(kits.coordinator.root), "connection_security": "tls"},
            "tls",
        ),
        "certificate of another site": (credentials(kits.sites["north"]), "tls"),
        "plaintext": ({"connection_security": "clear"}, "clear"),
    }


def test_strangers_get_in_where_protection_is_off(kits: Kits, tmp_path: Path) -> None:
    for who, (files, off) in strangers(kits, tmp_path).items():
        url = free_url()
        open_hub = new_cell(HUB, url, credentials(kits.coordinator, "server", off), {})
        with running(open_hub), running(new_cell("east", url, files, {})):
            assert eventually(partial(open_hub.core_cell.is_cell_connected, "east")), who


def test_strangers_stay_out_and_disturb_nobody(kits: Kits, tmp_path: Path) -> None:
    url = free_url()
    with FlareHub(url, kits.coordinator, SITES) as hub:
        cells = [
            new_cell("east", url, files, {}) for files, _ in strangers(kits, tmp_path).values()
        ]
        for cell in cells:
            cell.core_cell.start()
        host, port = url.removeprefix("grpc://").split(":")
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500, b"\0" * 5000):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(noise)
        assert hub.wait_for(SITES, 2.0) == set(SITES)  # they dial twice in this time
        with parties(kits, url, dict.fromkeys(SITES, echo)):
            assert not hub.wait_for(SITES, 10)
            frames = dict.fromkeys(SITES, Frame(b"one"))
            assert dict(hub.exchange(frames, 20)) == dict.fromkeys(SITES, Frame(b"re:one"))
        for cell in cells:
            cell.core_cell.stop()


def test_a_site_cannot_pose_as_the_coordinator(kits: Kits) -> None:
    url = free_url()
    north = kits.sites["north"]
    files = credentials(north) | credentials(north, "server")
    with FlareParty("east", url, kits.sites["east"]) as party:
        with running(new_cell(HUB, url, files, {})) as impostor:
            assert not eventually(party.is_connected, 1.3)  # it dials twice in this time
            assert not impostor.core_cell.agents
        with FlareHub(url, kits.coordinator, SITES) as hub:
            assert "east" not in hub.wait_for(["east"], 10)


def stub(kits: Kits, url: str) -> tuple[grpc.Channel, StreamerStub]:
    """A connection with east's certificate, below CellNet."""
    tls = kits.sites["east"]
    files = (tls.root, tls.key, tls.certificate)
    secure = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    channel = grpc.secure_channel(url.removeprefix("grpc://"), secure)
    return channel, StreamerStub(channel)


@pytest.mark.parametrize("guarded", [True])
def test_nothing_is_heard_before_the_handshake(kits: Kits, coordinator: Coordinator) -> None:
    headers = msgpack.packb(message().headers | data(1, size=len(PARCEL.frame.head)))
    start = bytearray(PREFIX_LEN)
    length = PREFIX_LEN + len(headers) + 1
    Prefix(length, len(headers), Types.DATA, 0, 0, 1, 1, 1).to_buffer(start, 0)
    early, giant = bytes(start) + headers + b"x", b"\0" * 5_000_000
    channel, streamer = stub(kits, coordinator.url)
    with channel, pytest.raises(grpc.RpcError) as refused:
        frames = iter([GrpcFrame(seq=1, data=early), GrpcFrame(seq=2, data=giant)])
        for _ in streamer.Stream(frames, timeout=10):
            pass
    assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
    assert coordinator.heard == []
    assert not RxTask.rx_task_map
    with parties(kits, coordinator.url, {"east": echo}):
        assert eventually(lambda: coordinator.end.connection("east"))
