"""What every step of a coordinator is made of: it collects answers, then replies to all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from secure_fl.protocol import NewTotal, Offered
from secure_fl.wire import Bulk, FromCoordinator, FromParty, Offer


@dataclass(frozen=True, slots=True)
class Rules:
    """What the coordinator enforces; parties enforce the same on their own."""

    host: str | None
    min_cohort: int
    threshold: int
    deadline: float = 3600.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the coordinator says next, to whom, and the sum it is in the middle of."""

    messages: Mapping[str, FromCoordinator]
    bulks: Mapping[str, Bulk] = field(default_factory=dict)
    pending: Step | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """What every step may look at while answers arrive."""

    rules: Rules
    members: tuple[str, ...]
    new_total: NewTotal
    offered: Offered  # the keys for the next sum
    pending: Step | None


class Step:
    """Collects one kind of message from every party, then answers all of them."""

    takes: ClassVar[type]
    round: int | None = None  # the round that begins with the answer to this step
    newcomers: tuple[str, ...] = ()  # who joins with the answer to this step
    repeats: bool = False  # whether sums of that round were opened before, over these members
    offered: Offered | None = None  # keys for the next sum that arrived in this step

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.heard: list[str] = []

    def add(self, party: str, message: FromParty, bulk: bytes) -> None:
        """Take one party's message."""
        self.heard.append(party)
        self.take(party, message, bulk)

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        """Look at one message (nothing to look at by default)."""

    def reply(self, members: tuple[str, ...]) -> Reply | None:
        """The answer to the members that are left; None ends the run."""
        raise AssertionError("every step answers")  # pragma: no cover - the table below is closed


def offers_to(member: str, offers: Mapping[str, Offer]) -> dict[str, Offer]:
    """What of the other parties' offers is meant for this one."""
    return {
        sender: Offer(offer.public, {member: offer.shares[member]})
        for sender, offer in offers.items()
        if member in offer.shares
    }
