"""Tools of the attackers: a wire that is listened to, and a coordinator that lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import chisquare

from secure_fl.coordinator.machine import Coordinator
from secure_fl.coordinator.sum_steps import Reply, Step
from secure_fl.crypto.sealing.masking import Slots
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Audience, UnmaskShares
from secure_fl.protocol.ports import BlindTotal, OfferedKeys, TotalFor
from secure_fl.testing.harness import Program

NAMES = ("east", "north", "south", "west")
Lie = Callable[[str, Any], Any]


def summing(values: Mapping[str, Any], times: int = 1, **options: Any) -> Program:
    """A party that sums these values, so many times, and returns all results."""

    async def program(cohort: Cohort) -> Any:
        return [await cohort.sum(values, **options) for _ in range(times)]

    return program


def marked(*, size: int = 4000, **options: Any) -> dict[str, Program]:
    """Parties whose inputs are constants: 1, 2, 3, 4."""
    return {
        name: summing({"x": np.full(size, k, np.float32)}, bound=8.0, **options)
        for k, name in enumerate(NAMES, 1)
    }


@dataclass(frozen=True)
class Heard:
    """One message on the wire."""

    party: str
    direction: str
    message: Any
    bulk: bytes
    size: int
    head: bytes


@dataclass
class Wiretap:
    """An engine that delivers everything and remembers all of it."""

    heard: list[Heard] = field(default_factory=list)
    sessions: Mapping[str, Session] = field(default_factory=dict)

    def __call__(self, sessions: Mapping[str, Session]) -> Wiretap:
        self.sessions = sessions
        return self

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for party, frame in frames.items():
            self._note(party, "in", frame)
            answer = self.sessions[party].step(frame)
            self._note(party, "out", answer)
            yield party, answer

    def of(self, kind: type, party: str | None = None) -> list[Heard]:
        """What was said of this kind (by or to this party)."""
        return [h for h in self.heard if isinstance(h.message, kind) and party in (None, h.party)]

    def _note(self, party: str, direction: str, frame: Frame) -> None:
        message = frames.decode(frame, lambda *_: None).message
        self.heard.append(Heard(party, direction, message, frame.bulk, frame.size, frame.head))


class Liar(Coordinator):
    """A coordinator that tells each party what `lie` makes of the truth; None: nothing at all."""

    def __init__(self, *arguments: Any, lie: Lie) -> None:
        super().__init__(*arguments)
        self._lie = lie

    def _exchange(self, reply: Reply) -> Step:
        said = {party: self._lie(party, message) for party, message in reply.messages.items()}
        messages = {party: message for party, message in said.items() if message is not None}
        return super()._exchange(reply._replace(messages=messages))


def lying(lie: Lie) -> Callable[..., Coordinator]:
    """For `federate(lead=...)`."""
    return lambda *arguments: Liar(*arguments, lie=lie)


def told(kind: type, lie: Lie, to: str | None = None) -> Lie:
    """Lie about messages of this kind, to everybody or to one."""

    def say(party: str, message: Any) -> Any:
        return lie(party, message) if isinstance(message, kind) and to in (None, party) else message

    return say


class Tampering:
    """The coordinator's half of a sum, with a hand on the total before it is sent."""

    def __init__(
        self, honest: BlindTotal, change: Callable[[dict[bytes, bytes]], dict[bytes, bytes]]
    ) -> None:
        self._honest, self._change = honest, change
        self.add, self.check, self.masked = honest.add, honest.check, honest.masked
        self.admit, self.require_consistent = honest.admit, honest.require_consistent
        self.lost, self.self_mask_seeds, self.forget = (
            honest.lost,
            honest.self_mask_seeds,
            honest.forget,
        )

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        return self._change(dict(self._honest.result(survivors, shares)))


def tampering(
    new_total: TotalFor, change: Callable[[dict[bytes, bytes]], dict[bytes, bytes]]
) -> TotalFor:
    """For `federate(new_total=...)`."""

    def make(audience: Audience, offered: OfferedKeys) -> BlindTotal:
        return Tampering(new_total(audience, offered), change)

    return make


def looks_uniform(slots: Slots, modulus: int) -> bool:
    """Chi-square over 16 equal ranges; a uniform vector fails once in a hundred million."""
    counts = np.bincount((slots.astype(object) * 16 // modulus).astype(np.int64), minlength=16)
    return bool(chisquare(counts).pvalue > 1e-8)
