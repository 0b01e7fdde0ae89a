"""What every step of a coordinator is made of: it collects answers, then replies to all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from secure_fl.coordinator.resume import OpenedSums
from secure_fl.errors import Disagreement
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import Declare, FromCoordinator, FromParty, Offer, SumId, SumInput
from secure_fl.protocol.ports import NewTotal, Offered


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
class StepContext:
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
    again: tuple[OpenedSums, ...] = ()  # the sums that are repeated from there on, and over whom
    at: SumId | None = None  # the sum that this step belongs to, as the parties count
    offered: Offered | None = None  # keys for the next sum that arrived in this step

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.heard: list[str] = []

    def add(self, party: str, message: FromParty, bulk: bytes) -> None:
        """Take one party's message."""
        if isinstance(message, Declare | SumInput):
            if self.at not in (None, message.at):
                raise Disagreement("the parties are in different sums", party=party)
            self.at = message.at
        self.take(party, message, bulk)
        self.heard.append(party)

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        """Look at one message (nothing to look at by default)."""

    def reply(self, members: tuple[str, ...]) -> Reply | None:
        """The answer to the members that are left; None ends the run."""
        raise AssertionError("every step answers")  # pragma: no cover - the table below is closed


def offers_to(member: str, offers: Mapping[str, Offer]) -> dict[str, Offer]:
    """The other parties' keys for one member, with the shares that are sealed to it."""
    return {
        sender: Offer(offer.public, {member: offer.shares[member]})
        for sender, offer in offers.items()
        if member in offer.shares
    }
