"""A courier between a connection and a folder, which may be killed at any moment."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from secure_fl.crypto.keys.vault import Cost
from secure_fl.engines.flare.cell import MAX_BYTES, Dialled
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.transport_message import TransportMessage
from secure_fl.features.air_gap.courier import Courier
from secure_fl.features.air_gap.file_message import Endpoint, message_key
from secure_fl.features.air_gap.folder_end import FolderEnd, PostedMessage
from secure_fl.features.air_gap.folder_party import FolderParty
from secure_fl.pilot.certificates import Kits, make_kits
from secure_fl.pilot.kits import load_kit
from secure_fl.protocol.frames import Frame
from tests.cli.test_status import status
from tests.features.air_gap.folders import killed
from tests.support.hubs import echo, free_url
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import make_pilot_folders

PATIENCE = 1.0  # seconds of silence of a killed end, for these tests
Step = Callable[[Frame], Frame]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits"), ["east"])


class Site:
    """A hospital in two halves, each of which can be started again."""

    def __init__(self, kits: Kits, folder: Path) -> None:
        self.tls, self.folder, self.url = kits.sites["east"], folder, free_url()
        self.key, self.stack = message_key(self.tls), ExitStack()
        self.threads: list[threading.Thread] = []

    def courier(self) -> Courier:
        dial = partial(Dialled, "east", self.url, self.tls, "coordinator", MAX_BYTES)
        made = Courier(self.folder, self.key, dial, patience=PATIENCE)
        self._serve(made.serve, made.stop)
        return made

    def trainer(self, step: Step = echo) -> FolderParty:
        made = FolderParty(self.folder, self.key, patience=PATIENCE)
        self._serve(partial(made.serve, step), made.stop)
        self.stack.callback(made.close)
        return made

    def _serve(self, serve: Callable[[], None], stop: Callable[[], None]) -> None:
        thread = threading.Thread(target=serve)
        thread.start()
        self.threads.append(thread)
        self.stack.callback(thread.join, 20)
        self.stack.callback(stop)


@pytest.fixture
def site(kits: Kits, tmp_path: Path) -> Iterator[Site]:
    made = Site(kits, tmp_path / "folder")
    with made.stack:
        yield made


@pytest.fixture
def hub(kits: Kits, site: Site) -> Iterator[FlareHub]:
    with FlareHub(site.url, kits.coordinator, ["east"], grace=20, patience=0.5) as made:
        yield made


def test_frames_go_there_and_back(hub: FlareHub, site: Site) -> None:
    site.courier()
    site.trainer()
    assert not hub.wait_for(["east"], 20)
    for frame in (Frame(b"one", b"bulk"), Frame(b"two", os.urandom(3_000_000))):
        assert dict(hub.exchange({"east": frame}, 60)) == {"east": echo(frame)}
    assert hub.refused() == {}


def test_a_courier_is_connected_while_its_trainer_is_alive(hub: FlareHub, site: Site) -> None:
    courier = site.courier()
    assert hub.wait_for(["east"], 1.0) == {"east"}  # a courier alone is no hospital
    trainer = site.trainer()
    assert not hub.wait_for(["east"], 20)
    trainer.close()
    until = time.monotonic() + 20
    while hub.connected() or courier.is_connected():
        assert time.monotonic() < until
        time.sleep(0.01)
    site.trainer()
    assert not hub.wait_for(["east"], 20)


@pytest.mark.parametrize("where", ["before the step", "in the step", "after the step"])
def test_a_courier_that_is_killed_costs_nothing(
    hub: FlareHub, site: Site, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is done once, and the coordinator gets the answer that was made then."""
    couriers, calls = [site.courier()], list[bytes]()

    def die() -> None:
        killed(couriers[-1].end)
        couriers[-1].stop()
        couriers.append(site.courier())

    def step(frame: Frame) -> Frame:
        calls.append(frame.head)
        if where == "in the step" and len(calls) == 2:
            die()
        return Frame(os.urandom(8), frame.bulk)

    trainer = site.trainer(step)
    assert not hub.wait_for(["east"], 20)
    dict(hub.exchange({"east": Frame(b"one")}, 30))
    if where == "before the step":
        die()
    answers = hub.exchange({"east": Frame(b"two", b"bulk")}, 60)
    if where == "after the step":
        first, send = couriers[0].end, couriers[0].end.send

        def last(message: TransportMessage) -> PostedMessage:
            """Let the step through, and never see the answer."""
            posted = send(message)
            killed(first)
            return posted

        monkeypatch.setattr(first, "send", last)
        threading.Timer(1.0, die).start()
    ((name, answer),) = answers
    assert name == "east" and answer.bulk == b"bulk"
    assert calls == [b"one", b"two"] and trainer.refused is None
    assert dict(hub.exchange({"east": Frame(b"three")}, 60)).keys() == {"east"}


def test_a_trainer_that_is_killed_is_asked_again(hub: FlareHub, site: Site) -> None:
    """The next process does not know the step, and gets it."""
    site.courier()
    stuck, release = threading.Event(), threading.Event()

    def never(frame: Frame) -> Frame:
        stuck.set()
        release.wait(30)
        return Frame(b"too late")

    first = site.trainer(never)
    answers = hub.exchange({"east": Frame(b"one")}, 60)

    def succeed() -> None:
        stuck.wait(30)
        killed(first.end)
        site.trainer()

    threading.Thread(target=succeed).start()
    assert list(answers) == [("east", Frame(b"re:one"))]
    release.set()


def test_the_coordinators_last_message_ends_both(hub: FlareHub, site: Site) -> None:
    site.courier()
    site.trainer()
    assert not hub.wait_for(["east"], 20)
    hub.dismiss()
    for thread in site.threads:
        thread.join(20)
        assert not thread.is_alive()


# --- `secure-fl status` shows both ends of a courier's folder -----------------------------------


def test_of_a_courier_and_its_trainer(tmp_path: Path) -> None:
    cheap = Cost(log_n=10)
    names = ("east", "north", "west")
    trial = make_pilot_folders(tmp_path / "made", names, plan_of(), port=8443, size=8, cost=cheap)
    north = trial.of("north")
    key = message_key(load_kit(north / "kit").tls)
    end = FolderEnd(north / "letters", Endpoint.COURIER, key, lambda message: None)
    try:
        told = status(north, "letters").output
    finally:
        end.close()
    assert "unconnected" in told and "waits for a trainer" in told
    assert "waits for a courier since 2" in status(north, "letters").output
    (courier, trainer) = json.loads(status(north, "letters", "--json").output)
    assert (courier["state"], trainer["state"], trainer["at"]) == ("left", "nobody", None)
    other = status(north, "letters", "--kit", str(trial.of("west") / "kit"))
    assert other.exit_code == 6  # another site wrote the heartbeats
