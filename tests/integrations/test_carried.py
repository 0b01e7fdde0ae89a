"""A run whose frames another engine carries: services of sites, and a coordinator in its server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import structs
from safetensors.numpy import load_file

from secure_fl.cli.keyring import open_ring
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.vault import Cost
from secure_fl.errors import PartyFailed, SecureFLError, TooFewParties
from secure_fl.features.scripts import joining
from secure_fl.integrations.hub import Folder, MessageHub
from secure_fl.integrations.program import Trained, model_of
from secure_fl.integrations.site_messages import Answer, Reply, Request, Turn
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Begin, Unmask
from tests.support.carried_pilot import (
    FOUR,
    NAMES,
    START,
    CarriedPilot,
    LocalCarrier,
    carried_pilot,
    carried_plan,
    expected,
    moved,
)
from tests.support.lying_coordinator import Change, LyingEngine
from tests.support.raising import raises

ALL = (NAMES,) * 3


class Reader:
    """A server that sends the newest mean, or at first its model."""

    def __init__(self) -> None:
        self.means: dict[int, Mapping[str, Any]] = {}

    def take(self, round: int, mean: Mapping[str, Any]) -> None:
        self.means[round] = mean

    def train(self, name: str, round: int, turn: Turn) -> Trained:
        given = self.means.get(round - 1, START)
        start = model_of(turn, {key: given[key] for key in START})
        weight = FOUR.index(name) + 1
        return Trained(moved(name, round, start), weight, start, {"loss": weight, "other": 1.0})


def led(pilot: CarriedPilot, patience: float = 60, hub: Any = MessageHub, **more: Any) -> Reader:
    folder, reader = Folder(pilot.hub), Reader()
    carrier = LocalCarrier(pilot, **{"train": reader.train, **more})
    folder.lead(hub(carrier, folder.algorithm, reader), patience)
    return reader


def models(pilot: CarriedPilot) -> dict[str, dict[str, Any]]:
    files = {
        name: pilot.trial.of(name) / "runs/run/model.safetensors" for name in pilot.trial.names
    }
    return {name: load_file(file) for name, file in files.items() if file.exists()}


def close(found: Mapping[str, Any], mean: Mapping[str, Any]) -> bool:
    return all(np.abs(found[key] - value).max() < 1e-3 for key, value in mean.items())


@pytest.mark.parametrize("opened", [False, True])
def test_a_carried_run_gives_the_mean_of_the_sites(tmp_path: Path, opened: bool) -> None:
    with carried_pilot(tmp_path, carried_plan(opened=opened)) as pilot:
        reader = led(pilot)
        assert pilot.ended(), pilot.errors
    assert models(pilot).keys() == set(NAMES)
    for found in models(pilot).values():
        assert found.keys() == START.keys() and close(found, expected(*ALL))
    assert set(reader.means) == ({1, 2, 3} if opened else set())
    for mean in reader.means.values():
        assert mean.keys() == {"0", "1", "loss"}  # no metric that the plan does not name


class KilledError(Exception):
    """The server's process ends."""


@pytest.mark.parametrize("at", [4, 13, 19, 25])
@pytest.mark.parametrize("opened", [False, True])
def test_a_killed_server_continues(tmp_path: Path, at: int, opened: bool) -> None:
    replies = list[str]()

    def alter(name: str, request: Request, reply: Reply) -> Reply:
        replies.append(name)
        if len(replies) == at:
            raise KilledError
        return reply

    with carried_pilot(tmp_path, carried_plan(opened=opened)) as pilot:
        with pytest.raises(KilledError):
            led(pilot, alter=alter)
        led(pilot)
        assert pilot.ended(), pilot.errors
    assert all(close(found, expected(*ALL)) for found in models(pilot).values())


def test_a_killed_site_continues_from_its_disk(tmp_path: Path) -> None:
    """It is killed while it trains; the others wait for it, because three are the fewest."""
    reader, killed = Reader(), list[str]()
    with carried_pilot(tmp_path, carried_plan(), processes=["west"]) as pilot:

        def train(name: str, round: int, turn: Turn) -> Trained:
            if name == "west" and round == 2 and not killed:
                killed.append(name)
                pilot.kill(name)
                pilot.start(name)
            return reader.train(name, round, turn)

        led(pilot, train=train)
        assert pilot.ended(), (pilot.errors, pilot.log("west"))
    assert killed and models(pilot).keys() == set(NAMES)
    assert all(close(found, expected(*ALL)) for found in models(pilot).values())


def test_the_others_continue_without_a_site_that_never_answers(tmp_path: Path) -> None:
    reader = Reader()

    def alter(name: str, request: Request, reply: Reply) -> Reply | None:
        return None if name == "young" and rounds(pilot) >= 2 else reply

    with carried_pilot(tmp_path, carried_plan(), FOUR) as pilot:
        led(pilot, train=reader.train, alter=alter)
        found = models(pilot)
    assert found.keys() == set(NAMES)
    assert all(close(one, expected(FOUR, NAMES, NAMES)) for one in found.values())


def test_nan_at_all_sites_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader, spoilt = Reader(), {"young"}

    def train(name: str, round: int, turn: Turn) -> Trained:
        made = reader.train(name, round, turn)
        if name in spoilt and round == 2:
            made.arrays["0"][:] = np.nan
        return made

    with carried_pilot(tmp_path / "one", carried_plan(), FOUR) as pilot:
        led(pilot, train=train)
        assert "party young: 0 holds NaN or infinity; nothing was sent" in capsys.readouterr().err
        found = models(pilot)
    assert all(close(found[name], expected(FOUR, NAMES, NAMES)) for name in NAMES)
    spoilt |= set(FOUR)
    with carried_pilot(tmp_path / "all", carried_plan()) as pilot:
        with raises(PartyFailed, "training failed at all 3 sites (training)"):
            led(pilot, train=train)
        assert not models(pilot)


def test_another_shape_at_one_site_is_refused_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NumPy cannot subtract the base from it, and its error ended the service."""
    reader = Reader()

    def train(name: str, round: int, turn: Turn) -> Trained:
        made = reader.train(name, round, turn)
        if name == "young" and round == 2:
            return made._replace(arrays={**made.arrays, "1": np.ones(3, np.float32)})
        return made

    with carried_pilot(tmp_path, carried_plan(), FOUR) as pilot:
        led(pilot, train=train)
        assert "the base of 1 has the shape [2]" in capsys.readouterr().err
        assert "young" not in pilot.errors
        found = models(pilot)
    assert all(close(found[name], expected(FOUR, NAMES, NAMES)) for name in NAMES)


def test_weights_that_add_up_to_0_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sum is opened already, so no site can give other values in this round."""
    monkeypatch.setattr(joining, "GRACE", 1.0)
    reader = Reader()

    def train(name: str, round: int, turn: Turn) -> Trained:
        return reader.train(name, round, turn)._replace(weight=0.0)

    with carried_pilot(tmp_path, carried_plan()) as pilot:
        with pytest.raises(SecureFLError):
            led(pilot, train=train, patience=3)
        assert not pilot.ended()
    assert all("weights of all sites add up to 0" in str(e) for e in pilot.errors.values())


def test_values_of_an_old_training_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their start is the base of the mean, so the site's model would differ from all others'."""
    reader = Reader()

    def train(name: str, round: int, turn: Turn) -> Trained:
        made = reader.train(name, round, turn)
        return made._replace(start=START) if name == "young" and round == 2 else made

    with carried_pilot(tmp_path, carried_plan(), FOUR) as pilot:
        led(pilot, train=train)
        assert "started from another model than the last mean" in capsys.readouterr().err
        found = models(pilot)
    assert found.keys() >= set(NAMES)
    assert all(close(one, expected(FOUR, NAMES, NAMES)) for one in found.values())


def test_a_replayed_answer_does_not_count(tmp_path: Path) -> None:
    first: dict[str, Reply] = {}

    def alter(name: str, request: Request, reply: Reply) -> Reply:
        if name == "young" and isinstance(reply, Answer) and rounds(pilot) >= 1:
            return first.setdefault(name, reply)
        return reply

    with carried_pilot(tmp_path, carried_plan(), FOUR) as pilot:
        led(pilot, alter=alter)
        found = models(pilot)
    assert found.keys() == set(NAMES)
    assert all(close(one, expected(*ALL)) for one in found.values())


def rounds(pilot: CarriedPilot) -> int:
    """The newest round that began, by the coordinator's events."""
    file = pilot.hub / "run" / "events.jsonl"
    begun = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return max((one["round"] for one in begun if one["event"] == "round_started"), default=0)


class LyingHub(MessageHub):
    """A server that changes the coordinator's messages, under the coordinator's own signature."""

    def __init__(self, carrier: LocalCarrier, *rest: Any, change: Change) -> None:
        super().__init__(carrier, *rest)
        hub = carrier.pilot.hub
        me = open_ring(hub / "keys", hub / "passphrase").identity()
        links = dict.fromkeys(NAMES, SimpleNamespace(me=me))
        self._lying = LyingEngine(SimpleNamespace(exchange=super().exchange), links, change)  # type: ignore[arg-type]

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        return self._lying.exchange(frames, deadline)


def alone(to: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
    """Only the first site is left, says the server, so that its sum is its values."""
    if isinstance(message, Unmask):
        message = structs.replace(message, survivors=NAMES[:1], dropped=NAMES[1:])
    return message, bulk


def own_keys(to: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
    """The keys of the others are the server's own."""
    if isinstance(message, Begin):
        own = X25519PrivateKey.generate().public_key().public_bytes_raw()
        offers = {n: structs.replace(one, public=own) for n, one in message.offers.items()}
        message = structs.replace(message, offers=offers)
    return message, bulk


@pytest.mark.parametrize("change", [alone, own_keys])
def test_a_lying_server_ends_the_run_and_opens_nothing(tmp_path: Path, change: Change) -> None:
    with carried_pilot(tmp_path, carried_plan(opened=True)) as pilot:
        with pytest.raises(SecureFLError) as caught:
            led(pilot, patience=3, hub=partial(LyingHub, change=change))
        assert caught.value.fix and not models(pilot)
        assert not list(tmp_path.rglob("opened/*/*.jsonl"))


def test_a_coordinator_that_is_not_on_the_roster_gets_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secure_fl.pilot.kits.require_coordinator", lambda *_: None)  # it lies
    with carried_pilot(tmp_path, carried_plan()) as pilot:
        shutil.rmtree(pilot.hub / "keys")
        passphrase = (pilot.hub / "passphrase").read_text()
        KeyRing(pilot.hub / "keys", passphrase, Cost(log_n=10)).create(Identity.generate("hub"))
        with raises(TooFewParties, "0 parties accepted"):
            led(pilot, patience=3)
        assert not list(tmp_path.glob("*/runs/run"))  # no site began a run
