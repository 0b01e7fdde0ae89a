"""Mutated frames against both ends of a pilot: none may be accepted, none may crash anything.

Before each genuine frame reaches a hospital, and before each answer reaches the coordinator,
mutants are thrown at that end. All must be refused with an error of ours, and the genuine frames
must still be answered, so that the run ends:

    fuzzer = Fuzzer(local_pilot(folder), count=100)
    fuzzer.lead().run()
    assert not fuzzer.found
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from secure_fl.errors import RunError, SecureFLError
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.gathering import Gathering
from secure_fl.protocol.frames import Frame, Link, peek
from tests.support.local_pilot import LocalPilot
from tests.support.mutants import MUTATORS, Mutator


@dataclass
class Fuzzer:
    """Throws mutants at both ends of a pilot's run, `count` before each genuine frame.

    Whatever is not refused with a SecureFLError is kept as `found`.
    """

    pilot: LocalPilot
    count: int
    seed: int = 0
    mutators: Mapping[str, Mutator] = field(default_factory=lambda: MUTATORS)
    eager: bool = False  # give up at the first finding
    thrown: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    crashes: int = 0
    found: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._seen: list[Frame] = []  # all genuine frames so far, in both directions
        self._last: dict[str, tuple[bytes, Frame]] = {}
        self._links: dict[tuple[bytes, str], Link] = {}
        self._names = sorted(self.mutators)
        self._deliver = self.pilot.exchange
        self.pilot.exchange = self.exchange  # type: ignore[method-assign]

    def lead(self) -> RunLeader:
        """A leader whose links the mutants can reach."""
        leader = self.pilot.lead()
        of = leader.gathering
        leader.gathering = _Noting(of.hub, of.me, of.roster, of.plan, of.log, self._links)
        return leader

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver each frame after its mutants, and each answer after its own."""
        around = list(frames.values())
        for party, frame in frames.items():
            others = [*around, *self._seen]
            for name, mutant in self._mutants(frame, others):
                self._throw(name, party, mutant, self.pilot.processes[party].step)
            answers = list(self._deliver({party: frame}, deadline))
            if not answers:
                raise RunError(
                    "a genuine frame was not answered",
                    party=party,
                    fix="read that party's log",
                    reason="unfinished",
                )
            self._last[party] = frame.head, answers[0][1]
            self._seen += [frame, answers[0][1]]
            link = self._links[peek(frame.head).run, party]
            for name, mutant in self._mutants(answers[0][1], [*around, *self._seen[:-1]]):
                self._throw(name, "", mutant, link.unpack)
            yield from answers

    def _mutants(
        self, genuine: Frame, others: Sequence[Frame]
    ) -> Iterator[tuple[str, Frame | None]]:
        others = [frame for frame in others if frame != genuine] or [Frame(b"x" * 99)]
        for _ in range(self.count):
            name = self._rng.choice(self._names)
            try:
                mutant = self.mutators[name](self._rng, genuine, others)
            except SecureFLError:
                yield name, None  # it did not even become a frame
                continue
            if mutant != genuine:
                yield name, mutant

    def _throw(
        self, name: str, party: str, mutant: Frame | None, take: Callable[[Frame], Any]
    ) -> None:
        self.thrown["party" if party else "coordinator"] += 1
        self.kinds[name] += 1
        if mutant is None:
            return
        began = time.perf_counter()
        try:
            answer = take(mutant)
        except SecureFLError:
            if time.perf_counter() - began > self.slowest:
                self._time(mutant, take)
        except Exception as error:
            self.crashes += 1
            self._finding(f"{name}: {type(error).__name__}: {error}")
        else:
            known = self._last.get(party)
            if known is not None and known == (mutant.head, answer):
                self.repeated += 1  # a repeated frame gets the same answer, and nothing happens
            else:
                self._finding(f"{name}: accepted {type(peek(mutant.head).message).__name__}")

    def _time(self, mutant: Frame, take: Callable[[Frame], Any]) -> None:
        """Refuse it once more, in CPU seconds: to ask a thread's clock can cost more than that."""
        began = time.thread_time()
        with suppress(SecureFLError):
            take(mutant)
        self.slowest = max(self.slowest, time.thread_time() - began)

    def _finding(self, what: str) -> None:
        self.found.append(what)
        if self.eager:
            raise FuzzFinding(what)


@dataclass(frozen=True, slots=True)
class _Noting(Gathering):
    """Notes every link that the coordinator uses."""

    made: dict[tuple[bytes, str], Link]

    def links(self, run: bytes, names: Iterable[str]) -> dict[str, Link]:
        links = Gathering.links(self, run, names)
        self.made.update({(run, name): link for name, link in links.items()})
        return links


class FuzzFinding(Exception):  # noqa: N818 - it ends a run that has shown enough
    """Something was accepted, or crashed."""
