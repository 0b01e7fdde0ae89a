"""Mutated frames against both ends of a pilot: none may be accepted, none may crash anything.

A run of three small hospitals in this process, between seats and a lead as in earnest. Before each
genuine frame reaches a hospital, and before each answer reaches the coordinator, mutants are thrown
at that end. All must be refused with an error of ours; the genuine frames must still be answered,
so the run ends. What a run without mutants takes in memory is measured first.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.hospitals import Hospitals, plan_of
from benchmarks.mutants import MUTATORS, Mutator
from benchmarks.report import Report, Target, table
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.errors import RunError, SecureFLError
from secure_fl.pilot.lead import RunLeader
from secure_fl.pilot.seat import HospitalProcess
from secure_fl.protocol.frames import Frame, peek
from secure_fl.protocol.link import Link

FRAMES = 60  # of the shortest run: 10 exchanges, 3 parties, 2 ways
RECORDS = 16
SLOWEST = 0.5  # CPU seconds that one mutant may cost
MEMORY = 50e6  # bytes that all of them may add to the peak


class Led(Protocol):
    """Hospitals and a hub in one process, whose exchanges can be replaced."""

    seats: dict[str, HospitalProcess]

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Carry frames to seats."""

    def lead(self) -> RunLeader:
        """What leads a run over this hub."""


@dataclass
class Storm:
    """Mutants for both ends of a run, `count` before each genuine frame.

    Whatever is not refused with a SecureFLError is kept as `found`.
    """

    town: Led
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
        self._rng = random.Random(self.seed)  # noqa: S311 - the same mutants again
        self._seen: list[Frame] = []  # all genuine frames so far, in both directions
        self._last: dict[str, tuple[bytes, Frame]] = {}
        self._links: dict[tuple[bytes, str], Link] = {}
        self._names = sorted(self.mutators)
        self._deliver = self.town.exchange
        self.town.exchange = self.exchange  # type: ignore[method-assign]

    def lead(self) -> RunLeader:
        """A lead whose links the storm can reach."""
        lead, made = self.town.lead(), self._links
        original = lead._links_of

        def links_of(run: bytes, names: Iterable[str]) -> dict[str, Link]:
            links = original(run, names)
            made.update({(run, name): link for name, link in links.items()})
            return links

        lead._links_of = links_of  # type: ignore[method-assign]
        return lead

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """The town's, in bad weather."""
        around = list(frames.values())
        for party, frame in frames.items():
            others = [*around, *self._seen]
            for name, mutant in self._mutants(frame, others):
                self._throw(name, party, mutant, self.town.seats[party].step)
            answers = list(self._deliver({party: frame}, deadline))
            if not answers:
                raise RunError(
                    "a genuine frame was not answered", party=party, fix="read that party's log"
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
        began = time.thread_time()
        try:
            answer = take(mutant)
        except SecureFLError:
            pass
        except Exception as error:
            self.crashes += 1
            self._finding(f"{name}: {type(error).__name__}: {error}")
        else:
            known = self._last.get(party)
            if known is not None and known == (mutant.head, answer):
                self.repeated += 1  # a repeated frame gets the same answer, and nothing happens
            else:
                self._finding(f"{name}: accepted {type(peek(mutant.head).message).__name__}")
        self.slowest = max(self.slowest, time.thread_time() - began)

    def _finding(self, what: str) -> None:
        self.found.append(what)
        if self.eager:
            raise Found(what)


class Found(Exception):  # noqa: N818 - it ends a storm that has done its work
    """Something was accepted, or crashed."""


def measure(mutants: int = 1_000_000, seed: int = 0) -> Report:
    """Throw so many mutants, at the least, into one run; and none into one before."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(FedAvg(rounds=1))
        Hospitals(Path(folder, "calm"), plan, RECORDS).lead().run()
        calm, started = _peak(), time.process_time()
        town = Hospitals(Path(folder, "storm"), plan, RECORDS)
        storm = Storm(town, -(-mutants // FRAMES), seed)
        storm.lead().run()
    thrown = sum(storm.thrown.values())
    unfinished = sum(not seat.done for seat in town.seats.values())
    results = {
        "thrown": thrown,
        "at": dict(storm.thrown),
        "kinds": len(storm.kinds),
        "accepted": len(storm.found) - storm.crashes,
        "crashes": storm.crashes,
        "found": storm.found[:20],
        "repeated": storm.repeated,
        "unfinished_seats": unfinished,
        "slowest_cpu_seconds": storm.slowest,
        "cpu_seconds": time.process_time() - started,
        "peak_bytes_calm": calm,
        "peak_bytes": _peak(),
    }
    cells = [
        (name.replace("_", " "), f"{value:,.6g}")
        for name, value in results.items()
        if isinstance(value, int | float)
    ]
    return Report(
        "fuzz",
        {"mutants": mutants, "parties": len(town.seats)},
        seed,
        results,
        [table("mutated frames at both ends of a run", ("", "measured"), cells)],
        (
            Target("mutants that were accepted, or crashed anything", 0, len(storm.found)),
            Target("hospitals that did not end the run", 0, unfinished),
            Target("slowest mutant, CPU seconds", SLOWEST, storm.slowest),
            Target("memory over a calm run, bytes", MEMORY, _peak() - calm),
            Target("kinds of mutants", len(MUTATORS), len(storm.kinds), at_least=True),
        ),
        seconds=time.perf_counter() - began,
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
