"""One certificate cannot keep the other hospitals from connecting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub

from secure_fl.engines.flare import cell
from secure_fl.engines.flare.cell import GRPC, SETTINGS, FlareParty
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.pilot.certificates import Kits, make_kits
from tests.support.hubs import free_url


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits"), ["east", "north"])


@contextmanager
def silent_streams(url: str, tls: TlsFiles, number: int) -> Iterator[list[grpc.Call]]:
    """Open streams that send nothing, with one certificate."""
    stop, channels, calls = threading.Event(), [], []
    credentials = grpc.ssl_channel_credentials(
        tls.root.read_bytes(), tls.key.read_bytes(), tls.certificate.read_bytes()
    )

    def nothing() -> Iterator[bytes]:
        stop.wait()
        yield from ()

    try:
        for k in range(number):
            if k % 90 == 0:  # a server limits the streams of a connection, and not connections
                options = [("grpc.use_local_subchannel_pool", 1)]
                channels.append(
                    grpc.secure_channel(url.removeprefix("grpc://"), credentials, options)
                )
            calls.append(StreamerStub(channels[-1]).Stream(nothing()))
        yield calls
    finally:
        stop.set()
        for channel in channels:
            channel.close()


def connects(kits: Kits, number: int, patience: float) -> bool:
    """Open silent streams with the certificate of north, and check that east connects."""
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east", "north"]) as hub:
        with silent_streams(url, kits.sites["north"], number):
            time.sleep(0.5)
            with FlareParty("east", url, kits.sites["east"]):
                return not hub.wait_for(["east"], patience)


def test_silent_streams_keep_nobody_out(kits: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"max_workers": 8, "options": list(GRPC.items())}
    monkeypatch.setitem(SETTINGS, "grpc", few)
    assert connects(kits, 12, patience=15)
    monkeypatch.setattr(cell, "MAX_LINES", 1_000)
    assert not connects(kits, 12, patience=3)  # the attack on a server without the limit


def test_more_streams_than_the_server_has_workers_keep_nobody_out(kits: Kits) -> None:
    assert connects(kits, 260, patience=20)


def test_a_stream_that_never_greets_is_closed(kits: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "HANDSHAKE", 0.5)
    monkeypatch.setattr(cell, "TICK", 0.1)
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east", "north"]) as hub:
        with silent_streams(url, kits.sites["north"], 1) as calls:
            with FlareParty("east", url, kits.sites["east"]):
                assert not hub.wait_for(["east"], 10)
                assert wait(calls[0])
                time.sleep(1.0)
                assert hub.connected() == {"east"}  # a greeted line stays


def test_the_newest_connections_of_a_certificate_stay(kits: Kits) -> None:
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east", "north"]) as hub:
        with (
            silent_streams(url, kits.sites["east"], 6),
            FlareParty("east", url, kits.sites["east"]),
        ):
            assert not hub.wait_for(["east"], 10)  # a hospital replaces its own broken lines


def wait(call: grpc.Call, timeout: float = 10.0) -> bool:
    """Wait until the server has ended a stream."""
    until = time.monotonic() + timeout
    while call.is_active() and time.monotonic() < until:
        time.sleep(0.05)
    return not call.is_active()
