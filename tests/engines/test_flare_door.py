"""A hospital that is not let in hears why; so does one that does not answer."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import DNSName
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from secure_fl.cli.join import MOST_REFUSALS, log_refusals
from secure_fl.crypto.keys.identity import Identity
from secure_fl.engines.flare import diagnosis as flare_door
from secure_fl.engines.flare.cell import FlareParty
from secure_fl.engines.flare.diagnosis import EXCEPT, VARIABLES, diagnose, explaining, proxy_to
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.errors import KeyringError, WireError
from secure_fl.pilot.certificates import Authority, Kits, make_kits
from secure_fl.protocol.frames import Frame, Link
from secure_fl.protocol.messages import Agreed
from tests.support.hubs import echo, free_url, parties
from tests.support.raising import raises


class Tunnels:
    """A CONNECT proxy on this machine; `asked` is every target that somebody wanted."""

    def __init__(self, login: str | None = None, refuses: bool = False) -> None:
        self.login, self.refuses = login, refuses
        self.opens: ssl.SSLContext | None = None  # shows a certificate of its own instead
        self.asked: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # `accept` returns
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with suppress(OSError), line:
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(4096)
            target = head.split()[1].decode()
            self.asked.append(target)
            wanted = self.login and b"Basic " + b64encode(self.login.encode())
            if wanted and wanted not in head:
                line.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            elif self.refuses:
                line.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            else:
                line.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._carry(line, target)

    def _carry(self, line: socket.socket, target: str) -> None:
        if self.opens is not None:
            with self.opens.wrap_socket(line, server_side=True) as opened:
                opened.recv(1)
            return
        host, port = target.rsplit(":", 1)
        with socket.create_connection((host.strip("[]"), int(port))) as there:
            back = threading.Thread(target=_pump, args=(there, line), daemon=True)
            back.start()
            _pump(line, there)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(login: str | None = None, *, refuses: bool = False) -> Iterator[Tunnels]:
    """A proxy while inside."""
    made = Tunnels(login, refuses)
    try:
        yield made
    finally:
        made.close()


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


def test_a_kit_of_another_pilot_is_refused(kits: tuple[Kits, Kits], url: str) -> None:
    said = diagnose(url, kits[1].sites["north"])
    assert "has another certificate" in said and "pilot init" in said


def test_a_certificate_that_the_coordinator_refuses(kits: tuple[Kits, Kits], url: str) -> None:
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


def test_unanswered_frames_are_logged(
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


# --- behind a hospital's proxy ------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("of_two"), ["north"])


@pytest.fixture(autouse=True)
def no_other_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*VARIABLES, *EXCEPT):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield


@pytest.mark.parametrize("login", [None, "ward:p%40ss"])
def test_frames_pass_through_a_proxy_with_and_without_a_password(
    of_two: Kits, monkeypatch: pytest.MonkeyPatch, login: str | None
) -> None:
    told = login.replace("%40", "@") if login else None
    url = free_url().replace("127.0.0.1", "localhost")
    with proxy(told) as way, FlareHub(url, of_two.coordinator, ["north"]) as hub:
        at = f"{login}@127.0.0.1" if login else "127.0.0.1"
        monkeypatch.setenv("https_proxy", f"http://{at}:{way.port}")
        assert diagnose(url, of_two.sites["north"]) == ""
        with parties(of_two, url, {"north": echo}):
            assert not hub.wait_for(["north"], 20)
            (answered,) = hub.exchange({"north": Frame(b"head", b"bulk" * 500_000)}, 30)
        assert answered[1].head == b"re:head"
        assert set(way.asked) == {url.removeprefix("grpc://")} and len(way.asked) >= 2


def test_a_proxy_s_refusal_has_no_password(of_two: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    north, url = of_two.sites["north"], "grpc://hub.example.org:8443"
    with proxy("ward:right") as way:
        monkeypatch.setenv("https_proxy", f"http://ward:wrong-one@127.0.0.1:{way.port}")
        said = diagnose(url, north)
    assert "wants a name and a password" in said and "wrong-one" not in said
    with proxy(refuses=True) as way:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{way.port}")
        assert "does not connect to hub.example.org:8443 (403)" in diagnose(url, north)
    assert "cannot be reached" in diagnose(url, north)  # it has closed


def test_a_proxy_that_opens_tls(
    of_two: Kits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Authority("Hospital Web Filter").coordinator(tmp_path, ["localhost"])
    with proxy() as way:
        way.opens = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        way.opens.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{way.port}")
        url = free_url().replace("127.0.0.1", "localhost")
        said = diagnose(url, of_two.sites["north"])
        assert "Hospital Web Filter" in said and "open TLS" in said
        with (
            FlareHub(url, of_two.coordinator, ["north"]) as hub,
            parties(of_two, url, {"north": echo}),
        ):
            assert hub.wait_for(["north"], 2.0) == {"north"}  # nor does gRPC take it


def test_the_variables_are_those_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_to("hub.example.org") is None
    monkeypatch.setenv("http_proxy", "one:1")
    monkeypatch.setenv("https_proxy", "http://two:2")
    assert str(proxy_to("hub.example.org")) == "two:2"
    monkeypatch.setenv("grpc_proxy", "http://three:3")
    assert str(proxy_to("hub.example.org")) == "three:3"
    monkeypatch.setenv("no_proxy", "localhost, .example.org")
    assert proxy_to("hub.example.org") is None and proxy_to("hub.org") is not None


# --- kits for trials, and FLARE's own: the same files, and connections come about ---------------


PROJECT = """
api_version: 3
name: trial
participants:
  - {name: hub.example.org, type: server, org: lab, fed_learn_port: 8002, host_names: [127.0.0.1]}
  - {name: east, type: client, org: lab}
builders:
  - {path: nvflare.lighter.impl.workspace.WorkspaceBuilder}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: grpc}
  - {path: nvflare.lighter.impl.cert.CertBuilder}
  - {path: nvflare.lighter.impl.signature.SignatureBuilder}
"""


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_kit_holds_what_its_owner_needs_and_nobody_else_may_read(tmp_path: Path) -> None:
    made_kits = make_kits(tmp_path, ["east", "north"], ["hub.example.org", "10.0.0.1"])
    assert made_kits.coordinator.common_name() == "coordinator"
    assert {name: tls.common_name() for name, tls in made_kits.sites.items()} == {
        "east": "east",
        "north": "north",
    }
    for tls in (made_kits.coordinator, *made_kits.sites.values()):
        assert stat.S_IMODE(tls.key.stat().st_mode) == 0o600
        assert stat.S_IMODE(tls.key.parent.stat().st_mode) == 0o700
        assert sorted(p.name for p in tls.key.parent.iterdir()) == sorted(
            [tls.root.name, tls.certificate.name, tls.key.name]
        )
    keys = [tls.key.read_bytes() for tls in (made_kits.coordinator, *made_kits.sites.values())]
    assert len(set(keys)) == 3
    for folder in tmp_path.rglob("*"):
        assert folder.is_dir() or b"PRIVATE" not in folder.read_bytes() or folder.suffix == ".key"


def test_a_certificate_serves_one_purpose(tmp_path: Path) -> None:
    made_kits = make_kits(tmp_path, ["east"], ["hub.example.org"])
    root = load(made_kits.coordinator.root)
    verifiers = PolicyBuilder().store(Store([root]))
    server = verifiers.build_server_verifier(DNSName("hub.example.org"))
    server.verify(load(made_kits.coordinator.certificate), [])
    with pytest.raises(VerificationError):
        server.verify(load(made_kits.sites["east"].certificate), [])
    with pytest.raises(VerificationError):
        other = verifiers.build_server_verifier(DNSName("other.example.org"))
        other.verify(load(made_kits.coordinator.certificate), [])
    purposes = load(made_kits.sites["east"].certificate).extensions
    found = purposes.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(found) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_certificates_run_out_and_an_incomplete_kit_is_said(tmp_path: Path) -> None:
    authority = Authority(days=3)
    left = authority.certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=2) < left <= timedelta(days=3)
    authority.site(tmp_path, "east")
    (tmp_path / "client.key").unlink()
    with raises(KeyringError, reason="missing"):
        TlsFiles.of_site(tmp_path)
    (tmp_path / "client.key").touch()
    (tmp_path / "client.crt").write_text("no certificate")
    with raises(KeyringError, reason="certificate"):
        TlsFiles.of_site(tmp_path).common_name()


def test_the_kits_of_flare_serve_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "project.yml").write_text(PROJECT)
    command = ["-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "made", "--force"]
    subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    made_kits = tmp_path / "made" / "trial" / "prod_00"
    hub_files = TlsFiles.of_coordinator(made_kits / "hub.example.org" / "startup")
    site_files = TlsFiles.of_site(made_kits / "east" / "startup")
    url = free_url()
    with FlareHub(url, hub_files, ["east"]) as hub:
        with FlareParty("east", url, site_files, hub=hub_files.common_name()):
            assert not hub.wait_for(["east"], 10)
