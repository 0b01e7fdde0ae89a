"""A lying coordinator: an honest one, and a trick where it meets its parties.

A `Trick` has the coordinator's signing key, sees and changes every message to a party before it is
signed, chooses what is added, and changes every total before it is sent. One hospital conspires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from secure_fl.errors import SecureFLError
from secure_fl.party.session import Session
from secure_fl.protocol.frames import Frame, digest, encode, peek
from secure_fl.protocol.link import Link
from secure_fl.protocol.messages import Segment
from secure_fl.protocol.ports import Audience, BlindTotal, NewTotal, Offered


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
        if message is not envelope.message or bulk is not frame.bulk:
            about = {"message": message, "size": len(bulk), "digest": digest(bulk)}
            frame = encode(structs.replace(envelope, **about), bulk, self.links[party].me.sign)
        return self.trick.deliver(party, message, frame)


@dataclass
class LyingTotals:
    """The coordinator's half of sums, with the trick's hand on it."""

    honest: NewTotal
    trick: Trick

    def new(self, audience: Audience, offered: Offered) -> BlindTotal:
        """A sum in which the trick decides what counts and what is said."""
        return _Total(self.honest(audience, offered), self.trick)


class _Total:
    def __init__(self, honest: BlindTotal, trick: Trick) -> None:
        self._honest, self._trick = honest, trick
        self.needs_unmasking, self.unmask = honest.needs_unmasking, honest.unmask

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        if self._trick.counts(sender, segments):
            self._honest.add(sender, segments, data)

    def result(self, survivors: Sequence[str]) -> Mapping[bytes, bytes]:
        return self._trick.answer(dict(self._honest.result(survivors)))
