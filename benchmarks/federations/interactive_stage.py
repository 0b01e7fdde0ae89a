"""Parties and a host that play FedID's steps without models: real sessions, links, coordinator.

All take turns in one process, each on its own CPU clock. A step is a sum that the host opens, and a
broadcast of what it makes of it. In the clear that is two exchanges, under masks three.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secure_fl.capture.capture import NoCapture
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.federation.assembly import COORDINATOR, PartyContext, connect, join_run
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import PrivacyLayer
from secure_fl.settings import ProtectionSettings
from secure_fl.thresholds import default_threshold

HOST = "host"
WARM = 2  # steps that agree on channels and fill caches, before the clocks start
Seconds = defaultdict[str, float]
STEPS = ("settle", "shares", "open")  # of a sum under way


@dataclass(frozen=True, slots=True)
class Shape:
    """What the parties send in one step."""

    batch: int
    classes: int
    together: int  # batches in one sum

    @property
    def examples(self) -> int:
        """Public records in one sum."""
        return self.batch * self.together


@dataclass(slots=True)
class Parts(NoCapture):
    """CPU seconds by part of the privacy layer; a part inside another counts once."""

    seconds: Seconds = field(default_factory=lambda: defaultdict(float))
    _inner: float = 0.0

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Put a clock around each part of one party's half."""
        if keys.identity.name == HOST:
            return layer
        begin = self._around("begin", layer.sums.begin)

        def clocked(*given: Any) -> Any:
            under_way = begin(*given)
            for step in STEPS:
                setattr(under_way, step, self._around(step, getattr(under_way, step)))
            return under_way

        parts = ((layer.sums, ("next_keys", "accept")), (layer.envelopes, ("seal", "open")))
        for owner, names in parts:
            for name in names:
                told = "envelopes" if owner is layer.envelopes else name
                setattr(owner, name, self._around(told, getattr(owner, name)))
        setattr(layer.sums, "begin", clocked)  # noqa: B010 - a method of a protocol
        return layer

    def _around(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            outer, self._inner, start = self._inner, 0.0, time.process_time()
            try:
                return work(*given)
            finally:
                spent = time.process_time() - start
                self.seconds[name] += spent - self._inner
                self._inner = outer + spent

        return timed


@dataclass(slots=True)
class ClockedSteps:
    """The local engine; it measures the exchanges from `first` up to `last`."""

    sessions: Mapping[str, Session]
    first: int
    last: int
    parts: Parts
    seconds: Seconds = field(default_factory=lambda: defaultdict(float))  # by who spent them
    up: int = 0  # bytes of the parties, the host's left out
    down: int = 0
    part_seconds: Mapping[str, float] = field(default_factory=dict)
    _number: int = 0
    _since: float = 0.0

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver the frames one by one and note what each side spends."""
        self._number += 1
        if self._number == self.first:
            self.parts.seconds.clear()
            self._since = time.process_time()
        if self._number == self.last:
            self._charge(COORDINATOR)
            self.part_seconds = dict(self.parts.seconds)
        here = self.first <= self._number < self.last
        for party, frame in frames.items():
            if here:
                self._charge(COORDINATOR)
            answer = self.sessions[party].step(frame)
            if here:
                self._charge(party)
                if party != HOST:
                    self.up, self.down = self.up + answer.size, self.down + frame.size
            yield party, answer

    def _charge(self, who: str) -> None:
        now = time.process_time()
        self.seconds[who] += now - self._since
        self._since = now


@dataclass(frozen=True, slots=True)
class Spent:
    """What one step took: CPU milliseconds and bytes; a party's are means over the parties."""

    party: float
    host: float
    coordinator: float
    parts: Mapping[str, float]  # of a party's
    up: float
    down: float


def play(
    protection: ProtectionSettings, keys: Mapping[str, PartyKeys], shape: Shape, steps: int
) -> Spent:
    """Play the steps of a run once; the keys' names say who takes part."""
    parties = len(keys) - 1
    rules = CoordinatorRules(HOST, protection.min_cohort, default_threshold(parties))
    wires, noise = connect(keys), protection.noise
    program, parts = steps_of(shape, WARM + steps + 1, noised=noise is not None), Parts()
    sessions = {
        name: join_run(
            program,
            PartyContext(
                own,
                wires.parties[name],
                rules,
                protection,
                noise=None if noise is None else NoiseLedger(name, noise, rules.threshold),
                capture=parts,
            ),
        )
        for name, own in keys.items()
    }
    each = 2 if protection.mode == "none" else 3
    first = 3 + each * WARM  # after Start and Begin
    engine = ClockedSteps(sessions, first, first + each * steps, parts)
    lead_run(wires.coordinator, engine, rules, protection).run()
    spent = {name: 1e3 * seconds / steps for name, seconds in engine.seconds.items()}
    return Spent(
        sum(spent[name] for name in keys if name != HOST) / parties,
        spent[HOST],
        spent[COORDINATOR],
        {part: 1e3 * s / steps / parties for part, s in engine.part_seconds.items()},
        engine.up / steps / parties,
        engine.down / steps / parties,
    )


def steps_of(shape: Shape, steps: int, *, noised: bool) -> Callable[[Cohort], Any]:
    """The program of parties and host: random predictions, and no models."""

    async def program(cohort: Cohort) -> None:
        size = shape.examples * shape.classes
        given = {"predictions": np.random.default_rng().uniform(-0.5, 0.5, size)}
        y = np.zeros((shape.together, shape.batch, shape.classes), np.float32)
        told = {"y": y, "h": np.zeros(shape.together, np.float32)}
        noise = None
        if noised:
            noise = cohort.prediction_noise(shape.examples, shape.classes, steps)
            assert noise is not None  # noqa: S101 - the party has an account
            cohort.reserve(noise, steps)
        for _ in range(steps):
            await cohort.sum(given, reveal=Audience.HOST, bound=1.0, noise=noise)
            await cohort.broadcast(told if cohort.is_host else None)

    return program
