"""Behind a hospital's proxy: frames pass through CONNECT, and what is in the way is said."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_fl.engines.flare.diagnosis import EXCEPT, VARIABLES, diagnose, proxy_to
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.pilot.certificates import Authority, Kits, make_kits
from secure_fl.protocol.frames import Frame
from tests.support.hubs import echo, free_url, parties
from tests.support.proxies import proxy


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits"), ["north"])


@pytest.fixture(autouse=True)
def no_other_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*VARIABLES, *EXCEPT):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield


@pytest.mark.parametrize("login", [None, "ward:p%40ss"])
def test_frames_pass_through_a_proxy_with_and_without_a_password(
    kits: Kits, monkeypatch: pytest.MonkeyPatch, login: str | None
) -> None:
    told = login.replace("%40", "@") if login else None
    url = free_url().replace("127.0.0.1", "localhost")
    with proxy(told) as way, FlareHub(url, kits.coordinator, ["north"]) as hub:
        at = f"{login}@127.0.0.1" if login else "127.0.0.1"
        monkeypatch.setenv("https_proxy", f"http://{at}:{way.port}")
        assert diagnose(url, kits.sites["north"]) == ""
        with parties(kits, url, {"north": echo}):
            assert not hub.wait_for(["north"], 20)
            (answered,) = hub.exchange({"north": Frame(b"head", b"bulk" * 500_000)}, 30)
        assert answered[1].head == b"re:head"
        assert set(way.asked) == {url.removeprefix("grpc://")} and len(way.asked) >= 2


def test_what_a_proxy_refuses_is_said_without_the_password(
    kits: Kits, monkeypatch: pytest.MonkeyPatch
) -> None:
    north, url = kits.sites["north"], "grpc://hub.example.org:8443"
    with proxy("ward:right") as way:
        monkeypatch.setenv("https_proxy", f"http://ward:wrong-one@127.0.0.1:{way.port}")
        said = diagnose(url, north)
    assert "wants a name and a password" in said and "wrong-one" not in said
    with proxy(refuses=True) as way:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{way.port}")
        assert "does not connect to hub.example.org:8443 (403)" in diagnose(url, north)
    assert "cannot be reached" in diagnose(url, north)  # it has closed


def test_a_proxy_that_opens_tls_is_refused_and_named(
    kits: Kits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Authority("Hospital Web Filter").coordinator(tmp_path, ["localhost"])
    with proxy() as way:
        way.opens = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        way.opens.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{way.port}")
        url = free_url().replace("127.0.0.1", "localhost")
        said = diagnose(url, kits.sites["north"])
        assert "Hospital Web Filter" in said and "open TLS" in said
        with FlareHub(url, kits.coordinator, ["north"]) as hub, parties(kits, url, {"north": echo}):
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
