"""One sum of a large cohort, some of whom are lost on the way; the coordinator is alone.

Sessions, keys, signatures and masks are real, and every party takes part in the sum. What all of
them would compute alike from public lists (who is who, the graph, whether a signature holds) is
computed once in this process: alone for each of ten thousand it would take hours and all memory.
Costs of a party are therefore taken from a few *lone* ones, which share nothing with the others.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.alike import Card, SharingLink, forget
from benchmarks.federations.apart import Answer, converse
from benchmarks.lone import Spent
from secure_fl.coordinator.step import Rules
from secure_fl.crypto import circle, packing
from secure_fl.crypto.identity import PublicIdentity
from secure_fl.crypto.scheme import COHORT
from secure_fl.errors import CryptoError
from secure_fl.events import EventLog
from secure_fl.federation.assembly import join_run
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.link import Link
from secure_fl.seeds import seed_for
from secure_fl.settings import ProtectionSettings
from secure_fl.thresholds import default_threshold

Integers = NDArray[np.int64]
PHASES = ("keys", "masked input", "lists", "shares", "total")  # what is asked for; lists: confirmed
INPUT, SHARES = PHASES.index("masked input"), PHASES.index("shares")
LONE = 10  # parties whose costs are measured
SETTINGS = ProtectionSettings(mode="secagg", min_cohort=3)
STEPS = (1 << (SETTINGS.bits - 1)) - 1  # a value in [-1, 1] is one of so many on either side of 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is lost, and when; who is measured."""

    names: tuple[str, ...]
    before: frozenset[str]  # lost with their keys given and their input not sent
    after: frozenset[str]  # lost with their input sent and no shares revealed
    lone: frozenset[str]

    @classmethod
    def of(cls, parties: int, lost: float, seed: int) -> Plan:
        """Draw them: one in five of the lost is lost after its input."""
        names = [f"p{number:05d}" for number in range(parties)]
        drawn = np.random.default_rng(seed).permutation(parties).tolist()
        count = max(1, round(lost * parties)) if lost else 0
        after = count // 5
        cut = [names[number] for number in drawn]
        return cls(
            tuple(names),
            frozenset(cut[after:count]),
            frozenset(cut[:after]),
            frozenset(cut[count : count + LONE]),
        )


@dataclass(slots=True)
class Played:
    """One sum: what it took, and what came out."""

    spent: Spent
    seconds: dict[str, float] = field(default_factory=dict)  # a lone party's, by phase
    up: float = 0.0  # bytes of a party that stayed
    down: float = 0.0
    survivors: tuple[str, ...] = ()  # whose inputs are in the sum
    opened: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    plain: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # without protection

    def require_exact(self) -> None:
        """Refuse a sum that is not that of its contributors' integers, value by value."""
        wrong = int(np.count_nonzero(self.opened != self.plain))
        if wrong or not self.plain.size:
            raise CryptoError(
                f"{wrong} of {self.plain.size} values of the opened sum are not the sum of the "
                f"{len(self.survivors)} contributors' integers",
                fix="do not trust these figures: the protocol or the benchmark is broken",
            )


def play(plan: Plan, values: int, seed: int) -> Played:
    """One sum of so many values in [-1, 1] over all who are not lost before their input."""
    keys, run = make_keys(SETTINGS.mode, plan.names, None), os.urandom(16)
    cards = {name: own.identity.public for name, own in keys.items()}
    known = {name: Card.of(c) for name, c in cards.items()}
    rules = Rules(None, SETTINGS.min_cohort, default_threshold(len(plan.names)))
    crowd = _Crowd(plan, values, seed)

    def gather(coordinator: PublicIdentity) -> Answer:
        told: list[Any] = []
        for name in plan.names:
            own, recorder = keys.pop(name), EventLog(name)
            if name in plan.lone:
                link = Link(run, own.identity, coordinator, asks=False)
            else:
                own = replace(own, peers=known)
                link = SharingLink(run, own.identity, coordinator, asks=False, told=told)
            crowd.recorders[name] = recorder
            crowd.sessions[name] = join_run(
                crowd.program, own, link, rules, SETTINGS, recorder=recorder
            )
        return crowd.answer

    with _uncollected():
        crowd.played.spent = converse(SETTINGS, rules, cards, run, gather)
    forget()
    return crowd.result()


class _Crowd:
    """The parties of one sum."""

    def __init__(self, plan: Plan, values: int, seed: int) -> None:
        self.plan, self._values, self._seed = plan, values, seed
        self.sessions: dict[str, Session] = {}
        self.recorders: dict[str, EventLog] = {}
        self.played = Played(Spent(0.0, 0.0, None))
        self._asked: dict[str, int] = {}
        self._opened: dict[bytes, Integers] = {}

    def vector(self, name: str) -> NDArray[np.float32]:
        """What this party contributes."""
        rng = np.random.default_rng(seed_for(self._seed, "value", name))
        return rng.uniform(-1, 1, self._values).astype(np.float32)

    async def program(self, cohort: Cohort) -> None:
        """One sum; what came out is compared with what the others opened."""
        sums = await cohort.sum({"x": self.vector(cohort.me)}, bound=1.0)
        reals = sums["x"] * STEPS
        integers = np.rint(reals).astype(np.int64)
        if np.abs(reals - integers).max() > 1e-6:
            raise CryptoError("an opened sum is not one of integers", party=cohort.me)
        self._opened.setdefault(integers.tobytes(), integers)
        self.played.survivors = cohort.survivors

    def answer(self, party: str, frame: Frame) -> Frame | None:
        """Let a party answer, unless it is lost by now."""
        asked = self._asked[party] = self._asked.get(party, -1) + 1
        lost = party in self.plan.before and asked >= INPUT
        if lost or (party in self.plan.after and asked >= SHARES):
            self.sessions.pop(party, None)
            return None
        session = self.sessions[party]
        if party in self.plan.lone:
            circle.forget()
            start = time.process_time()
            reply = session.step(frame)
            self._charge(PHASES[asked], time.process_time() - start)
        else:
            reply = session.step(frame)
        if session.error:
            raise session.error
        if session.done:
            del self.sessions[party]
        return reply

    def result(self) -> Played:
        """What came out, beside the sum of the same integers without packing and masks."""
        played, plan = self.played, self.plan
        if len(self._opened) != 1:
            raise CryptoError(f"parties opened {len(self._opened)} different sums")
        (played.opened,) = self._opened.values()
        played.plain = self.plain(played.survivors)
        stayed = [n for n in plan.names if n not in plan.before | plan.after]
        played.up = sum(self.recorders[n].bytes_up for n in stayed) / len(stayed)
        played.down = sum(self.recorders[n].bytes_down for n in stayed) / len(stayed)
        return played

    def plain(self, names: tuple[str, ...]) -> Integers:
        """The sum of the integers that these parties' values are rounded to."""
        codec = packing.Codec(SETTINGS.bits, len(self.plan.names), COHORT.modulus)
        total = np.zeros(self._values, np.int64)
        for name in names:
            rng = np.random.Generator(np.random.PCG64(seed_for(0, "rounding", name)))
            integers, _ = packing.quantize(codec, self.vector(name), 1.0, rng)
            total += integers
        return total

    def _charge(self, phase: str, seconds: float) -> None:
        self.played.seconds[phase] = self.played.seconds.get(phase, 0.0) + seconds / len(
            self.plan.lone
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """No walks of the collector through ten thousand parties, at the expense of one of them."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
