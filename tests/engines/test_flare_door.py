"""A hospital that is not let in hears why; so does one that does not answer."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from secure_fl.cli.join import MOST_REFUSALS, log_refusals
from secure_fl.crypto.keys.identity import Identity
from secure_fl.engines.flare import diagnosis as flare_door
from secure_fl.engines.flare.diagnosis import diagnose, explaining
from secure_fl.engines.flare.flare_party import FlareParty
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.errors import WireError
from secure_fl.pilot.certificates import Kits, make_kits
from secure_fl.protocol.frames import Frame, Link
from secure_fl.protocol.messages import Agreed
from tests.support.hubs import free_url

LOG = logging.getLogger("secure_fl.pilot")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kits, Kits]:
    """Of two pilots."""
    folder = tmp_path_factory.mktemp("kits")
    return make_kits(folder / "ours", ["north"]), make_kits(folder / "theirs", ["north"])


@pytest.fixture(scope="module")
def url(kits: tuple[Kits, Kits]) -> Iterator[str]:
    at = free_url()
    with FlareHub(at, kits[0].coordinator, ["north"]):
        yield at


def test_a_kit_that_fits_is_let_in(kits: tuple[Kits, Kits], url: str) -> None:
    assert diagnose(url, kits[0].sites["north"]) == ""


def test_a_kit_of_another_pilot_does_not_trust_the_coordinator(
    kits: tuple[Kits, Kits], url: str
) -> None:
    said = diagnose(url, kits[1].sites["north"])
    assert "has another certificate" in said and "pilot init" in said


def test_a_certificate_that_the_coordinator_does_not_take(
    kits: tuple[Kits, Kits], url: str
) -> None:
    """Half of an old kit: its coordinator is known, its own certificate is not."""
    ours, theirs = (kit.sites["north"] for kit in kits)
    said = diagnose(url, TlsFiles(ours.root, theirs.certificate, theirs.key))
    assert "refuse" in said and "this kit's certificate" in said and "pilot init" in said


def test_a_coordinator_that_is_not_there(kits: tuple[Kits, Kits]) -> None:
    north = kits[0].sites["north"]
    assert "not started yet" in diagnose(free_url(), north)
    assert "not known here" in diagnose("grpc://nowhere.invalid:8443", north)


@pytest.mark.parametrize(("closes", "said"), [(False, "does not answer"), (True, "hangs up")])
def test_somebody_else_on_the_port(
    kits: tuple[Kits, Kits], monkeypatch: pytest.MonkeyPatch, closes: bool, said: str
) -> None:
    monkeypatch.setattr(flare_door, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            line, _ = server.accept()
            line.close()

        if closes:
            threading.Thread(target=accept, daemon=True).start()
        port = server.getsockname()[1]
        found = diagnose(f"grpc://127.0.0.1:{port}", kits[0].sites["north"])
    assert said in found or (closes and "refuses" in found), found  # TLS ends in either way


def test_a_kit_that_was_cut(kits: tuple[Kits, Kits], tmp_path: Path) -> None:
    whole = kits[0].sites["north"]
    (tmp_path / "client.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    cut = TlsFiles(whole.root, whole.certificate, tmp_path / "client.key")
    assert "copy it whole" in diagnose(free_url(), cut)


def test_the_same_reason_is_told_once_until_it_was_connected(kits: tuple[Kits, Kits]) -> None:
    said: list[str] = []
    connected = False
    with explaining(lambda: connected, free_url(), kits[0].sites["north"], said.append, 0.02):
        time.sleep(0.5)
        assert len(said) == 1
        connected = True
        time.sleep(0.3)
        connected = False
        time.sleep(0.5)
    time.sleep(0.1)
    assert len(said) == 2


def test_a_frame_that_is_not_answered_is_told_to_who_runs_join(
    kits: tuple[Kits, Kits], caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator with another identity than the roster's: its line is genuine, its words not."""
    ours, other = Identity.generate("coordinator"), Identity.generate("coordinator")
    north = Identity.generate("north")
    link = Link(b"r" * 16, north, ours.public, asks=False)
    forged = Link(b"r" * 16, other, north.public, asks=True)

    def step(frame: Frame) -> Frame:
        link.unpack(frame)
        raise AssertionError("it was believed")

    at = free_url()
    with ExitStack() as stack:
        hub = stack.enter_context(FlareHub(at, kits[0].coordinator, ["north"]))
        site = kits[0].sites["north"]
        party = FlareParty("north", at, site, refusing=log_refusals(LOG))
        stack.enter_context(party)
        serving = threading.Thread(target=party.serve, args=(step,), daemon=True)
        serving.start()
        assert not hub.wait_for(["north"], 20)
        for _ in range(2):
            assert dict(hub.exchange({"north": forged.pack(Agreed({}))}, 2)) == {}
        party.stop()
        serving.join()
    said = caplog.text
    assert said.count("not answered (crypto)") == 1
    assert "signature" in said and "keys show kit/roster.json" in said


def test_whoever_sends_nonsense_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    refusing = log_refusals(LOG)
    for number in range(10 * MOST_REFUSALS):
        refusing(WireError(f"reason {number}"))
    assert caplog.text.count("not answered") == MOST_REFUSALS
