"""Small federations of hand-written party programs, with every real component but the models."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from secure_fl.coordinator.machine import Coordinator
from secure_fl.coordinator.step import Rules
from secure_fl.coordinator.totals import blind_totals
from secure_fl.crypto.identity import Identity
from secure_fl.engines.local import LocalEngine
from secure_fl.events import Event, EventLog
from secure_fl.federation.keys import make_keys, party_sum
from secure_fl.party.cohort import Cohort
from secure_fl.party.noise_account import NoiseAccount
from secure_fl.party.rounds import Checkpoints
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.link import Link
from secure_fl.runs.folder import NoCheckpoints
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold

Program = Callable[[Cohort], Coroutine[Any, Any, Any]]
COORDINATOR = "coordinator"


@dataclass
class LossyEngine:
    """A local engine that loses parties at given exchanges, and can look at every frame."""

    sessions: Mapping[str, Session]
    lose: Mapping[str, int] = field(default_factory=dict)  # party -> exchange it no longer answers
    order: Callable[[Sequence[str]], Sequence[str]] = sorted
    tap: Callable[[str, str, Frame], Frame] = lambda party, direction, frame: frame
    exchanges: int = 0

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        self.exchanges += 1
        for party in self.order(list(frames)):
            if self.exchanges >= self.lose.get(party, 10**9):
                continue
            inbound = self.tap(party, "in", frames[party])
            yield party, self.tap(party, "out", self.sessions[party].step(inbound))


@dataclass
class Federated:
    """What came out of a small federation."""

    results: dict[str, Any]
    sessions: dict[str, Session]
    events: list[Event]
    recorders: dict[str, EventLog]
    error: Exception | None = None


def federate(
    programs: Mapping[str, Program],
    *,
    mode: Protection = "none",
    host: str | None = None,
    min_cohort: int = 2,
    threshold: int | None = None,
    bits: Any = 16,
    engine: Callable[[Mapping[str, Session]], Any] = LocalEngine,
    keys: Any = None,
    new_total: Any = None,
    lead: Callable[..., Coordinator] = Coordinator,
    run: bytes | None = None,
    catch: bool = False,
    ledgers: Callable[[str], NoiseAccount] | None = None,
    kept: Mapping[str, Checkpoints] | None = None,
) -> Federated:
    """Run one program per party through the real sessions and the real coordinator."""
    protection = ProtectionSettings(mode=mode, bits=bits, min_cohort=min_cohort)
    parties = [name for name in programs if name != host]
    rules = Rules(host, min_cohort, threshold or default_threshold(len(parties)))
    keys = keys or make_keys(mode, list(programs), host)
    me, run = Identity.generate(COORDINATOR), run or os.urandom(16)
    out = Federated({}, {}, [], {})

    def program(name: str) -> Program:
        async def wrapped(cohort: Cohort) -> None:
            out.results[name] = await programs[name](cohort)

        return wrapped

    links = {}
    for name in programs:
        links[name] = Link(run, me, keys[name].identity.public, asks=True)
        recorder = out.recorders[name] = EventLog(name, out.events.append)
        sums = party_sum(protection, keys[name], rules, run=run, seed=0)
        checkpoints = kept[name] if kept else NoCheckpoints()
        cohort = Cohort(
            name,
            host=host,
            min_cohort=min_cohort,
            threshold=rules.threshold,
            sums=sums,
            checkpoints=checkpoints,
            recorder=recorder,
            noise=ledgers(name) if ledgers else None,
        )
        link = Link(run, keys[name].identity, me.public, asks=False)
        out.sessions[name] = Session(
            program(name),
            cohort,
            link,
            sums=sums,
            checkpoints=checkpoints,
            recorder=recorder,
        )
    coordinator = lead(
        links,
        engine(out.sessions),
        rules,
        new_total or blind_totals(protection, list(programs), rules, run),
        EventLog(COORDINATOR, out.events.append),
    )
    try:
        coordinator.run()
    except Exception as error:
        if not catch:
            raise
        out.error = error
    return out
