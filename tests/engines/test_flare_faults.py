"""What machines and networks do, over FLARE: kills, restarts, cuts, loss, doubling, silence.

Parties and coordinators that are killed are processes of their own: this file, run as a program.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer

from secure_fl.engines.flare.cell import CellEnd, FlareParty
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.engines.transport_message import MessageKind, TransportMessage
from secure_fl.pilot.certificates import Kits, make_kits
from secure_fl.protocol.frames import Frame
from tests.support.hubs import echo, federation, free_url, parties
from tests.support.processes import killed_after

SITES = ("east", "north")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kits")


@pytest.fixture(scope="module")
def kits(folder: Path) -> Kits:
    return make_kits(folder, SITES)


def party_program(folder: str, url: str, name: str) -> None:
    """A party that says what it does, and takes for ever over what it is told to."""

    def step(frame: Frame) -> Frame:
        print(frame.head.decode(), flush=True)
        if frame.head.endswith(b"for ever") and not Path(folder, "awake").exists():
            time.sleep(600)
        return Frame(b"%d" % os.getpid(), frame.bulk)

    with FlareParty(name, url, TlsFiles.of_site(Path(folder, f"{name}.site"))) as party:
        party.serve(step)


def hub_program(folder: str, url: str, count: str) -> None:
    """A coordinator that asks the same of all, again and again, and prints the answers."""
    tls = TlsFiles.of_coordinator(Path(folder, "coordinator.kit"))
    with FlareHub(url, tls, SITES) as hub:
        for number in range(int(count)):
            frames = dict.fromkeys(SITES, Frame(b"%d" % number))
            for name, answer in sorted(dict(hub.exchange(frames, 30)).items()):
                print(name, answer.head.decode(), flush=True)


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.engines.test_flare_faults", *arguments]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    with killed_after({"it": running}):
        yield running


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


class Exchange(threading.Thread):
    """An exchange under way."""

    def __init__(self, hub: FlareHub, frames: dict[str, Frame], deadline: float) -> None:
        super().__init__()
        self.answers: dict[str, Frame] = {}
        self._rest = (hub, frames, deadline)
        self.start()

    def run(self) -> None:
        hub, frames, deadline = self._rest
        self.answers = dict(hub.exchange(frames, deadline))


def test_a_party_killed_in_a_round_and_restarted_answers(kits: Kits, folder: Path) -> None:
    url, done = free_url(), Counter[bytes]()

    def counting(frame: Frame) -> Frame:
        done[frame.head] += 1
        return echo(frame)

    with FlareHub(url, kits.coordinator, SITES, grace=20) as hub:
        with parties(kits, url, {"north": counting}):
            with process("party", str(folder), url, "east") as east:
                assert not hub.wait_for(SITES, 20)
                exchange = Exchange(hub, dict.fromkeys(SITES, Frame(b"takes for ever")), 40)
                assert line(east) == "takes for ever"
                east.kill()
            (folder / "awake").touch()
            with process("party", str(folder), url, "east") as again:
                exchange.join(30)
                assert exchange.answers == {
                    "north": Frame(b"re:takes for ever"),
                    "east": Frame(b"%d" % again.pid),
                }
            assert done == {b"takes for ever": 1}
            hub._grace = 0.5
            began = time.monotonic()
            assert set(dict(hub.exchange(dict.fromkeys(SITES, Frame(b"next")), 30))) == {"north"}
            assert time.monotonic() - began < 15  # not the deadline of 30


def test_a_party_that_stands_still_goes_on_later(kits: Kits, folder: Path) -> None:
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east"]) as hub:
        with process("party", str(folder), url, "east") as east:
            assert not hub.wait_for(["east"], 20)
            os.kill(east.pid, signal.SIGSTOP)
            bulk = os.urandom(30_000_000)  # more than waits on the way
            assert dict(hub.exchange({"east": Frame(b"one", bulk)}, 1.0)) == {}
            os.kill(east.pid, signal.SIGCONT)
            answers = dict(hub.exchange({"east": Frame(b"two")}, 30))
            assert answers == {"east": Frame(b"%d" % east.pid)}
            os.kill(east.pid, signal.SIGSTOP)
            assert dict(hub.exchange({"east": Frame(b"three", bulk)}, 0.5)) == {}
            assert ByteStreamer.tx_task_map
            hub.close()
            assert not ByteStreamer.tx_task_map  # nothing is left that would delay the end


def test_a_coordinator_that_restarts_finds_the_same_parties(kits: Kits, folder: Path) -> None:
    url, counts = free_url(), Counter[str]()
    asked = threading.Barrier(len(SITES) + 1)  # the kill comes once every party has the frame

    def counting(name: str) -> Callable[[Frame], Frame]:
        def step(frame: Frame) -> Frame:
            counts[name] += 1  # an object that lives as long as the party
            if counts[name] == 3:
                asked.wait(20)
                time.sleep(0.5)
            return Frame(b"%d" % counts[name])

        return step

    with parties(kits, url, {name: counting(name) for name in SITES}):
        with process("hub", str(folder), url, "100") as hub:
            assert [line(hub) for _ in range(4)] == ["east 1", "north 1", "east 2", "north 2"]
            asked.wait(20)
            hub.kill()
        with process("hub", str(folder), url, "2") as hub:
            found = [line(hub) for _ in range(4)]
    assert found == ["east 4", "north 4", "east 5", "north 5"]


def test_a_party_that_comes_back_at_once_is_known(kits: Kits) -> None:
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east"]) as hub:
        for number in range(5):
            with parties(kits, url, {"east": echo}) as found:
                while not found["east"].is_connected():
                    time.sleep(0.01)
                answers = dict(hub.exchange({"east": Frame(b"%d" % number)}, 10))
                assert answers == {"east": Frame(b"re:%d" % number)}


class Proxy:
    """Stands between, and cuts or silences connections."""

    def __init__(self, url: str, cuts: dict[str, list[int]]) -> None:
        host, port = url.removeprefix("grpc://").split(":")
        self.target, self.cuts, self.silent = (host, int(port)), cuts, False
        self.carried = Counter[str]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self.target)
                except OSError:
                    near.close()
                    continue
                for way, source, sink in (("up", near, far), ("down", far, near)):
                    limit = self.cuts[way].pop(0) if self.cuts.get(way) else 0
                    arguments = (way, source, sink, limit)
                    threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, way: str, source: socket.socket, sink: socket.socket, limit: int) -> None:
        carried = 0
        with suppress(OSError):
            while piece := source.recv(65536):
                carried += len(piece)
                self.carried[way] += len(piece)
                if limit and carried > limit:
                    break
                if not self.silent:
                    sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_connection_cut_in_the_middle_of_a_frame_is_made_up_for(kits: Kits, way: str) -> None:
    """`down`: while the party gets its frame; `up`: while it sends its answer."""
    done, bulk, url = Counter[bytes](), os.urandom(40_000_000), free_url()

    def step(frame: Frame) -> Frame:
        done[frame.head] += 1
        return Frame(b"re", bulk) if way == "up" else echo(Frame(frame.head))

    with FlareHub(url, kits.coordinator, ["east"], grace=20) as hub:
        proxy = Proxy(url, {way: [3_000_000]})
        with parties(kits, proxy.url, {"east": step}):
            assert not hub.wait_for(["east"], 10)
            sent = Frame(b"one") if way == "up" else Frame(b"one", bulk)
            answers = dict(hub.exchange({"east": sent}, 60))
        proxy.close()
    assert answers == {"east": Frame(b"re", bulk) if way == "up" else Frame(b"re:one")}
    assert done == {b"one": 1}
    assert 42_000_000 < proxy.carried[way] < 90_000_000  # once in part, and once


def test_loss_copies_and_delay_change_nothing(kits: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, done = random.Random(3), Counter[tuple[str, bytes]]()
    happened, send = Counter[str](), CellEnd.send

    def unreliable(end: CellEnd, peer: str, parcel: TransportMessage) -> Any:
        fate = dice.choice(("lost", "doubled", "late", "sent", "sent", "sent"))
        happened[fate] += 1
        if fate == "lost":
            return send(
                end,
                peer,
                TransportMessage(MessageKind.ASK, parcel.step._replace(life=b"nobody's" * 2)),
            )
        if fate == "doubled":
            send(end, peer, parcel)
        if fate == "late":
            threading.Timer(0.15, send, (end, peer, parcel)).start()
        return send(end, peer, parcel)

    def step(name: str) -> Callable[[Frame], Frame]:
        def counting(frame: Frame) -> Frame:
            done[name, frame.head] += 1
            return Frame(name.encode() + frame.head)

        return counting

    with federation(kits, {name: step(name) for name in SITES}, patience=0.1) as hub:
        monkeypatch.setattr(CellEnd, "send", unreliable)
        for number in range(12):
            head = b"%d" % number
            answers = dict(hub.exchange(dict.fromkeys(SITES, Frame(head)), 30))
            assert answers == {name: Frame(name.encode() + head) for name in SITES}
    assert done == {(name, b"%d" % number): 1 for name in SITES for number in range(12)}
    assert min(happened[fate] for fate in ("lost", "doubled", "late")) > 3


@pytest.mark.slow
def test_a_line_that_swallows_everything_is_noticed_and_replaced(kits: Kits) -> None:
    url = free_url()
    with FlareHub(url, kits.coordinator, ["east"], grace=30) as hub:
        proxy = Proxy(url, {})
        with parties(kits, proxy.url, {"east": echo}):
            assert not hub.wait_for(["east"], 10)
            proxy.silent = True
            exchange = Exchange(hub, {"east": Frame(b"one")}, 90)
            began = time.monotonic()
            while hub.connected() and time.monotonic() - began < 60:
                time.sleep(0.1)
            noticed = time.monotonic() - began
            proxy.silent = False
            exchange.join(60)
        proxy.close()
    assert exchange.answers == {"east": Frame(b"re:one")}
    assert noticed < 40


if __name__ == "__main__":
    {"party": party_program, "hub": hub_program}[sys.argv[1]](*sys.argv[2:])
