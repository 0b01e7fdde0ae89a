"""A federation of four parties in this process that only sums, under a malicious coordinator.

Sessions, links, coordinator and sums are the installed program's. A `HonestCoordinator` or a
malicious child of it acts between them. It has the coordinator's signing key, sees and may change
every message to a party before it is signed, chooses which inputs are added, and may change every
total before it is sent. One hospital colludes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.packing import Slots
from secure_fl.crypto.sealing.public import Sum
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import SecureFLError
from secure_fl.federation.assembly import COORDINATOR, PartyContext, connect, join_run, make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame, Link, SurvivorLog, digest, encode, peek
from secure_fl.protocol.messages import Audience, Segment, Unmask, UnmaskShares
from secure_fl.protocol.ports import BlindTotal, OfferedKeys
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold


class ChangedSum(Sum):
    """A sealed sum that is shifted and scaled without its key."""

    __slots__ = ()

    def add_plain(self, slots: Slots) -> None:
        """Add integers mod the modulus, without a key."""
        modulus = np.uint64(COHORT.modulus)
        self.subtract_plain((modulus - slots) % modulus)

    def scale(self, factor: int) -> None:
        """Multiply by a non-zero integer: add the sum to itself, or negate it."""
        itself = self.result()
        for _ in range(abs(factor) - 1):
            self.add(itself)
        if factor < 0:
            for part in self._parts:
                self._evaluator.negate_inplace(part)


class HonestCoordinator:
    """A coordinator that changes nothing. Its children override the methods where they cheat."""

    def receive_keys(self, keys: Any, run: bytes) -> None:
        """Receive the keys of the colluding hospital, of this run."""

    def rewrite_message(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """Return the message and bytes that a party gets instead of these."""
        return message, bulk

    def follow_up(self, party: str, answer: Any) -> Any:
        """Return a further message that makes a party continue after this answer; None: none."""
        return None

    def replace_frame(self, party: str, message: Any, frame: Frame) -> Frame:
        """Return the frame that arrives instead of this one."""
        return frame

    def includes(self, sender: str, segments: Sequence[Segment]) -> bool:
        """Decide if a party's input is added."""
        return True

    def rewrite_totals(self, totals: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the totals of a sum to send, by segment."""
        return totals


@dataclass
class MaliciousEngine:
    """An engine whose frames the coordinator may change and sign again."""

    sessions: Mapping[str, Session]
    links: Mapping[str, Link]  # the coordinator's ends
    coordinator: HonestCoordinator
    refused: dict[str, str] = field(default_factory=dict)  # the error's code, by party
    stories: dict[str, SurvivorLog] = field(default_factory=dict)  # each party's survivor lists

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver the changed frames, and follow-ups to answers."""
        for party in sorted(frames):
            answer = self._answer(party, self._changed(party, frames[party]))
            more = self.coordinator.follow_up(party, peek(answer.head).message)
            if more is not None:
                answer = self._answer(party, self.links[party].pack(more))
            yield party, answer

    def _answer(self, party: str, frame: Frame) -> Frame:
        try:
            return self.sessions[party].step(frame)
        except SecureFLError as error:  # the frame itself was refused, before any message was read
            self.refused.setdefault(party, error.code)
            raise

    def _changed(self, party: str, frame: Frame) -> Frame:
        envelope = peek(frame.head)
        message, bulk = self.coordinator.rewrite_message(party, envelope.message, frame.bulk)
        if isinstance(message, Unmask):  # its survivor list is signed, as a real one
            story = self.stories.setdefault(party, SurvivorLog(envelope.run))
            message = story.sign(self.links[party].me, message)
        if message is not envelope.message or bulk is not frame.bulk:
            about = {"message": message, "size": len(bulk), "digest": digest(bulk)}
            frame = encode(structs.replace(envelope, **about), bulk, self.links[party].me.sign)
        return self.coordinator.replace_frame(party, message, frame)


class _MaliciousTotal:
    """The coordinator's half of a sum, where it may change inputs and totals."""

    def __init__(self, honest: BlindTotal, coordinator: HonestCoordinator) -> None:
        self._honest, self._coordinator = honest, coordinator
        self.check, self.masked, self.lost = honest.check, honest.masked, honest.lost
        self.self_mask_seeds, self.forget = honest.self_mask_seeds, honest.forget
        self.admit = honest.admit

    def require_consistent(self, survivors: Collection[str]) -> None:
        """It omits inputs itself, and lets the parties find it."""

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        if self._coordinator.includes(sender, segments):
            self._honest.add(sender, segments, data)

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        return self._coordinator.rewrite_totals(dict(self._honest.result(survivors, shares)))


PARTIES = ("east", "north", "south", "west")
COLLUDER = PARTIES[1]  # within the bound of four parties with a threshold of three
SUMS, SIZE, BOUND = 2, 20, 16.0
CLOSE = 0.01  # of a right result: 16-bit values

Summed = tuple[tuple[str, ...], dict[str, list[float]]]  # survivors and sums


@dataclass(slots=True)
class FederationOutcome:
    """The sums that parties accepted, and the errors that they raised."""

    results: dict[str, list[Summed]] = field(default_factory=dict)
    noticed: dict[str, str] = field(default_factory=dict)  # the error's code, by party

    @property
    def accepted(self) -> bool:
        """True if any party accepted a wrong result."""
        return any(not right(sums) for sums in self.results.values())

    @property
    def clean(self) -> bool:
        """True if every party has the right sums, and nobody raised an error."""
        return set(self.results) == set(PARTIES) and not self.accepted and not self.noticed


@dataclass(frozen=True, slots=True)
class FederationSetup:
    """The protection of the small federation, with keys that many runs share."""

    mode: Protection
    keys: Mapping[str, PartyKeys]
    link: type[Link] = Link

    @classmethod
    def of(cls, mode: Protection, link: type[Link] = Link) -> FederationSetup:
        """Draw keys for this mode."""
        return cls(mode, make_keys(mode, PARTIES, None), link)


def inputs_of(party: str, index: int) -> dict[str, float]:
    """Return the constants of a party's vectors in a sum; the last party has no "some"."""
    rank = PARTIES.index(party) + 1
    return {"all": rank + index} | ({"some": rank / 2.0} if party != PARTIES[-1] else {})


def right(sums: Sequence[Summed]) -> bool:
    """Compare with the true sums over all parties."""
    if len(sums) != SUMS:
        return False
    for index, (survivors, values) in enumerate(sums):
        for name, vector in values.items():
            total = sum(inputs_of(p, index).get(name, 0.0) for p in PARTIES)
            if len(vector) != SIZE or max(abs(value - total) for value in vector) > CLOSE:
                return False
        if survivors != PARTIES:
            return False
    return True


def run_federation(setup: FederationSetup, coordinator: HonestCoordinator) -> FederationOutcome:
    """Run the federation under a coordinator."""
    out = FederationOutcome()
    rules = CoordinatorRules(None, 2, default_threshold(len(PARTIES)))
    protection = ProtectionSettings(mode=setup.mode, bits=16, min_cohort=2)
    wires = connect(setup.keys, link=setup.link)

    async def program(cohort: Cohort) -> None:
        out.results[cohort.me] = await _sums(cohort)

    sessions = {
        name: join_run(program, PartyContext(setup.keys[name], link, rules, protection))
        for name, link in wires.parties.items()
    }
    honest = blind_totals(
        protection, PARTIES, host=rules.host, threshold=rules.threshold, run=wires.run
    )

    def totals(audience: Audience, offered: OfferedKeys) -> BlindTotal:
        return _MaliciousTotal(honest(audience, offered), coordinator)

    engine = MaliciousEngine(sessions, wires.coordinator, coordinator)
    coordinator.receive_keys(setup.keys[COLLUDER], wires.run)
    lax = replace(rules, min_cohort=1)  # parties do not rely on the coordinator's own checks
    try:
        lead_run(wires.coordinator, engine, lax, protection, totals=totals).run()
    except SecureFLError as error:
        out.noticed[COORDINATOR] = error.code
    refused = {n: s.error.code for n, s in sessions.items() if s.error and not s.stopped}
    # without a party's error, the coordinator's own counts
    out.noticed = refused | engine.refused or out.noticed
    return out


async def _sums(cohort: Cohort) -> list[Summed]:
    sums: list[Summed] = []
    for index in range(SUMS):
        mine = inputs_of(cohort.me, index)
        values = {name: np.full(SIZE, value, np.float32) for name, value in mine.items()}
        opened = await cohort.sum(values, partial=True, bound=BOUND)
        sums.append((cohort.survivors, {name: v.tolist() for name, v in opened.items()}))
    return sums
