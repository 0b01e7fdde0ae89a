"""A federation of four parties in this process that only sums, under a coordinator that may lie.

Sessions, links, coordinator and sums are the installed program's. A `Trick` lies where they meet:
it has the coordinator's signing key, sees and changes every message to a party before it is
signed, chooses what is added, and changes every total before it is sent. One hospital conspires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from secure_fl.federation.assembly import COORDINATOR, PartyContext, connect, join_run
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame, Link, SurvivorLog, digest, encode, peek
from secure_fl.protocol.messages import Audience, Segment, Unmask, UnmaskShares
from secure_fl.protocol.ports import BlindTotal, OfferedKeys, TotalFor
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold


class ChangedSum(Sum):
    """A sealed sum that is shifted and scaled without its key."""

    __slots__ = ()

    def add_plain(self, slots: Slots) -> None:
        """Add integers mod the modulus in the clear."""
        modulus = np.uint64(COHORT.modulus)
        self.subtract_plain((modulus - slots) % modulus)

    def scale(self, factor: int) -> None:
        """Multiply by a non-zero integer: add the sum to itself, and negate it."""
        itself = self.result()
        for _ in range(abs(factor) - 1):
            self.add(itself)
        if factor < 0:
            for part in self._parts:
                self._evaluator.negate_inplace(part)


class Trick:
    """An honest coordinator; its children are not."""

    def conspire(self, keys: Any, run: bytes) -> None:
        """What a hospital hands over: the keys of a party, of this run."""

    def tell(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """What a party is told, and sent, in place of this."""
        return message, bulk

    def insist(self, party: str, answer: Any) -> Any:
        """A further message that makes a party go on after this answer; None: none is needed."""
        return None

    def deliver(self, party: str, message: Any, frame: Frame) -> Frame:
        """The frame that arrives in place of this one."""
        return frame

    def counts(self, sender: str, segments: Sequence[Segment]) -> bool:
        """Whether a party's input is added."""
        return True

    def answer(self, totals: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """What is sent as the totals of a sum, by segment."""
        return totals


@dataclass
class LyingEngine:
    """Carries frames as the trick wants them; it can sign as the coordinator does."""

    sessions: Mapping[str, Session]
    links: Mapping[str, Link]  # the coordinator's ends
    trick: Trick
    refused: dict[str, str] = field(default_factory=dict)  # by whom, with which code
    stories: dict[str, SurvivorLog] = field(
        default_factory=dict
    )  # what each is told of who is in sums

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver what the trick makes of each frame, and what it adds to an answer."""
        for party in sorted(frames):
            answer = self._answer(party, self._told(party, frames[party]))
            more = self.trick.insist(party, peek(answer.head).message)
            if more is not None:
                answer = self._answer(party, self.links[party].pack(more))
            yield party, answer

    def _answer(self, party: str, frame: Frame) -> Frame:
        try:
            return self.sessions[party].step(frame)
        except SecureFLError as error:  # the frame itself was refused, before any message was read
            self.refused.setdefault(party, error.code)
            raise

    def _told(self, party: str, frame: Frame) -> Frame:
        envelope = peek(frame.head)
        message, bulk = self.trick.tell(party, envelope.message, frame.bulk)
        if isinstance(message, Unmask):  # it signs what it says, as it would
            story = self.stories.setdefault(party, SurvivorLog(envelope.run))
            message = story.sign(self.links[party].me, message)
        if message is not envelope.message or bulk is not frame.bulk:
            about = {"message": message, "size": len(bulk), "digest": digest(bulk)}
            frame = encode(structs.replace(envelope, **about), bulk, self.links[party].me.sign)
        return self.trick.deliver(party, message, frame)


@dataclass
class LyingTotals:
    """The coordinator's half of sums, with the trick's hand on it."""

    honest: TotalFor
    trick: Trick

    def new(self, audience: Audience, offered: OfferedKeys) -> BlindTotal:
        """A sum in which the trick decides what counts and what is said."""
        return _Total(self.honest(audience, offered), self.trick)


class _Total:
    def __init__(self, honest: BlindTotal, trick: Trick) -> None:
        self._honest, self._trick = honest, trick
        self.check, self.masked, self.lost = honest.check, honest.masked, honest.lost
        self.self_mask_seeds, self.forget = honest.self_mask_seeds, honest.forget

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        if self._trick.counts(sender, segments):
            self._honest.add(sender, segments, data)

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        return self._trick.answer(dict(self._honest.result(survivors, shares)))


PARTIES = ("east", "north", "south", "west")
COLLUDER = PARTIES[1]  # within the bound of four parties that need three
SUMS, SIZE, BOUND = 2, 20, 16.0
CLOSE = 0.01  # of a right result: 16-bit values

Summed = tuple[tuple[str, ...], dict[str, list[float]]]  # over whom, and what


@dataclass(slots=True)
class Outcome:
    """What the parties got, and who noticed something."""

    results: dict[str, list[Summed]] = field(default_factory=dict)
    noticed: dict[str, str] = field(default_factory=dict)  # who -> the error's code

    @property
    def accepted(self) -> bool:
        """Whether any party took something wrong for its result."""
        return any(not right(found) for found in self.results.values())

    @property
    def clean(self) -> bool:
        """Whether every party has the right sums, and nobody complains."""
        return set(self.results) == set(PARTIES) and not self.accepted and not self.noticed


@dataclass(frozen=True, slots=True)
class Setting:
    """How the small federation is protected, with keys that many runs share."""

    mode: Protection
    keys: Mapping[str, PartyKeys]
    link: type[Link] = Link

    @classmethod
    def of(cls, mode: Protection, link: type[Link] = Link) -> Setting:
        """Draw keys for this mode."""
        return cls(mode, make_keys(mode, PARTIES, None), link)


def given(party: str, index: int) -> dict[str, float]:
    """The constants that a party's vectors hold in a sum; the last party has no "some"."""
    rank = PARTIES.index(party) + 1
    return {"all": rank + index} | ({"some": rank / 2.0} if party != PARTIES[-1] else {})


def right(found: Sequence[Summed]) -> bool:
    """Whether these are the true sums over all parties."""
    if len(found) != SUMS:
        return False
    for index, (survivors, values) in enumerate(found):
        for name, vector in values.items():
            total = sum(given(p, index).get(name, 0.0) for p in PARTIES)
            if len(vector) != SIZE or max(abs(value - total) for value in vector) > CLOSE:
                return False
        if survivors != PARTIES:
            return False
    return True


def play(setting: Setting, trick: Trick) -> Outcome:
    """Run the federation under a trick."""
    out = Outcome()
    rules = CoordinatorRules(None, 2, default_threshold(len(PARTIES)))
    protection = ProtectionSettings(mode=setting.mode, bits=16, min_cohort=2)
    wires = connect(setting.keys, link=setting.link)

    async def program(cohort: Cohort) -> None:
        out.results[cohort.me] = await _sums(cohort)

    sessions = {
        name: join_run(program, PartyContext(setting.keys[name], link, rules, protection))
        for name, link in wires.parties.items()
    }
    totals = LyingTotals(
        blind_totals(
            protection, PARTIES, host=rules.host, threshold=rules.threshold, run=wires.run
        ),
        trick,
    )
    engine = LyingEngine(sessions, wires.coordinator, trick)
    trick.conspire(setting.keys[COLLUDER], wires.run)
    lax = replace(rules, min_cohort=1)  # its own checks are not what parties rely on
    try:
        lead_run(wires.coordinator, engine, lax, protection, totals=totals.new).run()
    except SecureFLError as error:
        out.noticed[COORDINATOR] = error.code
    refused = {n: s.error.code for n, s in sessions.items() if s.error and not s.stopped}
    # the coordinator only stops because a party did
    out.noticed = refused | engine.refused or out.noticed
    return out


async def _sums(cohort: Cohort) -> list[Summed]:
    found: list[Summed] = []
    for index in range(SUMS):
        mine = given(cohort.me, index)
        values = {name: np.full(SIZE, value, np.float32) for name, value in mine.items()}
        opened = await cohort.sum(values, partial=True, bound=BOUND)
        found.append((cohort.survivors, {name: v.tolist() for name, v in opened.items()}))
    return found
