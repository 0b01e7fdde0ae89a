"""A federation of hand-written party programs, with every real component but the models.

Each party sums three ones:

    async def program(cohort: Cohort) -> Any:
        return await cohort.sum({"x": np.ones(3, np.float32)})

    out = federate({"east": program, "north": program, "south": program}, mode="he+secagg")
    out.results["east"]["x"]  # 3, 3, 3

A party can misbehave at a named step: `faults={"north": {SumInput: change}}` passes each
contribution of north through `change(message, bulk)`, and signs the result with north's key.

`require_carries` checks an engine: frames arrive complete, and answers come back.

    def test_my_engine() -> None:
        require_carries(lambda sessions: MyEngine(sessions))

How an engine treats stragglers and strangers is for its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.events import Event, EventLog
from secure_fl.federation.assembly import COORDINATOR, PartyContext, connect, join_run, make_keys
from secure_fl.party.cohort import Cohort, NoiseAccount
from secure_fl.party.context import Checkpoints
from secure_fl.party.hooks import RoundHook
from secure_fl.party.session import LocalEngine, Session
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import FromParty, Message
from secure_fl.protocol.ports import TotalFor
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold

Program = Callable[[Cohort], Coroutine[Any, Any, Any]]
Fault = Callable[[Any, bytes], tuple[FromParty, bytes]]  # an honest answer to what is sent instead
Faults = Mapping[type[Message], Fault]  # by the kind of the honest answer


def misbehave(frame: Frame, me: Identity, faults: Faults) -> Frame:
    """Change a party's answer where a fault is given for its kind, and sign it with its key."""
    envelope = frames.peek(frame.head)
    fault = faults.get(type(envelope.message))
    if fault is None:
        return frame
    message, data = fault(envelope.message, frame.bulk)
    size, digest = len(data), frames.digest(data)
    changed = structs.replace(envelope, message=message, size=size, digest=digest)
    return frames.encode(changed, data, me.sign)


@dataclass(frozen=True)
class FaultyEngine:
    """An engine that lets parties misbehave."""

    inner: Engine
    keys: Mapping[str, PartyKeys]
    faults: Mapping[str, Faults]

    def exchange(self, sent: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Change the answers of faulty parties on their way to the coordinator."""
        for party, answer in self.inner.exchange(sent, deadline):
            faults = self.faults.get(party, {})
            yield party, misbehave(answer, self.keys[party].identity, faults)


@dataclass
class LossyEngine:
    """A local engine that loses parties at given exchanges, and can look at every frame.

    `lose`: the exchange, counted from 1, from which a party no longer answers. `order`: in which
    parties answer. `tap`: gets party, "in" or "out", and frame; what it returns is delivered.
    """

    sessions: Mapping[str, Session]
    lose: Mapping[str, int] = field(default_factory=dict)
    order: Callable[[Sequence[str]], Sequence[str]] = sorted
    tap: Callable[[str, str, Frame], Frame] = lambda party, direction, frame: frame
    exchanges: int = 0

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Step the sessions one after the other, but for those that are lost."""
        self.exchanges += 1
        for party in self.order(list(frames)):
            if self.exchanges >= self.lose.get(party, 10**9):
                continue
            inbound = self.tap(party, "in", frames[party])
            yield party, self.tap(party, "out", self.sessions[party].step(inbound))


@dataclass
class Federated:
    """The outcome of a federation of programs."""

    results: dict[str, Any]  # what each program returned
    sessions: dict[str, Session]
    events: list[dict[str, Any]]  # as the events file holds them
    recorders: dict[str, EventLog]
    error: Exception | None = None  # of the coordinator, where it was caught


@dataclass(frozen=True, kw_only=True)
class HarnessOptions:
    """The options of a federation of programs; `engine`, `new_total` and `lead` may misbehave."""

    mode: Protection = "none"
    host: str | None = None
    min_cohort: int = 2
    threshold: int | None = None
    bits: Any = 16
    engine: Callable[[Mapping[str, Session]], Engine] = LocalEngine
    keys: Mapping[str, PartyKeys] | None = None
    new_total: TotalFor | None = None  # the coordinator's half of sums
    lead: Callable[..., Coordinator] | None = None  # the whole coordinator
    run: bytes | None = None
    catch: bool = False  # keep what stops the coordinator as `error`
    ledgers: Callable[[str], NoiseAccount] | None = None  # each party's noise budget
    kept: Mapping[str, Checkpoints] | None = None  # each party's checkpoints
    hooks: Callable[[str, EventLog], RoundHook] | None = None  # of a party's name and log
    faults: Mapping[str, Faults] | None = None  # the steps at which parties misbehave, by party

    @property
    def protection(self) -> ProtectionSettings:
        """The protection of all sums."""
        return ProtectionSettings(mode=self.mode, bits=self.bits, min_cohort=self.min_cohort)

    def rules(self, members: Iterable[str]) -> CoordinatorRules:
        """Return the rules that a federation of these members follows."""
        parties = [name for name in members if name != self.host]
        threshold = self.threshold or default_threshold(len(parties))
        return CoordinatorRules(self.host, self.min_cohort, threshold)

    def extend(self, context: PartyContext, name: str, recorder: EventLog) -> PartyContext:
        """Add a party's log, checkpoints, hooks and noise budget to its context."""
        return replace(
            context,
            recorder=recorder,
            checkpoints=self.kept[name] if self.kept else Checkpoints(),
            hooks=[self.hooks(name, recorder)] if self.hooks else (),
            noise=self.ledgers(name) if self.ledgers else None,
        )


def federate(programs: Mapping[str, Program], **options: Any) -> Federated:
    """Run programs of parties through real sessions; options are those of `HarnessOptions`."""
    given = HarnessOptions(**options)
    out = Federated({}, {}, [], {})
    rules, protection = given.rules(programs), given.protection
    keys = given.keys or make_keys(given.mode, list(programs), given.host)
    wires = connect({name: keys[name] for name in programs}, given.run)

    def listen(event: Event) -> None:
        out.events.append(event.document())

    def noted(name: str) -> Program:
        async def program(cohort: Cohort) -> None:
            out.results[name] = await programs[name](cohort)

        return program

    for name in programs:
        recorder = out.recorders[name] = EventLog(name, listen)
        context = PartyContext(keys[name], wires.parties[name], rules, protection)
        out.sessions[name] = join_run(noted(name), given.extend(context, name, recorder))
    engine = given.engine(out.sessions)
    coordinator = lead_run(
        wires.coordinator,
        FaultyEngine(engine, keys, given.faults) if given.faults else engine,
        rules,
        protection,
        recorder=EventLog(COORDINATOR, listen),
        totals=given.new_total,
        make=given.lead,
    )
    try:
        coordinator.run()
    except Exception as error:
        if not given.catch:
            raise
        out.error = error
    return out


MakeEngine = Callable[[Mapping[str, Session]], Engine]
HOST, PARTIES = "hub", ("east", "north", "south")
LARGE = 300_000  # values: a frame of more than a megabyte in the clear


def require_carries(
    make: MakeEngine,
    mode: Protection = "he+secagg",
    *,
    parties: Sequence[str] = PARTIES,
    host: str = HOST,
) -> None:
    """Run a federation over an engine; an AssertionError says where it differs from one process.

    `parties`, `host`: names that the engine knows, if it does not take any.
    """

    def run(make: MakeEngine) -> Mapping[str, list[Any]]:
        programs = dict.fromkeys((*parties, host), _program)
        return federate(programs, host=host, mode=mode, engine=make).results

    here, there = run(LocalEngine), run(lambda sessions: Checked(make(sessions)))
    for name, results in here.items():
        for one, other in zip(results, there[name], strict=True):
            if not np.array_equal(one, other):
                raise AssertionError(f"{name} got another result than in one process")


@dataclass(frozen=True, slots=True)
class Checked:
    """An engine, and whether everybody who was asked is heard, and nobody else."""

    engine: Engine

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Pass on what the engine yields; it may yield an answer twice."""
        silent = set(frames)
        for party, answer in self.engine.exchange(frames, deadline):
            if party not in frames:
                raise AssertionError(f"the engine yielded {party}, which was not asked")
            silent.discard(party)
            yield party, answer
        if silent:
            raise AssertionError(f"the engine did not yield {', '.join(sorted(silent))}")


async def _program(cohort: Cohort) -> list[Any]:
    """Two sums, one of them large, with a broadcast between; what this party got."""
    small = {"x": np.full(5, len(cohort.me), np.float32)}
    large = {"x": np.linspace(0, 1, LARGE, dtype=np.float32)}
    first = await cohort.sum({} if cohort.is_host else small)
    news = {"y": np.arange(7, dtype=np.float32)}
    told = await cohort.broadcast(news if cohort.is_host else None)
    last = await cohort.sum({} if cohort.is_host else large, bound=1.0)
    return [array for found in (first, told, last) for array in found.values()]
