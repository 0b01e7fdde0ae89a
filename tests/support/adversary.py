"""An adversary that changes any field of any message, and what must be true after it.

A scenario follows from its seed: protection, hospitals, dropouts, and the actors that lie: the
coordinator, one or two members, or both. Each frame of a liar may be dropped, repeated, replaced by
an earlier one, or changed in a random field, and is signed again with the liar's own key. A failing
scenario is shrunk: changes are omitted as long as it still fails.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.blame.evidence import FalseShare
from secure_fl.crypto.blame.inquiry import InquiryEvidence
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.errors import SecureFLError, TamperError
from secure_fl.federation.assembly import COORDINATOR
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.context import Checkpoints
from secure_fl.protocol import frames as wire
from secure_fl.protocol.frames import EquivocationProof, Frame, Link
from secure_fl.protocol.messages import Audience, Examine, Message, Stop, Unmask
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, federate

NAMES = ("east", "north", "south", "west", "zeta")
HOST = "hub"
SIZE, SUMS = 6, 2
MOST_EXCHANGES = 120
KEYS: dict[tuple[Protection, int, bool], Mapping[str, PartyKeys]] = {}


@dataclass(frozen=True)
class Scenario:
    """One federation and its liars; `only`: the changes that are made, or None for all."""

    seed: int
    mode: Protection
    names: tuple[str, ...]
    host: bool
    tiers: bool
    liars: frozenset[str]  # members, and the coordinator's name
    rate: float  # share of the liars' frames that are changed
    spares: bool  # True if the others go on without a member that fails, as in a pilot
    lost: Mapping[str, int] = field(default_factory=dict)  # the exchange at which a member leaves
    only: frozenset[int] | None = None

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Draw a scenario."""
        rng = random.Random(seed)
        names = NAMES[: rng.choice((3, 4, 4, 5))]
        host = rng.random() < 0.2
        guilty = rng.choice(((COORDINATOR,), (COORDINATOR, 1), (1,), (1,)))
        liars = {one if isinstance(one, str) else rng.choice(names) for one in guilty}
        lost = {}
        if len(names) > 3 and rng.random() < 0.2:
            lost = {rng.choice(sorted(set(names) - liars)): rng.randrange(2, 7)}
        mode: Protection = "he+secagg" if rng.random() < 0.25 else "secagg"
        tiers = not host and len(names) > 3 and rng.random() < 0.3
        rate = rng.choice((0.03, 0.08, 0.2, 0.5))
        spares = rng.random() < 0.5
        return cls(seed, mode, names, host, tiers, frozenset(liars), rate, spares, lost)

    @property
    def members(self) -> tuple[str, ...]:
        """All members, the host among them."""
        return (*self.names, HOST) if self.host else self.names

    def keys(self) -> Mapping[str, PartyKeys]:
        """Return the members' keys, made once for each kind of cohort."""
        kind = self.mode, len(self.names), self.host
        if kind not in KEYS:
            KEYS[kind] = make_keys(self.mode, self.members, HOST if self.host else None)
        return KEYS[kind]


class Kept(Checkpoints):
    """Evidence in memory."""

    def __init__(self) -> None:
        self.cases: list[tuple[str, bytes]] = []

    def convict(self, party: str, evidence: bytes) -> None:
        """Keep the evidence."""
        self.cases.append((party, evidence))


# --- changes of messages --------------------------------------------------------------------------


@dataclass
class Mutator:
    """Changes one random field of a message."""

    rng: random.Random
    names: Sequence[str]
    coverage: Counter[str]

    def change(self, message: Message, others: Sequence[Message]) -> Message:
        """Return the message with one changed field."""
        names = structs.fields(type(message))
        chosen = self.rng.choice(names).name if names else ""
        if not chosen:
            return message
        self.coverage[f"{type(message).__name__}.{chosen}"] += 1
        donors = [getattr(one, chosen) for one in others if type(one) is type(message)]
        value = getattr(message, chosen)
        if donors and self.rng.random() < 0.3:
            return structs.replace(message, **{chosen: self.rng.choice(donors)})
        return structs.replace(message, **{chosen: self._value(value)})

    def _value(self, value: Any) -> Any:
        rng = self.rng
        match value:
            case bool():
                return not value
            case int():
                return max(0, value + rng.choice((-1, 1, 1000)))
            case bytes():
                return self._bytes(value)
            case Audience():
                return rng.choice(list(Audience))
            case str():
                return rng.choice((*self.names, ""))
            case tuple():
                return self._tuple(value)
            case dict():
                return self._dict(value)
            case msgspec.Struct():
                chosen = rng.choice(structs.fields(type(value))).name
                return structs.replace(value, **{chosen: self._value(getattr(value, chosen))})
        return value

    def _bytes(self, value: bytes) -> bytes:
        if not value:
            return self.rng.randbytes(self.rng.choice((1, 32)))
        at = self.rng.randrange(len(value))
        flipped = value[:at] + bytes([value[at] ^ (1 << self.rng.randrange(8))]) + value[at + 1 :]
        return self.rng.choice((flipped, flipped, value[:at], bytes(len(value))))

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            return (self.rng.choice(self.names),)
        at = self.rng.randrange(len(value))
        changed = (*value[:at], self._value(value[at]), *value[at + 1 :])
        without, twice = (*value[:at], *value[at + 1 :]), (*value, value[at])
        return self.rng.choice((changed, changed, without, twice, value[::-1]))

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        if not value:
            return value
        key = self.rng.choice(sorted(value))
        other = self.rng.choice(sorted(value))
        rest = {k: v for k, v in value.items() if k != key}
        return self.rng.choice(
            (
                rest,
                value | {key: self._value(value[key])},
                value | {key: value[other], other: value[key]},
                rest | {self.rng.choice(self.names): value[key]} if isinstance(key, str) else rest,
            )
        )


@dataclass
class Adversary:
    """An engine between the coordinator and the sessions, on which the liars sit."""

    scenario: Scenario
    inner: Engine
    links: Mapping[str, Link]
    coverage: Counter[str]
    made: list[int] = field(default_factory=list)  # numbers of the changes that were made
    shown: list[tuple[str, Frame]] = field(default_factory=list)  # by receiver
    exchanges: int = 0
    _count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.scenario.seed + 1)
        self.seen: list[tuple[Message, bytes]] = []
        self.mutator = Mutator(self.rng, self.scenario.members, self.coverage)

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Carry frames; those of liars may be changed."""
        self.exchanges += 1
        if self.exchanges > MOST_EXCHANGES:
            raise AssertionError("this federation does not end")
        out = {}
        for party, frame in frames.items():
            sent = self._pass(COORDINATOR, frame, self.links[party].me.sign)
            if sent is not None and self.exchanges < self.scenario.lost.get(party, 10**9):
                out[party] = sent
                self.shown.append((party, sent))
        keys = self.scenario.keys()
        for party, answer in self.inner.exchange(out, deadline):
            given = self._pass(party, answer, keys[party].identity.sign)
            if given is not None:
                yield party, given
                if party in self.scenario.liars and self._chance(0.1):
                    yield party, given

    def _pass(self, sender: str, frame: Frame, sign: Callable[[bytes], bytes]) -> Frame | None:
        if sender not in self.scenario.liars:
            return frame
        envelope = wire.peek(frame.head)
        message, data = envelope.message, frame.bulk
        earlier = list(self.seen)
        self.seen.append((message, data))
        if isinstance(message, Stop) or not self._chance(self.scenario.rate):
            return frame
        kind = self.rng.random()
        if kind < 0.06:
            changed: tuple[Message, bytes] | None = None
        elif kind < 0.15 and earlier:
            same = [one for one in earlier if type(one[0]) is type(message)]
            changed = self.rng.choice(same or earlier)
        elif kind < 0.3 and data:
            self.coverage[f"{type(message).__name__} (bulk)"] += 1
            changed = message, self.mutator._bytes(data)
        else:
            changed = self.mutator.change(message, [one for one, _ in earlier]), data
        self._count += 1
        only = self.scenario.only
        if only is not None and self._count not in only:
            return frame
        self.made.append(self._count)
        if changed is None:
            return None
        try:
            size, digest = len(changed[1]), wire.digest(changed[1])
            again = structs.replace(envelope, message=changed[0], size=size, digest=digest)
            return wire.encode(again, changed[1], sign)
        except (SecureFLError, TypeError, ValueError, msgspec.MsgspecError):
            return frame

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share


# --- one run, and what must be true after it ------------------------------------------------------


@dataclass
class Outcome:
    """One run under attack."""

    scenario: Scenario
    out: Federated
    kept: Mapping[str, Kept]
    adversary: Adversary
    violations: list[str] = field(default_factory=list)


def weight(scenario: Scenario, name: str) -> float:
    """Return the value of a party: a power of two, so that a sum shows whose values are in it."""
    return float(1 << scenario.names.index(name))


def program_of(scenario: Scenario, name: str) -> Any:
    """Return a party's program: some sums of its value, in tiers or for a host if so drawn."""

    async def program(cohort: Cohort) -> list[dict[str, Any]]:
        results = []
        for _ in range(SUMS):
            if name == HOST:
                results.append(await cohort.sum({}, reveal=Audience.HOST))
                continue
            value = np.full(SIZE, weight(scenario, name), np.float32)
            own = {"low": value}
            if scenario.tiers and name != scenario.names[-1]:
                own["high"] = value
            reveal = Audience.HOST if scenario.host else Audience.PARTIES
            results.append(await cohort.sum(own, bound=64.0, partial=scenario.tiers, reveal=reveal))
        return results

    return program


def attack(scenario: Scenario, coverage: Counter[str] | None = None) -> Outcome:
    """Run a scenario and list the violations."""
    box: list[Adversary] = []
    counted = Counter[str]() if coverage is None else coverage

    def lead(
        links: Mapping[str, Link], engine: Engine, rules: CoordinatorRules, *rest: Any
    ) -> Coordinator:
        box.append(Adversary(scenario, engine, links, counted))
        return Coordinator(links, box[0], replace(rules, spares=scenario.spares), *rest)

    kept = {name: Kept() for name in scenario.members}
    programs = {name: program_of(scenario, name) for name in scenario.members}
    out = federate(
        programs,
        mode=scenario.mode,
        host=HOST if scenario.host else None,
        min_cohort=2,
        bits=16,
        keys=scenario.keys(),
        kept=kept,
        lead=lead,
        catch=True,
    )
    outcome = Outcome(scenario, out, kept, box[0])
    outcome.violations = list(violations(outcome))
    return outcome


def violations(outcome: Outcome) -> Iterator[str]:
    """Yield what must never happen."""
    scenario, out = outcome.scenario, outcome.out
    honest = [name for name in scenario.members if name not in scenario.liars]
    if out.error is not None and not isinstance(out.error, SecureFLError):
        yield f"the coordinator crashed: {out.error!r}"
    for name in honest:
        session = out.sessions[name]
        error = session.error
        if error is not None and type(error) is SecureFLError:
            yield f"{name} crashed: {error}"
        if session.convicted and session.convicted not in scenario.liars:
            yield f"{name} convicts {session.convicted}"
        if COORDINATOR not in scenario.liars and _unexplained(outcome, name):
            yield f"{name} counts a forged sum, and the coordinator is honest"
    yield from _named(outcome)
    yield from _evidence(outcome, honest)
    yield from _sums(outcome, honest)


def _unexplained(outcome: Outcome, name: str) -> bool:
    """Return True if a member would note a forged sum for good, though all uploads were shown."""
    session = outcome.out.sessions[name]
    failed = isinstance(session.error, TamperError) and "sum" in session.error.where
    cleared = session.explained or session.convicted not in ("", COORDINATOR)
    withheld = {"hidden", "lost"} & {getattr(outcome.out.error, "reason", "")}
    lost = any(event["event"] == "lost" for event in outcome.out.events)
    return failed and not cleared and not withheld and not lost


def _named(outcome: Outcome) -> Iterator[str]:
    """Yield honest parties that the coordinator convicts, if it is honest itself."""
    if COORDINATOR in outcome.scenario.liars:
        return
    for event in outcome.out.events:
        named = event.get("parties") or ()
        if event["event"] == "convicted" and not set(named) <= outcome.scenario.liars:
            yield f"convicted: {', '.join(named)}"


def _evidence(outcome: Outcome, honest: Sequence[str]) -> Iterator[str]:
    """Yield evidence that does not check, and evidence against honest parties that does."""
    scenario, keys = outcome.scenario, outcome.scenario.keys()
    coordinator = next(iter(outcome.out.sessions.values()))._link.peer
    reader = keys[honest[0]]
    for name in honest:
        for accused, data in outcome.kept[name].cases:
            if not _checks(data, reader, coordinator):
                yield f"the evidence of {name} against {accused} does not check"
    for accused, data in forged(outcome):
        if accused not in scenario.liars and _checks(data, reader, coordinator):
            yield f"forged evidence convicts {accused}"
    cards = {name: held.identity.public for name, held in keys.items()}
    for event in outcome.out.events if COORDINATOR not in scenario.liars else ():
        if event["event"] == "convicted" and event.get("evidence"):
            try:
                FalseShare.read(event["evidence"]).check(cards)
            except SecureFLError as error:
                yield f"the coordinator's evidence of a false share does not check: {error.what}"


def _checks(data: bytes, keys: PartyKeys, coordinator: PublicIdentity) -> bool:
    try:
        if (proof := EquivocationProof.from_bytes(data)) is not None:
            proof.check(coordinator)
        else:
            InquiryEvidence.from_bytes(data).check(keys, coordinator)
    except (SecureFLError, IndexError):
        return False
    return True


def forged(outcome: Outcome) -> Iterator[tuple[str, bytes]]:
    """Yield evidence that liars can assemble from all frames that the coordinator signed."""
    scenario, by_reader = outcome.scenario, dict[str, tuple[list[bytes], list[bytes]]]()
    for reader, frame in outcome.adversary.shown:
        try:
            message = wire.peek(frame.head).message
        except msgspec.MsgspecError:
            continue  # a change that nobody can decode
        lists, frames = by_reader.setdefault(reader, ([], []))
        if isinstance(message, Unmask):
            lists.append(frame.head)
        elif isinstance(message, Examine) and message.who:
            frames.append(frame.to_bytes())
    host = HOST if scenario.host else None
    for reader, (lists, frames) in by_reader.items():
        for head in lists if frames else ():
            for accused in (*scenario.members, COORDINATOR):
                case = InquiryEvidence(accused, reader, host, head, tuple(frames))
                yield accused, case.to_bytes()


def _sums(outcome: Outcome, honest: Sequence[str]) -> Iterator[str]:
    """Yield opened values that differ between honest readers, or are no sum of enough parties."""
    scenario, results = outcome.scenario, outcome.out.results
    readers = [name for name in honest if name in results and (name == HOST) == scenario.host]
    for number in range(SUMS):
        for key in ("low", "high"):
            found = {
                name: results[name][number][key] for name in readers if key in results[name][number]
            }
            whole = {name: tuple(np.asarray(values).tolist()) for name, values in found.items()}
            if len(set(whole.values())) > 1:
                yield f"sum {number + 1} of {key} differs between honest members"
            for name, values in found.items():
                yield from _mixed(scenario, name, key, np.asarray(values))


def _mixed(scenario: Scenario, reader: str, key: str, values: Any) -> Iterator[str]:
    """Yield a sum whose honest part is the value of one other hospital, or a fraction of one."""
    owners = [n for n in scenario.names if key == "low" or n != scenario.names[-1]]
    if scenario.liars & set(owners):
        return  # a liar may contribute any value
    bits = round(float(values[0]))
    if abs(values - bits).max() > 0.05 or not 0 <= bits < 1 << len(scenario.names):
        yield f"{reader} opened {values[0]:.3f}, which is no sum of inputs"
    if bin(bits).count("1") < 2:
        yield f"{reader} opened the value of a single hospital"


def shrink(scenario: Scenario) -> Scenario:
    """Omit changes as long as the scenario still fails."""
    found = attack(scenario)
    only = frozenset(found.adversary.made)
    for one in sorted(only):
        smaller = replace(scenario, only=only - {one})
        if attack(smaller).violations:
            only -= {one}
    return replace(scenario, only=only)
