"""What a step of the coordinator is: it collects answers, then replies to all. And those of a sum.

`party.summing` tells the whole story of a sum; rows are those of docs/protocol.md, "A sum".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from secure_fl.coordinator.resume import OpenedSums
from secure_fl.errors import CohortError, Disagreement, TooFewParties
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import (
    Audience,
    Confirm,
    Confirmed,
    FromCoordinator,
    FromParty,
    Offer,
    SumId,
    SumInput,
    Total,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import BlindTotal, Offered, TotalFor

if TYPE_CHECKING:
    from secure_fl.coordinator.blame import Inquest


@dataclass(frozen=True, slots=True)
class Rules:
    """What the coordinator enforces; parties enforce the same on their own."""

    host: str | None
    min_cohort: int
    threshold: int
    deadline: float = 3600.0
    goes_back: bool = True  # more than one round; across sites, an operator has to say so
    spares: bool = False  # the others, where one fails or contradicts them: it is lost, not the run


class Reply(NamedTuple):
    """What the coordinator says next, to whom, and the sum that waits for the answers."""

    messages: Mapping[str, FromCoordinator]
    bulks: Mapping[str, Bulk] = {}
    waiting_sum: Step | None = None
    inquest: Inquest | None = None
    sent: Sent | None = None  # what was sent of the sum that this reply opens


class Sent(NamedTuple):
    """What an inquiry needs of a sum: the heads of all uploads, and seeds of their self masks."""

    heads: Mapping[str, bytes]
    selves: Mapping[str, bytes]


class StepContext(NamedTuple):
    """What every step may look at while answers arrive."""

    rules: Rules
    members: tuple[str, ...]
    total_for: TotalFor
    offered: Offered  # the keys for the next sum
    waiting_sum: Step | None  # contributed to, and not yet unmasked
    inquest: Inquest | None = None  # that members look into
    named: frozenset[str] = frozenset()  # who was convicted before


class Step:
    """Collects one kind of message from every party, then answers all of them."""

    takes: ClassVar[type]
    round: int | None = None  # the round that begins with the answer to this step
    newcomers: tuple[str, ...] = ()  # who joins with the answer to this step
    lacking: tuple[str, ...] = ()  # for whom the others go back more than a round
    to_repeat: tuple[OpenedSums, ...] = ()  # the sums that are repeated from there on
    at: SumId | None = None  # the sum that this step belongs to, as the parties count
    offered: Offered | None = None  # keys for the next sum that arrived in this step

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.heard: list[str] = []
        self.heads: dict[str, bytes] = {}  # of the frames that counted, as they were signed
        self.newest: dict[str, int] = {}  # round that each says it has saved, if this step tells

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        """Look at one message (nothing to look at by default)."""

    def set_apart(self) -> set[str]:
        """Take out those whose answers do not fit to most others', and say who they are."""
        return set()

    def reply(self, members: tuple[str, ...]) -> Reply | None:
        """The answer to the members that are left; None ends the run."""
        raise AssertionError("every step answers")  # pragma: no cover - the table below is closed


def offers_to(member: str, offers: Mapping[str, Offer]) -> dict[str, Offer]:
    """The other parties' keys for one member, with the shares that are sealed to it."""
    return {
        sender: Offer(
            offer.public,
            {member: offer.shares[member]},
            offer.seed,
            {holder: deal for holder, deal in offer.deals.items() if holder == member},
            offer.told,
        )
        for sender, offer in offers.items()
        if member in offer.shares
    }


class SumStep(Step):
    """Row 1 and 2: adds contributions as they arrive, then says who is in the sum."""

    takes = SumInput

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.total: BlindTotal | None = None
        self.audience = Audience.PARTIES
        self.keys: dict[str, tuple[bytes, ...]] = {}  # the sums that each party waits for
        self.given: dict[str, tuple[bytes, ...]] = {}  # and those of them that it contributes to
        self.owners: dict[bytes, tuple[str, ...]] = {}  # of each sum; none: of all parties
        self.survivors: tuple[str, ...] = ()
        self.more: bool | None = None

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, SumInput)  # noqa: S101
        if self.total is None:
            self.audience = message.audience
            self.total = self.context.total_for(self.audience, self.context.offered)
        if self.audience != message.audience:
            raise Disagreement("the parties want different audiences for one sum", party=party)
        self.keys[party] = tuple(s.key for s in message.segments)
        self.given[party] = tuple(s.key for s in message.segments if s.size)
        if party == self.context.rules.host:
            return
        self.more = message.more if self.more is None else self.more
        if self.more != message.more:
            raise Disagreement("some parties go on with a sum, others do not", party=party)
        self.total.add(party, message.segments, bulk)
        self.owners |= {s.key: s.owners for s in message.segments if s.size}

    def set_apart(self) -> set[str]:
        """Take out the few whose sums are over too few: they may have another model.

        All that they gave has keys of its own, so nothing of it is in the others' sums. Where no
        most are alike, nobody is taken out: who is wrong cannot be told.
        """
        least = self.context.rules.min_cohort
        here, holders = set(self.heard) - {self.context.rules.host}, dict[bytes, set[str]]()
        for party in here:
            for key in self.given[party]:
                holders.setdefault(key, set()).add(party)
        few = set[str]()
        for key, those in holders.items():
            due = here.intersection(self.owners[key] or here)
            if len(those) < min(least, len(due) / 2):
                few |= those
        if not few or 2 * len(few) >= len(here) or self.total is None:
            return set()
        theirs = {key for party in few for key in self.given[party]}
        if any(holders[key] - few for key in theirs):
            return set()
        self.total.forget(theirs)
        self.heard = [party for party in self.heard if party not in few]
        return few

    def reply(self, members: tuple[str, ...]) -> Reply:
        assert self.total is not None  # noqa: S101 - set by the first answer
        self._check_contributors(members)
        self.survivors = members
        if self.total.masked:
            # Also who was lost since the keys came: everybody masked with everybody's keys.
            here = set(members)
            dropped = tuple(m for m in sorted(self.context.offered.offers) if m not in here)
            return Reply({m: Unmask(members, dropped) for m in members}, waiting_sum=self)
        return self.totals(members, members, {}, {})

    def totals(
        self,
        survivors: tuple[str, ...],
        members: tuple[str, ...],
        offers: Mapping[str, Offer],
        shares: Mapping[str, UnmaskShares],  # of the parties', by holder
        *,
        withheld: bool = False,  # the parties do not let it be opened over those who are left
    ) -> Reply:
        """Send each party the totals of its own segments; a host sum goes to the host only."""
        assert self.total is not None  # noqa: S101 - set by the first answer
        result = {} if withheld else self.total.result(survivors, shares)
        for_host, more = self.audience == Audience.HOST, bool(self.more)
        number = self.context.offered.number if self.total.masked else 0
        totals: dict[str, Total] = {}
        bulks: dict[str, Bulk] = {}
        shared: dict[tuple[bytes, ...], Bulk] = {}
        for member in members:
            reads = not withheld and (member == self.context.rules.host) == for_host
            keys = self.keys[member] if reads else ()
            if keys not in shared:  # one bulk serves all parties with the same segments
                shared[keys] = Bulk.of(b"".join(result[k] for k in keys))
            sizes = tuple(len(result[k]) for k in keys)
            told, lost = offers_to(member, offers), self.total.lost(keys) if keys and number else {}
            totals[member] = Total(survivors, members, sizes, told, more, lost, number)
            bulks[member] = shared[keys]
        selves = self.total.selves() if number and not withheld else {}
        return Reply(totals, bulks, sent=Sent(self.heads, selves) if selves else None)

    def _check_contributors(self, members: tuple[str, ...]) -> None:
        rules = self.context.rules
        counts: dict[bytes, int] = {}
        for member in members:
            for key in self.keys[member] if member != rules.host else ():
                counts[key] = counts.get(key, 0) + (key in self.given[member])
        if unknown := set(self.keys.get(rules.host or "", ())) - set(counts):
            raise Disagreement(
                f"the host waits for {len(unknown)} sums that no party contributes to",
                fix="host and parties must name the same values with the same shapes",
                party=rules.host,
            )
        small = sorted(count for count in counts.values() if count < rules.min_cohort)
        if small:
            raise TooFewParties(
                f"a sum would be over {small[0]} of {len(members)} parties; "
                f"min_cohort is {rules.min_cohort}",
                fix="either parties dropped out, or they disagree on names, sizes or contributors, "
                "or were sent different things before",
            )


class ConfirmStep(Step):
    """Row 2b: collects signatures under the lists of a sum that lost somebody, for all."""

    takes = Confirm

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.signatures: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, Confirm)  # noqa: S101
        self.signatures[party] = message.signature

    def reply(self, members: tuple[str, ...]) -> Reply:
        message = Confirmed(self.signatures)
        return Reply(dict.fromkeys(members, message), waiting_sum=self.context.waiting_sum)


class RevealStep(Step):
    """Row 2b and 3: collects the shares that remove a sum's masks, and sends the total."""

    takes = UnmaskShares

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        if not isinstance(context.waiting_sum, SumStep):
            raise CohortError("shares arrived although no sum waits for them")
        self.sum = context.waiting_sum
        self.survivors = context.waiting_sum.survivors
        self.offers: dict[str, Offer] = {}
        self.shares: dict[str, UnmaskShares] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, UnmaskShares)  # noqa: S101
        if party != self.context.rules.host and self.sum.total is not None:
            self.sum.total.check(party, message, self.survivors)
            self.shares[party] = message
        if message.offer:
            self.offers[party] = message.offer

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.offered = Offered(self.survivors, self.offers, self.context.offered.number + 1)
        # All alike, but for one that would have it otherwise.
        withheld = 2 * sum(bool(shares.seeds) for shares in self.shares.values()) < len(self.shares)
        return self.sum.totals(self.survivors, members, self.offers, self.shares, withheld=withheld)
