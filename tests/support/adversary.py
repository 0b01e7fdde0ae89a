"""An adversary that changes any field of any message of a pilot's runs.

A scenario follows from its seed: protection, hospitals, dropouts, restarts, and the liars: the
coordinator, one or two members, or both. Each frame of a liar may be dropped, repeated, replaced by
an earlier one, exchanged with a peer's, or changed in a random field, and is signed again with the
liar's own key. Liars also forge consistent lies (`Schemes`). Targets are drawn so that all fields
are changed about equally often. `adversary_rules` has the invariants. A failing scenario is shrunk:
changes are omitted as long as it still fails.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.config.build import RunSettings
from secure_fl.crypto.blame.evidence import digest_inputs
from secure_fl.crypto.sealing import masking, secret, tags
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.packing import from_slots, to_slots
from secure_fl.crypto.sealing.public import from_parts, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import SecureFLError
from secure_fl.federation.assembly import COORDINATOR, make_keys
from secure_fl.pilot.plan import RESTARTED
from secure_fl.protocol import frames as wire
from secure_fl.protocol.frames import Envelope, Frame, cut
from secure_fl.protocol.messages import (
    Audience,
    Complaint,
    Examine,
    Failed,
    Finding,
    Message,
    Offer,
    Ready,
    Salt,
    SumInput,
    Total,
    Unmask,
    UnmaskShares,
)
from secure_fl.settings import Protection, ProtectionSettings
from tests.support import mutations
from tests.support.adversary_programs import HOST, NOISE, ROUNDS, Results, codebook_of, program_of
from tests.support.bare_pilot import BarePilot, BareRun
from tests.support.local_pilot import plan_of
from tests.support.mutations import BULK, FROM_COORDINATOR, FROM_PARTY, Mutator, Target

NAMES = ("east", "north", "south", "west", "zeta")
BEFORE = (
    "Hello",
    "Gathered",
    "Invite",
    "Gather",
    "Ready",
    "Start",
    "Begin",
    "Handover",
    "HandedOver",
)
MOST_EXCHANGES = 400
UPLOADS = (5, 9, 11, 13)  # a member that is lost at one of these misses an upload
SECOND = 0.2  # share of changed messages with a second change
MOST_SEEN = 12  # earlier messages of a kind that may be replayed
MASKED = ("secagg", "he+secagg")
KEYS: dict[tuple[Protection, int, bool], Mapping[str, PartyKeys]] = {}
LATE = (
    *("Share", "Broadcast", "Relayed", "Agree", "Agreed", "Boundary", "Continue", "Handover"),
    *("HandedOver", "Confirm", "Confirmed", "Lost", "Salt", "UnmaskShares"),
)
WITH_MASKS = (  # messages and records of masked sums
    *("Unmask", "UnmaskShares", "Confirm", "Confirmed", "Lost", "Salt", "Offer", "Deal"),
    *("SurvivorStatement", "Complaint", "Finding", "Examine"),
)
UNLESS: dict[str, set[str]] = {  # schemes that would take the place of changes of these
    **{kind: {"spoil", "salt", "parts"} for kind in ("SumInput", "Segment", "Salt")},
    **{"Finding": {"hide"}},
    **{"Unmask": {"commit"}, "Examine": {"commit"}, "Offer": {"deal"}, "Deal": {"deal"}},
}
Change = tuple[Message, bytes] | None  # None: the frame is dropped


class Crash(Exception):  # noqa: N818 - it is no error of the product
    """The end of the coordinator's process."""


@dataclass(frozen=True)
class Scenario:
    """A pilot and its liars; `only`: the changes that are made, or None for all."""

    seed: int
    target: Target  # the field that is changed most
    mode: Protection
    names: tuple[str, ...]
    host: bool
    tiers: bool
    talks: bool  # True if the programs also share, broadcast and agree
    codebook: bool  # True if they open a codebook, in place of rounds with sums
    noise: bool  # True if the sums are noised, for the host
    liars: frozenset[str]  # members, and the coordinator's name
    after: int  # sums before the liars begin to lie
    rate: float  # share of the liars' frames that are changed at random
    schemes: frozenset[str]  # what liars forge: see `Schemes`
    away: Mapping[str, tuple[int, int]]  # the exchanges at which a member is lost, and returns
    wiped: frozenset[str] = frozenset()  # members that return without their runs
    crash: int = 0  # the exchange at which the coordinator's process ends once
    again: bool = False  # True if a second run follows
    only: frozenset[int] | None = None

    @classmethod
    def of(cls, seed: int, target: Target | None = None) -> Scenario:
        """Draw a scenario, for a given target or any."""
        rng = random.Random(seed)
        target = target or rng.choice(mutations.targets())
        kind = target[0]
        loses = kind in ("Confirm", "Confirmed", "Lost") or target == ("UnmaskShares", "keys")
        joins = kind in ("Handover", "HandedOver")
        few = (4, 5) if loses or joins or kind == "Salt" else (3, 3, 4, 4, 5)
        names = NAMES[: rng.choice(few)]
        guilty = _guilty(rng, kind, names)
        tiered = kind in ("Declare", "Owners", "Salt")
        hosted = 0.4 if kind == "Segment" else 0.15
        host = kind == "Broadcast" or (not tiered and rng.random() < hosted)
        away = _away(rng, sorted(set(names) - set(guilty)), loses, joins) if len(names) > 3 else {}
        mode: Protection = "secagg"
        if rng.random() < 0.2:
            mode = "he+secagg"
        elif not host and kind not in WITH_MASKS and rng.random() < 0.08:
            mode = "none"
        calm = kind in LATE and rng.random() < 0.9  # no other lie ends the run before
        talks = kind in ("Share", "Broadcast", "Relayed", "Agree", "Agreed")
        if host and COORDINATOR not in guilty and rng.random() < 0.4:
            guilty = [HOST]
        tiers = not (host or joins) and (tiered or rng.random() < 0.25)
        return cls(
            seed,
            target,
            mode,
            names,
            host,
            tiers=tiers,
            talks=talks,
            codebook=not (host or tiers or talks or loses or joins) and rng.random() < 0.1,
            noise=host and mode in MASKED and rng.random() < 0.3,
            liars=frozenset(guilty),
            after=0 if loses or kind in BEFORE else rng.randrange(3),
            rate=0.0 if calm else rng.choice((0.0, 0.02, 0.06, 0.25)),
            schemes=_schemes(rng, kind, calm) | ({"complain"} if HOST in guilty else set()),
            away=away,
            wiped=frozenset(away) if rng.random() < 0.3 else frozenset(),
            crash=rng.randrange(5, 18) if rng.random() < 0.06 else 0,
            again=rng.random() < 0.06,
        )

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

    def weight(self, name: str) -> float:
        """Return the value of a party: a power of two, so that a sum shows whose values it has."""
        return float(1 << self.names.index(name))


def _guilty(rng: random.Random, kind: str, names: tuple[str, ...]) -> list[str]:
    """Draw the liars: the coordinator, one or two members, or both."""
    by_party = kind in (*FROM_PARTY, "Segment", "Salt")
    by_coordinator = kind in (*FROM_COORDINATOR, "Lost")
    guilty = [COORDINATOR] if by_coordinator or (not by_party and rng.random() < 0.5) else []
    if not guilty or rng.random() < 0.25:
        able = names[:-1] if kind == "Salt" else names  # the last one shares no history with one
        guilty += rng.sample(able, 2 if len(names) > 3 and rng.random() < 0.15 else 1)
    return guilty


def _away(
    rng: random.Random, honest: list[str], loses: bool, joins: bool
) -> dict[str, tuple[int, int]]:
    """Draw an honest member that is away, and the exchanges between which it is."""
    if joins:
        return {rng.choice(honest): (0, rng.randrange(6, 9))}
    if not loses and rng.random() > 0.15:
        return {}
    if loses:
        return {rng.choice(honest): (rng.choice(UPLOADS), MOST_EXCHANGES)}
    at = rng.randrange(5, 14)
    return {rng.choice(honest): (at, at + rng.choice((0, 3, 20)))}


def _schemes(rng: random.Random, kind: str, calm: bool) -> frozenset[str]:
    """Draw the lies that liars forge."""
    disputes = kind in ("Complaint", "Finding", "Examine")
    often = {"spoil": 1.0 if disputes else 0.3, "hide": 0.25, "complain": 0.08, "deal": 0.08}
    often |= {"commit": 0.3, "fail": 0.04, "salt": 0.12, "parts": 0.1}
    schemes = {name for name, share in often.items() if rng.random() < share}
    needed = {"Complaint": {"complain"}, "Failed": {"fail"}}.get(kind, set())
    return frozenset() if calm else frozenset(schemes - UNLESS.get(kind, set()) | needed)


# --- the liars ------------------------------------------------------------------------------------


class Upload:
    """A party's upload of a sum, as the coordinator received it."""

    def __init__(self, frame: Frame) -> None:
        self.head, self.bulk, self.seed = frame.head, frame.bulk, bytes(16)


@dataclass
class Schemes:
    """Consistent lies, for which a liar uses its own keys."""

    scenario: Scenario
    rng: random.Random
    pilot: BarePilot
    uploads: dict[int, dict[str, Upload]] = field(default_factory=lambda: defaultdict(dict))
    forged: dict[int, tuple[str, Upload, dict[str, bytes]]] = field(default_factory=dict)
    totals: dict[str, Frame] = field(default_factory=dict)  # the last that each member received
    halved: bool = False  # True if a half was false: those masks stay in the sum, as a liar's value
    salted: set[str] = field(default_factory=set)  # whose masks got false salts: so if it is lost

    def lie(self, sender: str, receiver: str, message: Message, data: bytes) -> tuple[str, Change]:
        """Return the name of a lie and what is sent instead; "": the frame is not changed."""
        for name, change in self._lies(sender, receiver, message, data):
            if name in self.scenario.schemes and self.rng.random() < 0.6:
                return name, change()
        return "", None

    def _lies(
        self, sender: str, receiver: str, message: Message, data: bytes
    ) -> Iterator[tuple[str, Callable[[], Change]]]:
        keys = self.scenario.keys().get(sender)
        masked = self.scenario.mode in MASKED
        match message:
            case SumInput() if data and keys is not None and self.scenario.mode != "none":
                yield "spoil", lambda: self._spoil(keys, message, data)
                if masked:
                    yield "salt", lambda: self._salt(keys, message, data)
                    yield "parts", lambda: self._parts(message, data)
            case Finding() if data:
                yield (
                    "hide",
                    lambda: self.rng.choice(
                        ((message, b""), None, (Failed(RESTARTED), b""), (message, data[:-1]))
                    ),
                )
            case Ready(offer=Offer()) | UnmaskShares(offer=Offer()) if masked:
                yield "deal", lambda: self._deal(sender, message, data)
            case Total() if data and masked:
                yield "spoil", lambda: self._change_total(message, data)
            case Unmask() if message.sum - 1 in self.uploads:
                yield "commit", lambda: self._commit(message)
            case Examine() if message.sum in self.forged:
                yield "commit", lambda: self._show(message, data)
        if sender != COORDINATOR and not isinstance(message, Ready | Complaint):
            yield "fail", self._fail
        if sender in self.totals and not isinstance(message, Complaint | Finding | Ready):
            total = self.totals.pop(sender)
            yield (
                "complain",
                lambda: (Complaint(total.head, self.rng.choice((0, 0, 1))), total.bulk),
            )

    def _fail(self) -> Change:
        """Claim that this party cannot go on, or cannot use the keys of another."""
        code = self.rng.choice(("cohort", "crypto", RESTARTED, "too-few-parties", "tamper"))
        about = self.rng.choice((*self.scenario.members, "", "", ""))
        return Failed(code, about), b""

    def _spoil(self, keys: PartyKeys, message: SumInput, data: bytes) -> Change:
        """Add 1 to a slot of a part that was tagged before."""
        place = self._place(message)
        at = self.rng.randrange(message.segments[place].slots)
        return self._resealed(keys, message, data, place, (at, 1), ())

    def _salt(self, keys: PartyKeys, message: SumInput, data: bytes) -> Change:
        """Sign another salt of the masks with one peer, or with itself, and tag it."""
        place, me = self._place(message), keys.identity.name
        segment, numbers = message.segments[place], sorted(self.scenario.members)
        victim = self.rng.choice((me, *self.scenario.names))
        self.salted.add(victim)
        stream = StreamId(self._run(me).link.run.hex(), segment.key.hex(), message.sum)
        new = Salt(self.rng.randbytes(32), (victim,))
        tag, modulus = 0, COHORT.modulus
        for salt, sign in ((new, 1), *((one, -1) for one in segment.salts if victim in one.peers)):
            salts = {numbers.index(victim) + 1: salt.digest}
            bond = tags.bonds(keys.tag_key, numbers.index(me) + 1, salts, modulus, stream)
            tag += sign * bond
        kept = tuple(
            Salt(one.digest, peers)
            for one in segment.salts
            if (peers := tuple(peer for peer in one.peers if peer != victim))
        )
        change = segment.slots - 1, tag % modulus
        return self._resealed(keys, message, data, place, change, (*kept, new))

    def _parts(self, message: SumInput, data: bytes) -> Change:
        """Contribute a part twice, or omit one."""
        parts = cut(data, [segment.size for segment in message.segments])
        pairs = zip(message.segments, parts, strict=True)
        signed = [structs.replace(one, digest=wire.digest(part)) for one, part in pairs]
        place = self._place(message)
        segments = (*signed, signed[place])
        if omits := len(signed) > 1 and self.rng.random() < 0.5:
            segments = (*signed[:place], *signed[place + 1 :])
        parts = [*parts[:place], *parts[place + 1 :]] if omits else [*parts, parts[place]]
        return structs.replace(message, segments=segments), b"".join(parts)

    def _place(self, message: SumInput) -> int:
        return self.rng.choice([n for n, segment in enumerate(message.segments) if segment.size])

    def _run(self, name: str) -> BareRun:
        return next(run for member, run in reversed(self.pilot.runs) if member == name)

    def _resealed(
        self,
        keys: PartyKeys,
        message: SumInput,
        data: bytes,
        place: int,
        change: tuple[int, int],
        salts: tuple[Salt, ...],
    ) -> Change:
        """Add a number to one slot of a part; replace its salts, if there are new ones."""
        parts = cut(data, [segment.size for segment in message.segments])
        segment, sealed = message.segments[place], message.audience != Audience.HOST
        sealed = sealed and self.scenario.mode == "he+secagg" and keys.cohort is not None
        count = segment.slots
        if sealed and keys.cohort is not None:
            slots = secret.open(keys.cohort, to_parts(parts[place], count), count)
        else:
            slots = to_slots(parts[place], count)
        at, plus = change
        slots[at] = (slots[at] + np.uint64(plus)) % np.uint64(COHORT.modulus)
        if sealed and keys.cohort is not None:
            parts[place] = from_parts(secret.seal(keys.cohort, slots))
        else:
            parts[place] = from_slots(slots)
        if segment.digest:
            segment = structs.replace(segment, digest=wire.digest(parts[place]))
        segment = structs.replace(segment, salts=salts or segment.salts)
        segments = (*message.segments[:place], segment, *message.segments[place + 1 :])
        return structs.replace(message, segments=segments), b"".join(parts)

    def _deal(self, sender: str, message: Ready | UnmaskShares, data: bytes) -> Change:
        """Deal another share to a victim, sealed to it and with a fitting digest."""
        keys: Any = self._run(sender).session._sums._offered  # type: ignore[attr-defined]
        offer, victims = message.offer, set(self.scenario.names) - {sender}
        victim = self.rng.choice(sorted(victims))
        if keys is None or offer is None or sender == HOST or victim not in offer.shares:
            return message, data
        sizes = masking.SHARE_BYTES, masking.SHARE_BYTES, masking.HALF_BYTES
        held = tuple(self.rng.randbytes(size) for size in sizes)
        if self.rng.random() < 0.7:
            held = (*held[:2], masking.half(keys._mask_seed, keys.numbers[victim]))
        else:
            self.halved = True
        deal = keys._deal(sender, victim, held)
        clear = structs.replace(offer, deals={**offer.deals, victim: deal})
        sealed = keys.channels[victim].seal(
            offer.public + b"".join(held), keys._about(sender, victim, clear)
        )
        lie = structs.replace(clear, shares={**offer.shares, victim: sealed})
        return structs.replace(message, offer=lie), data

    def _change_total(self, message: Total, data: bytes) -> Change:
        """Change a part of a total, and its digest."""
        parts = cut(data, message.sizes)
        place = self.rng.choice([place for place, part in enumerate(parts) if part])
        at, part = self.rng.randrange(0, len(parts[place])), parts[place]
        parts[place] = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
        digests = message.digests and tuple(wire.digest(part) for part in parts)
        return structs.replace(message, digests=digests), b"".join(parts)

    def _commit(self, message: Unmask) -> Change:
        """Commit to an upload of an earlier sum, or of another sender's making."""
        number = message.sum
        if number not in self.forged:
            here = {p: self.uploads[number].get(p) for p in message.survivors}
            inputs = {party: wire.digest(of.head) for party, of in here.items() if of is not None}
            victim = self.rng.choice(sorted(self.uploads[number - 1]))
            older = self.uploads[number - 1][victim]
            self.forged[number] = victim, older, {**inputs, victim: wire.digest(older.head)}
        return structs.replace(message, inputs=digest_inputs(self.forged[number][2])), b""

    def _show(self, message: Examine, data: bytes) -> Change:
        """Show the upload that was committed to."""
        victim, older, inputs = self.forged[message.sum]
        if message.inputs:
            message = structs.replace(message, inputs=inputs)
            if message.who == victim:
                message = structs.replace(message, input=older.head)
        elif message.who == victim:
            return structs.replace(message, head=older.head, seed=older.seed), older.bulk
        return message, data


@dataclass
class Adversary:
    """The hub between the coordinator and the hospitals, on which the liars sit."""

    scenario: Scenario
    pilot: BarePilot
    coverage: Counter[str]
    made: list[int] = field(default_factory=list)  # numbers of the changes that were made
    shown: list[tuple[str, Frame]] = field(
        default_factory=list
    )  # frames of the coordinator, by receiver
    sent: dict[str, list[Frame]] = field(default_factory=lambda: defaultdict(list))  # by sender
    sums = exchanges = 0
    _count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.scenario.seed + 1)
        self.seen: dict[type, list[tuple[Message, bytes]]] = defaultdict(list)
        self.mutator = Mutator(self.rng, (*self.scenario.members, COORDINATOR), self.coverage)
        self.schemes = Schemes(self.scenario, self.rng, self.pilot)
        self.leader: Any = None
        self._altered: dict[bytes, bytes] = {}  # uploads of liars, by the digest of honest ones
        self._crashes = self.scenario.crash

    def connected(self) -> frozenset[str]:
        """Return the connected members; those that were away return."""
        self.exchanges += 1  # a gathering without members also costs time
        self._require_end()
        self._come_and_go()
        return self.pilot.connected()

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Carry frames; those of liars may be changed. Answers arrive in a random order."""
        self.exchanges += 1
        self._require_end()
        self._come_and_go()
        self._learn_seeds()
        liar = COORDINATOR in self.scenario.liars and self.sums >= self.scenario.after
        if liar and len(frames) > 1 and self._chance(self.scenario.rate / 2):
            frames = self._exchanged(frames)
        out = {}
        for party, frame in frames.items():
            sent = self._pass(COORDINATOR, party, frame)
            if sent is not None:
                out[party] = sent
                self.shown.append((party, sent))
        answers = list(self.pilot.exchange(out, deadline))
        self.rng.shuffle(answers)
        self._count_sums(answers)
        for party, answer in answers:
            if party in out:
                self._note_total(party, out[party])
            given = self._pass(party, COORDINATOR, answer)
            if given is None:
                continue
            self._note_answer(party, given)
            yield party, given
            if party in self.scenario.liars and self._chance(0.05):
                yield party, given

    def _require_end(self) -> None:
        if self.exchanges > MOST_EXCHANGES:
            raise AssertionError("this pilot does not end")

    def _come_and_go(self) -> None:
        for name, (gone, back) in self.scenario.away.items():
            if gone <= self.exchanges < back:
                self.pilot.down.add(name)
            elif self.exchanges >= back and (name in self.pilot.down or self.exchanges == back):
                self.pilot.processes[name].close()
                self.pilot.start(name, wiped=name in self.scenario.wiped)
        if self._crashes and self.exchanges >= self._crashes:
            self._crashes = 0
            raise Crash

    def _learn_seeds(self) -> None:
        """Read the seeds of self masks that the coordinator has recovered."""
        coordinator = getattr(self.leader, "_coordinator", None)
        sent = getattr(coordinator, "_sent", None)
        if sent is None:
            return
        for party, seed in sent.seeds.items():
            if party in self.schemes.uploads[sent.number]:
                self.schemes.uploads[sent.number][party].seed = seed

    def _count_sums(self, answers: list[tuple[str, Frame]]) -> None:
        kinds = [type(wire.peek(frame.head).message) for _, frame in answers]
        self.sums += SumInput in kinds

    def _note_total(self, party: str, frame: Frame) -> None:
        try:
            message = wire.peek(frame.head).message
        except SecureFLError:
            return
        if isinstance(message, Total) and party in self.scenario.liars:
            self.schemes.totals[party] = frame

    def _note_answer(self, party: str, frame: Frame) -> None:
        self.sent[party].append(frame)
        try:
            message = wire.peek(frame.head).message
        except SecureFLError:
            return  # a change that nobody can decode
        if isinstance(message, SumInput):
            self.schemes.uploads[message.sum][party] = Upload(frame)

    def _pass(self, sender: str, receiver: str, frame: Frame) -> Frame | None:
        """Carry one frame of a sender, changed if the sender lies."""
        envelope = wire.peek(frame.head)
        message, data = envelope.message, frame.bulk
        same = self.seen[type(message)]
        earlier = same[-MOST_SEEN:]
        same.append((message, data))
        if sender not in self.scenario.liars or self.sums < self.scenario.after:
            return frame
        if isinstance(message, Finding) and (shown := self._altered.get(wire.digest(data))):
            data, frame = shown, self._signed(sender, frame, envelope, message, shown)
        self.mutator.heads = [frame.head for frames in self.sent.values() for frame in frames[-3:]]
        changed = self._changed(sender, receiver, envelope, data, earlier)
        if changed is frame or changed is False:
            return frame
        self._count += 1
        only = self.scenario.only
        if only is not None and self._count not in only:
            return frame
        self.made.append(self._count)
        if changed is None:
            return None
        sent = self._signed(sender, frame, *changed)
        if isinstance(message, SumInput):
            self._altered[wire.digest(data)] = sent.bulk  # an inquiry is shown the same
        return sent

    def _changed(
        self,
        sender: str,
        receiver: str,
        envelope: Envelope,
        data: bytes,
        earlier: list[tuple[Message, bytes]],
    ) -> Any:
        """Return another envelope and bulk, None if the frame is dropped, or False."""
        message: Message = envelope.message
        kind, name = self.scenario.target
        lie, change = self.schemes.lie(sender, receiver, message, data)
        if lie:
            self.coverage[f"({lie})"] += 1
            if change is None:
                return None
            message, data = change
            if kind != type(message).__name__ or self._chance(0.2):
                return envelope, message, data
        others = [one for one, _ in earlier]
        if kind == "Envelope" and self._chance(0.15):
            value = self.mutator.other(getattr(envelope, name))
            self.coverage[f"Envelope.{name}"] += value != getattr(envelope, name)
            return structs.replace(envelope, **{name: value}), message, data, False
        if name == BULK and kind == type(message).__name__ and self._chance(0.8):
            return self._twice(envelope, message, self.mutator.bulk(message, data), others)
        if name != BULK and self.mutator.places(message, self.scenario.target):
            if self._chance(0.8):
                message = self.mutator.change(message, others, self.scenario.target)
                return self._twice(envelope, message, data, others)
        early = type(message).__name__ in BEFORE and kind not in BEFORE  # it would only end the run
        if early or not self._chance(self.scenario.rate):
            return False
        return self._at_random(envelope, data, earlier)

    def _twice(
        self, envelope: Envelope, message: Message, data: bytes, others: list[Message]
    ) -> tuple[Envelope, Message, bytes]:
        """Change another field, too, in some messages."""
        if not self._chance(SECOND):
            return envelope, message, data
        if data and self._chance(0.5):
            return envelope, message, self.mutator.bulk(message, data)
        return envelope, self.mutator.change(message, others), data

    def _at_random(
        self, envelope: Envelope, data: bytes, earlier: list[tuple[Message, bytes]]
    ) -> Any:
        message, kind = envelope.message, self.rng.random()
        if kind < 0.08:
            self.coverage["(dropped)"] += 1
            return None
        if kind < 0.2:
            self.coverage["(replayed)"] += 1
            any_kind = [one for seen in self.seen.values() for one in seen[-MOST_SEEN:]]
            return envelope, *self.rng.choice(earlier if earlier and kind < 0.17 else any_kind)
        if kind < 0.3 and data:
            return envelope, message, self.mutator.bulk(message, data)
        return envelope, self.mutator.change(message, [one for one, _ in earlier]), data

    def _signed(
        self,
        sender: str,
        frame: Frame,
        envelope: Envelope,
        message: Message,
        data: bytes,
        pinned: bool = True,
    ) -> Frame:
        """Sign a changed frame with the sender's key."""
        if pinned:
            size, digest = len(data), wire.digest(data)
            envelope = structs.replace(envelope, message=message, size=size, digest=digest)
        identity = self.pilot.coordinator
        if sender != COORDINATOR:
            identity = self.scenario.keys()[sender].identity
        try:
            return wire.encode(envelope, data, identity.sign)
        except (SecureFLError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
            return frame

    def _exchanged(self, frames: Mapping[str, Frame]) -> dict[str, Frame]:
        """Exchange the messages of two receivers."""
        one, other = self.rng.sample(sorted(frames), 2)
        self._count += 1
        only = self.scenario.only
        if only is not None and self._count not in only:
            return dict(frames)
        self.made.append(self._count)
        self.coverage["(exchanged between peers)"] += 1
        swapped = dict(frames)
        for to, of in ((one, other), (other, one)):
            envelope, source = wire.peek(frames[to].head), wire.peek(frames[of].head)
            swapped[to] = self._signed(
                COORDINATOR, frames[to], envelope, source.message, frames[of].bulk
            )
        return swapped

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share


# --- one scenario ---------------------------------------------------------------------------------


@dataclass
class Outcome:
    """One pilot under attack."""

    scenario: Scenario
    pilot: BarePilot
    adversary: Adversary
    results: Results
    errors: list[BaseException] = field(default_factory=list)  # of the coordinator
    violations: list[str] = field(default_factory=list)


def attack(scenario: Scenario, coverage: Counter[str] | None = None) -> Outcome:
    """Run a scenario and list the violations."""
    from tests.support.adversary_rules import violations

    shm = Path("/dev/shm")  # noqa: S108 - checkpoints of a few bytes, deleted at once
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        outcome = _led(scenario, Counter() if coverage is None else coverage, Path(folder))
        outcome.violations += violations(outcome)
    return outcome


def _led(scenario: Scenario, coverage: Counter[str], folder: Path) -> Outcome:
    """Lead the runs of a scenario to their ends."""
    results, host = Results(), HOST if scenario.host else None
    noise = NOISE if scenario.noise else None
    protection = ProtectionSettings(mode=scenario.mode, bits=16, min_cohort=2, noise=noise)
    algorithm: Algorithm = FedAvg(rounds=ROUNDS)
    if scenario.tiers or scenario.codebook:
        algorithm = codebook_of(scenario) if scenario.codebook else InclusiveFL(rounds=ROUNDS)
    plans = [
        plan_of(algorithm, protection=protection, run=RunSettings(name=name, seed=seed))
        for seed, name in enumerate(("run", "other")[: 1 + scenario.again])
    ]
    programs = {name: program_of(scenario, name, results) for name in scenario.members}
    pilot = BarePilot(folder, plans[0], scenario.keys(), host, programs)
    outcome = Outcome(scenario, pilot, Adversary(scenario, pilot, coverage), results)
    for plan in plans:
        pilot.plan = plan
        for _ in range(2):  # once more after a crash of the coordinator's process
            try:
                outcome.adversary.leader = pilot.lead(outcome.adversary)
                outcome.adversary.leader.run()
            except SecureFLError as error:
                outcome.errors.append(error)
            except Crash:
                continue
            except Exception as error:
                outcome.violations.append(f"the coordinator crashed: {error!r}")
            break
    return outcome


def shrink(scenario: Scenario) -> Scenario:
    """Omit changes as long as the scenario still fails."""
    only = frozenset(attack(scenario).adversary.made)
    for one in sorted(only):
        if attack(replace(scenario, only=only - {one})).violations:
            only -= {one}
    return replace(scenario, only=only)
