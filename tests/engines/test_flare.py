"""FLARE as engine: what the in-process engine does, it does between processes, over mutual TLS."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)

from secure_fl.engines.flare import cell
from secure_fl.engines.flare.cell import ACK_EVERY, HUB, SETTINGS, CellEnd, FlareParty, cell_name
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.transport_message import MessageKind, StepId, TransportMessage
from secure_fl.errors import RunError, SettingsError, WireError
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.pilot.certificates import Kits, make_kits
from secure_fl.protocol.frames import Frame
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, Program, federate, require_carries
from tests.support.hubs import SITES, echo, federation, free_url, parties
from tests.support.raising import raises


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits"), SITES)


def values_of(name: str) -> dict[str, Any]:
    rng = np.random.default_rng(sum(name.encode()))
    return {"a": rng.normal(size=(100, 3)).astype(np.float32), "count": float(len(name))}


def twice_summing(name: str) -> Program:
    async def program(cohort: Cohort) -> Any:
        first = await cohort.sum(values_of(name))
        return first, await cohort.sum({"b": values_of(name)["a"][:5]})

    return program


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_a_sum_is_the_same_bit_for_bit_as_in_one_process(kits: Kits, mode: Protection) -> None:
    def sums(**options: Any) -> Federated:
        return federate(
            {n: twice_summing(n) for n in SITES[:3]}, mode=mode, run=b"r" * 16, **options
        )

    with ExitStack() as stack:

        def over_flare(sessions: Mapping[str, Session]) -> FlareHub:
            steps = {name: session.step for name, session in sessions.items()}
            return stack.enter_context(federation(kits, steps))

        here, there = sums(), sums(engine=over_flare)
    exact = np.sum([values_of(n)["a"].astype(np.float64) for n in SITES[:3]], axis=0)
    for name in SITES[:3]:
        assert all(session.done for session in there.sessions.values())
        for one, other in zip(here.results[name], there.results[name], strict=True):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[key], other[key]) for key in one)
        np.testing.assert_allclose(there.results[name][0]["a"], exact, atol=2e-3)


def test_it_carries_frames_as_every_engine_must(kits: Kits) -> None:
    with ExitStack() as stack:

        def over_flare(sessions: Mapping[str, Session]) -> FlareHub:
            steps = {name: session.step for name, session in sessions.items()}
            return stack.enter_context(federation(kits, steps))

        require_carries(over_flare, "none", parties=SITES[:3], host=SITES[3])


def test_every_party_answers_its_own_frame_whatever_it_is_called(kits: Kits) -> None:
    with federation(kits, dict.fromkeys(SITES, echo)) as hub:
        frames = {name: Frame(name.encode(), bytes(range(200))) for name in SITES}
        assert dict(hub.exchange(frames, 20)) == {name: echo(frames[name]) for name in SITES}
        some = {name: frames[name] for name in SITES[1:3]}
        assert set(dict(hub.exchange(some, 20))) == set(some)
        assert hub.refused() == {}


def test_frames_of_20_mb_arrive_whole(kits: Kits) -> None:
    with federation(kits, dict.fromkeys(SITES[:2], echo)) as hub:
        bulk = os.urandom(20_000_000)
        answers = dict(hub.exchange({n: Frame(b"large", bulk) for n in SITES[:2]}, 60))
    assert answers == dict.fromkeys(SITES[:2], Frame(b"re:large", bulk[::-1]))


def test_a_frame_beyond_the_limit_is_refused_and_the_next_one_is_not(kits: Kits) -> None:
    steps = {"east": lambda frame: Frame(b"re", b"x" * int(frame.head))}
    with federation(kits, steps, max_bytes=100_000) as hub:
        assert dict(hub.exchange({"east": Frame(b"100001")}, 1)) == {}
        assert hub.refused() == {"size": 1}
        assert dict(hub.exchange({"east": Frame(b"99900")}, 20)) == {
            "east": Frame(b"re", b"x" * 99_900)
        }


def test_a_stalled_party_is_not_yielded_and_its_late_answer_is_nobodys(kits: Kits) -> None:
    release = threading.Event()

    def stalling(frame: Frame) -> Frame:
        if frame.head == b"one":
            release.wait(20)
        return echo(frame)

    with federation(kits, {"east": stalling, "north": echo}) as hub:
        began = time.monotonic()
        assert set(dict(hub.exchange(dict.fromkeys(SITES[:2], Frame(b"one")), 1.0))) == {"north"}
        assert 1.0 <= time.monotonic() - began < 10  # it stalls for 20
        answers = hub.exchange(dict.fromkeys(SITES[:2], Frame(b"two")), 20)
        assert next(answers) == ("north", Frame(b"re:two"))
        release.set()
        assert list(answers) == [("east", Frame(b"re:two"))]


def test_a_party_that_never_comes_is_lost_after_the_grace(kits: Kits) -> None:
    with FlareHub(free_url(), kits.coordinator, ["east"], grace=0.5) as hub:
        began = time.monotonic()
        assert hub.wait_for(["east"], 0.2) == {"east"}
        assert list(hub.exchange({"east": Frame(b"one")}, 30)) == []
        assert 0.7 <= time.monotonic() - began < 15  # not the deadline of 30


class Inbox:
    """The coordinator's end, by hand: sends any parcel, and keeps what comes back."""

    def __init__(self, kits: Kits, url: str) -> None:
        self.parcels: list[TransportMessage] = []
        self.end = CellEnd(
            HUB, url, kits.coordinator, {"east": "east"}, 2**20, lambda _, p: self.parcels.append(p)
        )

    def wait(self, count: int) -> list[TransportMessage]:
        until = time.monotonic() + 10
        while len(self.parcels) < count and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)  # and no more
        return self.parcels


@pytest.fixture
def by_hand(kits: Kits) -> Iterator[tuple[Inbox, FlareParty, list[bytes]]]:
    url, seen = free_url(), list[bytes]()

    def step(frame: Frame) -> Frame:
        seen.append(frame.head)
        if frame.head == b"bad":
            raise WireError("forged")
        return Frame(b"%d" % len(seen))

    inbox = Inbox(kits, url)
    with parties(kits, url, {"east": step}) as found:
        while not inbox.end.connection("east"):
            time.sleep(0.01)
        yield inbox, found["east"], seen
    inbox.end.close()


def test_old_steps_are_not_done_again(by_hand: tuple[Inbox, FlareParty, list[bytes]]) -> None:
    inbox, _, seen = by_hand
    life = b"l" * 16
    first, second = (
        TransportMessage(MessageKind.STEP, StepId(life, n), Frame(b"%d" % n)) for n in (1, 2)
    )
    inbox.end.send("east", first)
    inbox.wait(1)
    inbox.end.send("east", first)
    inbox.wait(2)
    inbox.end.send("east", TransportMessage(MessageKind.ASK, first.step))
    assert inbox.wait(3) == [TransportMessage(MessageKind.ANSWER, first.step, Frame(b"1"))] * 3
    inbox.end.send("east", second)
    assert inbox.wait(4)[3] == TransportMessage(MessageKind.ANSWER, second.step, Frame(b"2"))
    inbox.end.send("east", first)  # it comes late: forgotten, and not done again
    inbox.end.send("east", TransportMessage(MessageKind.ASK, second.step))
    assert inbox.wait(5)[4] == TransportMessage(MessageKind.ANSWER, second.step, Frame(b"2"))
    assert seen == [b"1", b"2"]
    again = TransportMessage(MessageKind.STEP, StepId(b"m" * 16, 1), Frame(b"new life"))
    inbox.end.send("east", again)
    assert inbox.wait(6)[5] == TransportMessage(MessageKind.ANSWER, again.step, Frame(b"3"))


def test_a_party_survives_a_bad_step(by_hand: tuple[Inbox, FlareParty, list[bytes]]) -> None:
    inbox, party, _ = by_hand
    step = StepId(b"l" * 16, 7)
    inbox.end.send("east", TransportMessage(MessageKind.ASK, step))
    assert inbox.wait(1) == [TransportMessage(MessageKind.RESEND, step)]
    inbox.end.send("east", TransportMessage(MessageKind.STEP, step, Frame(b"bad")))
    while party.refused is None:
        time.sleep(0.01)
    inbox.end.send("east", TransportMessage(MessageKind.ASK, step))
    assert inbox.wait(2)[1] == TransportMessage(MessageKind.RESEND, step)
    inbox.end.send("east", TransportMessage(MessageKind.STEP, step, Frame(b"good")))
    assert inbox.wait(3)[2] == TransportMessage(MessageKind.ANSWER, step, Frame(b"2"))


def test_a_lost_answer_is_asked_for(kits: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    done, lost = Counter[bytes](), list[MessageKind]()

    def step(frame: Frame) -> Frame:
        done[frame.head] += 1
        return echo(frame)

    with federation(kits, {"east": step}, patience=0.3) as hub:
        end, deliver = hub._end, hub._end._deliver

        def losing(cell: str, parcel: TransportMessage) -> None:
            if len(lost) < 2:
                lost.append(parcel.kind)
            else:
                deliver(cell, parcel)

        monkeypatch.setattr(end, "_deliver", losing)
        assert dict(hub.exchange({"east": Frame(b"one")}, 20)) == {"east": Frame(b"re:one")}
    assert lost == [MessageKind.ANSWER, MessageKind.ANSWER]
    assert done == {b"one": 1}


def test_the_parties_are_dismissed_at_the_end_or_leave_when_done(kits: Kits) -> None:
    url = free_url()

    def leave(name: str, **options: Any) -> None:
        with FlareParty(name, url, kits.sites[name]) as party:
            party.serve(echo, **options)

    lingering = {"done": lambda: True, "linger": 0.5}
    threads = [
        threading.Thread(target=leave, args=("east",)),
        threading.Thread(target=leave, args=("north",), kwargs=lingering),
    ]
    with FlareHub(url, kits.coordinator, SITES[:2]) as hub:
        for thread in threads:
            thread.start()
        assert not hub.wait_for(SITES[:2], 10)
        assert set(dict(hub.exchange(dict.fromkeys(SITES[:2], Frame(b"last")), 20))) == {
            "east",
            "north",
        }
        threads[1].join(10)
        assert not threads[1].is_alive()
        assert threads[0].is_alive()
        hub.dismiss()
        threads[0].join(10)
        assert not threads[0].is_alive()


def test_threads_and_memory_stay_bounded_over_many_exchanges(kits: Kits) -> None:
    process, names = psutil.Process(), SITES[:3]
    frames = {name: Frame(b"h" * 100, os.urandom(300_000)) for name in names}
    with federation(kits, dict.fromkeys(names, echo)) as hub:

        def rounds(count: int) -> tuple[int, int]:
            for _ in range(count):
                assert len(dict(hub.exchange(frames, 20))) == len(names)
            return threading.active_count(), process.memory_info().rss

        rounds(50)
        threads, memory = rounds(50)
        more_threads, more_memory = rounds(100)
        assert hub._end.guard._streams == {cell_name(name): {} for name in names}
    # 100 exchanges carry 180 MB; what FLARE keeps of a reply by default is all of it, for 65 s.
    assert more_threads - threads < 20
    assert more_threads < 150
    assert more_memory - memory < 60_000_000
    assert not RxTask.rx_task_map
    assert not ByteStreamer.tx_task_map


def test_a_taken_port_and_a_wrong_address_are_said(kits: Kits) -> None:
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east"]):
        with raises(RunError, reason="unusable-address"):
            FlareHub(url, kits.coordinator, ["east"])
    with raises(SettingsError, "https://127.0.0.1"):
        FlareHub("https://127.0.0.1", kits.coordinator, ["east"])
    with pytest.raises(SettingsError, match="not an address"):
        FlareParty("east", "file:///tmp", kits.sites["east"])


def test_a_coordinator_may_close_as_soon_as_it_is_open(
    kits: Kits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE's server opens its port before it starts, and never ends if it was stopped between."""
    opened = grpc_driver.Server.__init__

    def slowly(*args: Any, **kwargs: Any) -> None:
        opened(*args, **kwargs)
        time.sleep(1.5)

    monkeypatch.setattr(grpc_driver.Server, "__init__", slowly)
    FlareHub(free_url(), kits.coordinator, ["east"]).close()


def test_flare_reads_no_file(kits: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would load code from a folder that a file anywhere below the current one names."""
    hidden = tmp_path / "data" / "deep"
    hidden.mkdir(parents=True)
    (hidden / "comm_config.json").write_text(json.dumps({"comm_driver_path": str(hidden)}))
    monkeypatch.chdir(tmp_path)
    CommConfigurator.reset()
    assert CommConfigurator().get_comm_driver_path(None) == str(hidden)  # the attack works
    with FlareHub(free_url(), kits.coordinator, ["east"]):
        assert CommConfigurator().get_config() == SETTINGS


# --- beside parcels almost nothing is sent ------------------------------------------------------


TWO = SITES[:2]


class Heard:
    """Messages to the coordinator's cell: their kinds, and the bytes that they acknowledge."""

    def __init__(self, hub: FlareHub) -> None:
        self.data, self.acks = 0, list[int]()
        hub._end._cell.core_cell.add_incoming_filter("*", "*", self._note)

    def _note(self, message: Any) -> None:
        topic = message.get_header(MessageHeaderKey.TOPIC)
        self.data += topic == STREAM_DATA_TOPIC
        if topic == STREAM_ACK_TOPIC:
            self.acks.append(message.get_header(StreamHeaderKey.OFFSET))


def exchanged(kits: Kits, bulk: bytes) -> Heard:
    with federation(kits, dict.fromkeys(TWO, echo)) as hub:
        heard = Heard(hub)
        answers = dict(hub.exchange({name: Frame(b"step", bulk) for name in TWO}, 60))
        assert answers == dict.fromkeys(TWO, Frame(b"re:step", bulk[::-1]))
        until = time.monotonic() + 10
        while len(heard.acks) < len(TWO) and time.monotonic() < until:
            time.sleep(0.02)
        return heard


def test_a_small_exchange_is_one_message_each_way(
    kits: Kits, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = exchanged(kits, b"")
    assert heard.data == len(TWO) and heard.acks == [0] * len(TWO)
    monkeypatch.setattr(cell, "spare_acks", lambda core: None)
    monkeypatch.setattr(cell, "last_word", lambda core, peer: None)
    alone = exchanged(kits, b"")  # FLARE as it is: every step is acknowledged before its answer
    assert alone.data == len(TWO) and len(alone.acks) == len(TWO) and 0 not in alone.acks


def test_a_window_is_still_opened(kits: Kits) -> None:
    heard = exchanged(kits, os.urandom(6 * ACK_EVERY))  # more than the window of 16 MiB
    assert max(heard.acks) >= ACK_EVERY
