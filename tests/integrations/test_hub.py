"""The coordinator's hub over an engine: sites whose unsigned statements are wrong or late."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from secure_fl.crypto.keys.identity import Identity
from secure_fl.errors import CohortError, Disagreement
from secure_fl.features.scripts.algorithm import Script
from secure_fl.features.scripts.cohort import digest
from secure_fl.integrations import site_names
from secure_fl.integrations.hub import MessageHub
from secure_fl.integrations.site_messages import (
    Answer,
    Ask,
    Mean,
    Reply,
    Request,
    SiteName,
    Turn,
    Who,
    vectors,
)
from secure_fl.integrations.site_names import Node
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame, Link
from tests.support.raising import raises

SITES = "abc"
KEYS = {name: Identity.generate(name) for name in SITES}
MEAN = {"w": np.ones(1, np.float32)}
ROUNDS = 3
WAITS = 5.0


class ScriptedEngine:
    """An engine whose sites wait for values; a subclass changes what one site states."""

    def __init__(self, *, opened: bool, newest: int = 0) -> None:
        self.opened, self.newest = opened, newest
        self.trained: list[tuple[str, int]] = []
        self.means: list[int] = []  # taken by the server
        script = Script(rounds=ROUNDS, values={"w": (1,)}, means_to_coordinator=opened)
        self.hub = MessageHub(self, script, self)
        self._me, self._keys = Identity.generate("server"), dict(KEYS)
        self._links = {
            name: Link(bytes(16), self._me, key.public, asks=True)
            for name, key in self._keys.items()
        }
        self.hub.cards = {name: key.public for name, key in self._keys.items()}
        assert self.hub.connected() == set(SITES)

    def answered(self, message: Any = None, round: int = 1) -> list[str]:
        """Exchange one message, and return the sites that answered."""
        frames = dict[str, Frame]()
        for name, link in self._links.items():
            link.round = round
            frames[name] = link.pack(messages.Agreed({}) if message is None else message)
        return [name for name, _ in self.hub.exchange(frames, WAITS)]

    def nodes(self) -> list[Node]:
        return list(range(len(SITES)))

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        for node, request in requests.items():
            name = SITES[int(node)]
            if isinstance(request, Who):
                yield node, SiteName(name)
            elif round:
                self.trained.append((name, round))
                yield node, Answer(b"values")
            else:
                assert isinstance(request, Ask)
                yield node, self.signed(name, self.turn(name, with_mean=request.mean), request)

    def signed(self, name: str, reply: Reply, ask: Ask) -> Reply:
        """Sign the mean of a reply with a site's key."""
        if not isinstance(reply, Turn) or reply.mean is None:
            return reply
        signature = self._keys[name].sign(reply.mean.statement(ask.head))
        return replace(reply, mean=replace(reply.mean, signature=signature))

    def turn(self, name: str, *, with_mean: bool) -> Reply:
        """Return a site's statement that values are due."""
        done = self.newest
        values = vectors(MEAN) if with_mean else {}
        mean = Mean(done, digest(MEAN), values) if self.opened and done else None
        return Turn(done + 1, mean=mean)

    def take(self, round: int, mean: Mapping[str, Any]) -> None:
        self.means.append(round)


class AnotherRound(ScriptedEngine):
    """Site c states a round that nobody began."""

    states = 10**9

    def turn(self, name: str, *, with_mean: bool) -> Reply:
        return Turn(self.states) if name == "c" else super().turn(name, with_mean=with_mean)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("newest", [0, 1])
@pytest.mark.parametrize("states", [10**9, 3])
def test_the_round_that_one_site_states_does_not_count(
    opened: bool, newest: int, states: int
) -> None:
    engine = AnotherRound(opened=opened, newest=newest)
    engine.states = states
    assert engine.answered()[:2] == ["a", "b"]
    assert engine.trained[:2] == [("a", newest + 1), ("b", newest + 1)]
    assert engine.means == [newest][: opened and newest]
    assert ("c", 10**9) not in engine.trained


class Impostor(ScriptedEngine):
    """A fourth node, of site c or of no site, names site b and states another mean."""

    key = KEYS["c"]

    def nodes(self) -> list[Node]:
        return [*super().nodes(), 3]

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        yield from super().ask({n: r for n, r in requests.items() if n != 3}, timeout, round)
        if isinstance(requests.get(3), Who):
            yield 3, SiteName("b")
        elif isinstance(ask := requests.get(3), Ask):
            mean = Mean(self.newest, bytes(32))
            signature = self.key.sign(mean.statement(ask.head))
            yield 3, Turn(self.newest + 1, mean=replace(mean, signature=signature))


@pytest.mark.parametrize("protected", [False, True])
def test_a_node_states_no_mean_for_another_site(
    monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    engine = Impostor(opened=True, newest=1)
    if protected:
        engine.answered(messages.Continue(tuple(SITES)), round=2)
        assert engine.means == [1]
        return
    monkeypatch.setattr(engine, "key", KEYS["b"])  # as if b had signed it
    with raises(Disagreement, party="b"):
        engine.answered(messages.Continue(tuple(SITES)), round=2)


class NoMean(ScriptedEngine):
    """Site a states the digest of the mean, and withholds the mean."""

    def turn(self, name: str, *, with_mean: bool) -> Reply:
        return super().turn(name, with_mean=with_mean and name != "a")


def test_another_site_sends_a_mean_that_one_withholds() -> None:
    engine = NoMean(opened=True, newest=1)
    assert engine.answered(messages.Continue(tuple(SITES)), round=2) == list(SITES)
    assert engine.means == [1] and engine.trained == [(name, 2) for name in SITES]


def test_a_run_without_its_last_mean_ends_with_an_error() -> None:
    """The server would save the model of the round before as the last one."""
    engine = NoMean(opened=True, newest=2)
    engine.answered(round=2)
    with raises(CohortError, "no site sent the mean of round 3"):
        engine.hub.finish()
    assert engine.means == [2]
    ScriptedEngine(opened=False, newest=2).hub.finish()


class Silent(ScriptedEngine):
    """A fourth node is busy for a second, and then names site d."""

    questions = 0

    def nodes(self) -> list[Node]:
        return [*super().nodes(), 9]

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        others = {node: request for node, request in requests.items() if node != 9}
        yield from super().ask(others, timeout, round)
        if len(others) < len(requests):
            self.questions += 1
            time.sleep(min(timeout, 1.0))
            yield 9, SiteName("d")


def test_a_silent_node_delays_one_look_for_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_names, "INTRODUCTION", 0.1)
    monkeypatch.setattr(site_names, "LOOK", 0.1)
    engine = Silent(opened=False)
    begin = time.monotonic()
    for _ in range(20):
        assert engine.hub.connected() == set(SITES)
    assert time.monotonic() - begin < 0.5
    assert not engine.hub.wait_for([*SITES, "d"], 5.0)
    assert engine.questions == 1
