"""What every step of a coordinator is made of: it collects answers, then replies to all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from secure_fl.coordinator.resume import OpenedSums
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import FromCoordinator, FromParty, Offer, SumId
from secure_fl.protocol.ports import Offered, TotalFor


@dataclass(frozen=True, slots=True)
class Rules:
    """What the coordinator enforces; parties enforce the same on their own."""

    host: str | None
    min_cohort: int
    threshold: int
    deadline: float = 3600.0


class Reply(NamedTuple):
    """What the coordinator says next, to whom, and the sum that waits for the answers."""

    messages: Mapping[str, FromCoordinator]
    bulks: Mapping[str, Bulk] = {}
    waiting_sum: Step | None = None


class StepContext(NamedTuple):
    """What every step may look at while answers arrive."""

    rules: Rules
    members: tuple[str, ...]
    total_for: TotalFor
    offered: Offered  # the keys for the next sum
    waiting_sum: Step | None  # contributed to, and not yet unmasked


class Step:
    """Collects one kind of message from every party, then answers all of them."""

    takes: ClassVar[type]
    round: int | None = None  # the round that begins with the answer to this step
    newcomers: tuple[str, ...] = ()  # who joins with the answer to this step
    to_repeat: tuple[OpenedSums, ...] = ()  # the sums that are repeated from there on
    at: SumId | None = None  # the sum that this step belongs to, as the parties count
    offered: Offered | None = None  # keys for the next sum that arrived in this step

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.heard: list[str] = []

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
