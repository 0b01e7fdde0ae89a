"""What every step of a coordinator is made of: it collects answers, then replies to all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


class Sorted:
    """Offers by receiver: sorted once for all, as most parties have a share for few others."""

    def __init__(self, offers: Mapping[str, Offer]) -> None:
        self._offers = offers
        self._senders: dict[str, list[str]] = {}
        for sender, offer in offers.items():
            for receiver in offer.shares:
                self._senders.setdefault(receiver, []).append(sender)

    def to(self, member: str) -> dict[str, Offer]:
        """What of the other parties' offers is meant for this one."""
        return {
            sender: Offer(offer.public, {member: offer.shares[member]})
            for sender in self._senders.get(member, ())
            for offer in (self._offers[sender],)
        }


@dataclass(frozen=True, slots=True)
class Each(Mapping[str, FromCoordinator]):
    """A message for each member, made when it is sent: all at once they would take long lists."""

    members: tuple[str, ...]
    make: Callable[[str], FromCoordinator]

    def __getitem__(self, member: str) -> FromCoordinator:
        return self.make(member)

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)
