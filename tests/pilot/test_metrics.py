"""The numbers that a coordinator and a hospital show, and who can have them."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import RunError
from secure_fl.events import (
    Event,
    EventLog,
    MembersGathered,
    MembersLost,
    PredictionNoise,
    PrivacySpent,
    Refused,
    RoundStarted,
    Scored,
    Waiting,
)
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.metrics import HERE, Meter, MetricsHandler, registry_of, serving
from tests.support.local_pilot import LocalPilot, at_frames, local_pilot, plan_of
from tests.support.raising import raises


@pytest.fixture
def served() -> Iterator[tuple[Meter, int]]:
    meter = Meter()
    with serving(meter, 0) as port:
        assert port is not None
        yield meter, port


def text(meter: Meter) -> str:
    return generate_latest(registry_of(meter)).decode()


def fetch(port: int) -> dict[str, float]:
    """The numbers by name and labels, as a scraper reads them."""
    url = f"http://{HERE}:{port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page = answer.read().decode()
    assert page.endswith("\n")
    rows = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def test_a_run_s_events_become_numbers(tmp_path, served):
    """A run that loses a hospital, waits and goes on: the numbers are those of its events."""
    meter, port = served
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    made.before = at_frames("hospital-1", {7}, LocalPilot.kill)
    noted: list[dict[str, Any]] = []  # by the coordinator; the hospitals' events are none of it

    def record(event: Event) -> None:
        noted.append(event.document())
        meter.note(event)

    recorder = EventLog("coordinator", record)
    lead = RunLeader(made, made.coordinator, made.roster, made.plan, recorder, sleep=made.nap)
    lead.run()

    def seen(kind: str) -> list[dict[str, Any]]:
        return [event for event in noted if event["event"] == kind]

    found = fetch(port)
    assert seen("waiting") and seen("lost")
    assert found["secure_fl_gathered_total"] == len(seen("gathered")) >= 2
    assert found["secure_fl_waiting"] == 0  # it was gathered since
    assert found['secure_fl_lost_total{member="hospital-1"}'] == 1
    assert found["secure_fl_round"] == seen("round_started")[-1]["round"]
    assert found["secure_fl_members"] == 3
    assert found['secure_fl_member_present{member="hospital-1"}'] == 1  # it came back
    for name, bytes_of in lead.traffic().items():
        for way in ("up", "down"):
            label = f'{{direction="{way}",member="{name}"}}'
            assert found[f"secure_fl_bytes_total{label}"] == bytes_of[way] > 0


def test_who_is_lost_is_not_present(served):
    meter, port = served
    meter.note(MembersGathered(members=("north", "south", "east")))
    meter.note(MembersLost(round=2, parties=("south",), code="wire"))
    assert fetch(port)['secure_fl_member_present{member="south"}'] == 0
    meter.note(RoundStarted(round=3, members=("north", "east")))
    found = fetch(port)
    assert found['secure_fl_member_present{member="south"}'] == 0
    assert found['secure_fl_member_present{member="north"}'] == 1
    assert found["secure_fl_members"] == 2
    assert found['secure_fl_refused_total{code="wire"}'] == 1


OWN = (
    Scored(round=1, split="dev", values={"accuracy": 0.625}),
    Scored(round=1, split="dev", values={"accuracy": 0.5}, pooled=True),
    PrivacySpent(
        round=1,
        noise_multiplier=1.0,
        sample_rate=0.5,
        steps=4,
        epsilon=0.75,
        epsilon_planned=1.0,
        delta=1e-5,
    ),
    PredictionNoise(facts={"epsilon": 0.25}),
)


def test_scores_and_privacy_are_a_hospital_s_own():
    """The same events: a hospital's meter shows them, a coordinator's does not."""
    own, coordinator = Meter("north"), Meter()
    for event in OWN:
        own.note(event)
        coordinator.note(event)
    shown = text(own)
    assert 'secure_fl_score{metric="accuracy",split="dev"} 0.625\n' in shown
    assert 'secure_fl_pooled_score{metric="accuracy",split="dev"} 0.5\n' in shown
    assert 'secure_fl_epsilon{of="training"} 0.75\n' in shown
    assert 'secure_fl_epsilon{of="sums"} 0.25\n' in shown
    assert text(coordinator).count("\n") == 3  # seconds since the last event, and nothing else
    for word in ("accuracy", "0.625", "epsilon", "0.75"):
        assert word not in text(coordinator)


def test_a_hospital_shows_its_own_bytes_scores_and_refusals(tmp_path):
    meter = Meter("hospital-2")
    plan = plan_of(FedAvg(rounds=1))
    made = local_pilot(tmp_path, plan, listeners={"hospital-2": meter.note})
    lead = made.lead()
    lead.run()
    with serving(meter, 0) as port:
        assert port is not None
        found = fetch(port)
    rounds = made.plan.algorithm.rounds
    assert found["secure_fl_gathered_total"] == 1
    assert found["secure_fl_round"] >= rounds
    assert any(name.startswith("secure_fl_score{") for name in found)
    moved = lead.traffic()["hospital-2"]
    for way in ("up", "down"):  # those of the run; a coordinator counts the lobby's as well
        assert 0 < found[f'secure_fl_bytes_total{{direction="{way}"}}'] <= moved[way]
    assert not any("hospital-1" in name for name in found)
    meter.note(Refused(code="policy", why="records of ward 7"))
    assert 'secure_fl_refused_total{code="policy"} 1.0\n' in text(meter)
    assert "ward" not in text(meter)


def test_seconds_since_the_last_event():
    now = 100.0
    meter = Meter(clock=lambda: now)
    now = 130.0
    assert "secure_fl_seconds_since_last_event 30.0\n" in text(meter)
    meter.note(Waiting(parties=("east",), code="cohort"))
    now = 131.5
    assert "secure_fl_seconds_since_last_event 1.5\n" in text(meter)


def test_what_changes_without_an_event_is_asked_for(served):
    meter, port = served
    meter.connected = lambda: {"north": True, "south": False}
    meter.dropped = lambda: {"stranger": 4}
    found = fetch(port)
    assert found['secure_fl_connected{member="north"}'] == 1
    assert found['secure_fl_connected{member="south"}'] == 0
    assert found['secure_fl_dropped_messages_total{reason="stranger"}'] == 4


def status_of(port: int, method: str, path: str, host: str | None = None) -> int:
    connection = http.client.HTTPConnection(HERE, port, timeout=5)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        assert b"secure_fl_" not in answer.read() or answer.status == 200
        return answer.status
    finally:
        connection.close()


def test_there_is_one_page_and_it_is_only_read(served):
    _, port = served
    assert status_of(port, "GET", "/metrics") == 200
    assert status_of(port, "GET", "/metrics", f"localhost:{port}") == 200
    for path in ("/", "/metrics/", "/metrics?x=1", "/../metrics", "/keys"):
        assert status_of(port, "GET", path) == 404
    for method in ("POST", "PUT", "HEAD", "DELETE", "OPTIONS", "TRACE", "SECRET"):
        assert status_of(port, method, "/metrics") == 404
    # A web page whose name was made to lead to this machine must not read it through a browser.
    for host in ("evil.example", f"evil.example:{port}", "", "localhost.evil.example"):
        assert status_of(port, "GET", "/metrics", host) == 404
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{HERE}:{port}/", timeout=5)


def sent(port: int, data: bytes) -> bytes:
    """Whatever comes back before the other end closes."""
    with socket.create_connection((HERE, port), timeout=5) as line:
        try:
            line.sendall(data)
            return b"".join(iter(lambda: line.recv(4096), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_a_request_is_bounded_and_nonsense_hurts_nobody(served):
    _, port = served
    request = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n%s\r\n"
    assert b"200 OK" in sent(port, request % b"X: y\r\n")
    assert b"200" not in sent(port, request % (b"X: " + b"y" * (1 << 16) + b"\r\n"))
    assert b"200" not in sent(port, b"x" * (1 << 20))
    for nonsense in (
        b"\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9\r\n\r\n",
    ):
        assert b"200 OK" not in sent(port, nonsense)
    assert fetch(port)["secure_fl_seconds_since_last_event"] >= 0


def test_who_is_slow_is_sent_away_and_holds_up_no_run(served, monkeypatch):
    meter, port = served
    monkeypatch.setattr(MetricsHandler, "timeout", 1.0)
    with socket.create_connection((HERE, port), timeout=5) as slow:
        slow.sendall(b"GET /met")
        began = time.monotonic()
        for number in range(2000):
            meter.note(RoundStarted(round=number, members=("north",)))
        assert time.monotonic() - began < 0.9  # events do not wait for the request
        assert fetch(port)["secure_fl_round"] == 1999  # nor does who asks meanwhile
        assert slow.recv(1) == b""
    assert fetch(port)["secure_fl_round"] == 1999


def test_it_listens_on_this_machine_only_and_ends_with_the_run():
    with serving(Meter(), 0) as port:
        assert port is not None
        (thread,) = (t for t in threading.enumerate() if t.name == "metrics")
        assert thread.daemon
        with raises(RunError, port, reason="unusable-address"), serving(Meter(), port):
            pass
        with pytest.raises(OSError, match="refused"):  # loopback, by another address
            socket.create_connection(("127.0.0.2", port), timeout=2)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HERE, port), timeout=2)


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "secure_fl.pilot.metrics")
    with raises(RunError, reason="missing-extra") as caught, serving(Meter(), 0):
        pass
    assert ".[metrics]" in caught.value.fix
    with serving(Meter(), None) as port:  # nor is it needed where nothing is shown
        assert port is None


def test_nothing_of_the_process_or_the_machine_is_shown():
    names = [line.removeprefix("# HELP ") for line in text(Meter()).splitlines()]
    assert names and all(n.startswith(("secure_fl_", "# TYPE secure_fl_")) for n in names)
