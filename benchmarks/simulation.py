"""A federation of simulated parties with the product's sessions, links and coordinator, and clocks.

All work outside of the parties' sessions is the coordinator's: unpacking, adding, packing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.federation.assembly import PartyContext, connect, join_run, make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.settings import ProtectionSettings
from secure_fl.thresholds import default_threshold

Program = Callable[[Cohort], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Exchange:
    """One question to all parties and their answers: CPU seconds and bytes."""

    parties: float = 0.0  # seconds of all parties together
    coordinator: float = 0.0  # until the next question is ready
    up: int = 0
    down: int = 0


@dataclass(slots=True)
class ClockedEngine:
    """The local engine with a clock for the parties and one for the coordinator."""

    sessions: Mapping[str, Session]
    exchanges: list[Exchange] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver the frames one by one and record the CPU time of each side."""
        if self.exchanges:
            self.lap()
        here = Exchange()
        self.exchanges.append(here)
        for party, frame in frames.items():
            self.lap()
            answer = self.sessions[party].step(frame)
            here.parties += self._spent()
            here.up += answer.size
            here.down += frame.size
            yield party, answer

    def lap(self) -> None:
        """Charge the coordinator for the time since the last record."""
        self.exchanges[-1].coordinator += self._spent()

    def _spent(self) -> float:
        now = time.process_time()
        spent, self._since = now - self._since, now
        return spent


@dataclass(frozen=True, slots=True)
class Simulated:
    """The cost of a simulated run."""

    setup: float  # CPU seconds per party, before the first message: keys of the run, channels
    exchanges: list[Exchange]


def simulate(protection: ProtectionSettings, parties: int, program: Program) -> Simulated:
    """Run one program at every party, named p0000 and so on."""
    names = [f"p{number:04d}" for number in range(parties)]
    rules = CoordinatorRules(None, protection.min_cohort, default_threshold(parties))
    keys = make_keys(protection.mode, names, None)
    wires = connect(keys)
    start = time.process_time()
    sessions = {
        name: join_run(program, PartyContext(keys[name], wires.parties[name], rules, protection))
        for name in names
    }
    setup = (time.process_time() - start) / parties
    engine = ClockedEngine(sessions)
    lead_run(wires.coordinator, engine, rules, protection).run()
    engine.lap()
    return Simulated(setup, engine.exchanges)
