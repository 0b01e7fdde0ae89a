"""Steps of the coordinator: the base class, and the steps of a sum.

A step collects one kind of message from all parties, then replies to all. `party.summing` describes
a whole sum, and docs/protocol.md 4.6 to 4.11 its messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from secure_fl.coordinator.blame import Inquest, SentSum
from secure_fl.coordinator.resume import OpenedSums
from secure_fl.crypto.blame.evidence import digest_inputs
from secure_fl.errors import (
    CohortError,
    Disagreement,
    Misconduct,
    TooFewParties,
    UnusableKeys,
    WireError,
)
from secure_fl.protocol.frames import Bulk, digest
from secure_fl.protocol.messages import (
    Audience,
    Confirm,
    Confirmed,
    FromCoordinator,
    Offer,
    SumId,
    SumInput,
    Total,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import BlindTotal, OfferedKeys, TotalFor


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """Limits that the coordinator enforces; parties enforce the same on their own."""

    host: str | None
    min_cohort: int
    threshold: int
    deadline: float = 3600.0
    goes_back: bool = True  # more than one round; across sites, an operator has to allow it
    spares: bool = False  # drop a party that fails or contradicts the others, and continue the run


class Reply(NamedTuple):
    """The coordinator's next messages, by party, and the state that waits for their answers."""

    messages: Mapping[str, FromCoordinator]
    bulks: Mapping[str, Bulk] = {}
    waiting_sum: Step | None = None
    inquest: Inquest | None = None
    sent: SentSum | None = None  # the sum that this reply opens, for an inquiry
    newcomers: tuple[str, ...] = ()  # members that join with this reply


class StepContext(NamedTuple):
    """State of the run that a step may read while answers arrive."""

    rules: CoordinatorRules
    members: tuple[str, ...]
    total_for: TotalFor
    offered: OfferedKeys  # the keys for the next sum
    waiting_sum: Step | None  # contributed to, and not yet unmasked
    inquest: Inquest | None = None
    named: frozenset[str] = frozenset()  # parties that were convicted
    newcomers: tuple[str, ...] = ()  # members that joined in this session
    parties: frozenset[str] = frozenset()  # of the session, also those that were lost


class Step:
    """Collects one kind of message from every party, then replies to all of them."""

    collects: ClassVar[type]
    round: int | None = None  # the round that begins with the reply
    newcomers: tuple[str, ...] = ()  # parties that join with the reply
    behind: tuple[str, ...] = ()  # parties for whom the others go back more than one round
    to_repeat: tuple[OpenedSums, ...] = ()  # the sums that are repeated from that round on
    at: SumId | None = None  # the sum of this step, as the parties count
    offered: OfferedKeys | None = None  # keys for the next sum that arrived in this step

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.heard: list[str] = []  # parties whose answers count
        self.heads: dict[str, bytes] = {}  # the signed heads of their frames
        self.answers: dict[str, Any] = {}  # their messages, all of the kind that the step collects
        self.newest: dict[str, int] = {}  # the newest round that each has saved, in some steps

    def receive(self, party: str, message: Any, bulk: bytes) -> None:
        """Check and store one answer of the kind that this step collects."""
        self.answers[party] = message

    def remove_outliers(self) -> set[str]:
        """Remove and return the parties whose answers do not fit those of most others."""
        return set()

    def reply(self, members: tuple[str, ...]) -> Reply | None:
        """Return the messages to the remaining members; None ends the run."""
        raise AssertionError("every step answers")  # pragma: no cover - the table is closed


def offers_to(member: str, offers: Mapping[str, Offer]) -> dict[str, Offer]:
    """Return the other parties' keys for one member, with the shares that are sealed to it."""
    return {
        sender: Offer(
            offer.public,
            {member: offer.shares[member]},
            offer.seed,
            {holder: deal for holder, deal in offer.deals.items() if holder == member},
            offer.statement,
        )
        for sender, offer in offers.items()
        if member in offer.shares
    }


def check_offer(
    party: str, offer: Offer | None, members: Collection[str], host: str | None
) -> None:
    """Refuse a missing offer, or one that lacks a member: the others could not go on."""
    if offer is None:
        raise WireError("this party offers no keys", party=party)
    holders = set[str]() if party == host else set(members) - {host}
    if set(offer.shares) != set(members) - {party} or set(offer.deals) != holders:
        raise WireError("this party offers no keys or shares to a member", party=party)


_Layout = tuple[int, tuple[str, ...]]  # slots and owners of a segment


class SumStep(Step):
    """Collects the uploads of a sum, adds them as they arrive, and replies with the survivors."""

    collects = SumInput

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.total: BlindTotal | None = None
        self.audience = Audience.PARTIES
        self.keys: dict[str, tuple[bytes, ...]] = {}  # the segments that each party reads
        self.given: dict[str, tuple[bytes, ...]] = {}  # the segments that each contributes to
        self.owners: dict[bytes, tuple[str, ...]] = {}  # by segment; (): all parties
        self.layouts: dict[bytes, dict[_Layout, set[str]]] = {}  # by segment: who describes it so
        self.survivors: tuple[str, ...] = ()
        self.more: bool | None = None

    def receive(self, party: str, message: SumInput, bulk: bytes) -> None:
        if self.total is None:
            self.audience = message.audience
            self.total = self.context.total_for(self.audience, self.context.offered)
        if self.audience != message.audience:
            raise Disagreement("the parties name different audiences for one sum", party=party)
        self.keys[party] = tuple(s.key for s in message.segments)
        self.given[party] = tuple(s.key for s in message.segments if s.size)
        if party != self.context.rules.host:  # which does not know the parts
            self.more = message.more if self.more is None else self.more
            if self.more != message.more:
                other = "only some parties announce another part of this sum"
                raise Disagreement(other, party=party)
        self.total.admit(party, message)
        if self.total.masked:
            self._require_possible_owners(party, message)
        described = [(s.key, (s.slots, s.owners)) for s in message.segments if self.total.masked]
        if all(set(self.layouts.get(key, {of})) == {of} for key, of in described):
            self.total.add(party, message.segments, bulk)
        for key, of in described:
            self.layouts.setdefault(key, {}).setdefault(of, set()).add(party)
        self.owners |= {s.key: s.owners for s in message.segments}

    def _require_possible_owners(self, party: str, message: SumInput) -> None:
        """Refuse a part that no honest party uploads or reads: of strangers, or of too few."""
        # Lost members are among the owners of a sum's second part.
        rules, parties = (
            self.context.rules,
            self.context.parties | self.context.offered.offers.keys(),
        )
        for segment in message.segments:
            owners = set(segment.owners) - {rules.host}
            if owners and (not owners <= parties or len(owners) < rules.min_cohort):
                what = "a party lists a part of a sum with owners that it cannot have"
                raise WireError(what, party=party, field="owners")

    def remove_outliers(self) -> set[str]:
        """Remove a minority whose segments have too few contributors: it may have another model.

        A segment's key depends on the contributor's history, so their values are in no sum of the
        others. Without a clear majority nobody is removed, since nobody can tell who is wrong.
        """
        self._require_one_layout()
        least = self.context.rules.min_cohort
        here, holders = set(self.heard) - {self.context.rules.host}, dict[bytes, set[str]]()
        for party in here:
            for key in self.given[party]:
                holders.setdefault(key, set()).add(party)
        few = set[str]()
        for key, contributors in holders.items():
            expected = here.intersection(self.owners[key] or here)
            if len(contributors) < min(least, len(expected) / 2):
                few |= contributors
        if not few or 2 * len(few) >= len(here) or self.total is None:
            return set()
        theirs = {key for party in few for key in self.given[party]}
        if any(holders[key] - few for key in theirs):
            lacking = (here.intersection(self.owners[key] or here) - holders[key] for key in theirs)
            # It is no accident: another history changes all keys. But half of the members may lie.
            if len(few) == 1 and 2 * max(map(len, lacking)) > len(here):
                raise Misconduct(
                    "this party contributes a part that no other party has", party=min(few)
                )
            return set()
        self.total.forget(theirs)
        self.heard = [party for party in self.heard if party not in few]
        return few

    def _require_one_layout(self) -> None:
        """Refuse a sum of which members describe a part differently: its key binds the layout."""
        for layouts in self.layouts.values():
            if len(layouts) > 1:  # most members decide, or nobody
                most = max(layouts, key=lambda of: len(layouts[of]))
                decided = 2 * len(layouts[most]) > len(self.heard)
                named = {p for of in layouts if of != most or not decided for p in layouts[of]}
                raise UnusableKeys(
                    tuple(sorted(named)),
                    "some of these lay out a part of a sum differently than others do",
                )

    def reply(self, members: tuple[str, ...]) -> Reply:
        assert self.total is not None  # noqa: S101 - set by the first answer
        self._check_contributors(members)
        self.survivors = members
        if self.total.masked:
            # Includes parties lost since the keys came: all others masked with their keys, too.
            here = set(members)
            self.total.require_consistent(here)
            dropped = tuple(m for m in sorted(self.context.offered.offers) if m not in here)
            number, inputs = self.context.offered.number, digest_inputs(self.inputs(members))
            lists = Unmask(members, dropped, sum=number, inputs=inputs)
            return Reply(dict.fromkeys(members, lists), waiting_sum=self)
        return self.totals(members, members, {}, {})

    def inputs(self, members: tuple[str, ...]) -> dict[str, bytes]:
        """Return the digest of each member's upload."""
        return {member: digest(self.heads[member]) for member in members}

    def totals(
        self,
        survivors: tuple[str, ...],
        members: tuple[str, ...],
        offers: Mapping[str, Offer],
        shares: Mapping[str, UnmaskShares],  # by holder
        *,
        withheld: bool = False,  # the parties refuse to open the sum over these survivors
    ) -> Reply:
        """Return the totals of each party's own segments; a host sum goes to the host only."""
        assert self.total is not None  # noqa: S101 - set by the first answer
        result = {} if withheld else self.total.result(survivors, shares)
        for_host, more = self.audience == Audience.HOST, bool(self.more)
        rules, number = self.context.rules, self.context.offered.number if self.total.masked else 0
        totals: dict[str, Total] = {}
        bulks: dict[str, Bulk] = {}
        shared: dict[tuple[bytes, ...], Bulk] = {}
        several = number and len(result) > 1  # then an inquiry is about one vector of them
        digest_of = {key: digest(data) for key, data in result.items()} if several else {}
        for member in members:
            reads = not withheld and (member == self.context.rules.host) == for_host
            keys = self.keys[member] if reads else ()
            if keys not in shared:  # one bulk serves all parties with the same segments
                shared[keys] = Bulk.of(b"".join(result[k] for k in keys))
            sizes = tuple(len(result[k]) for k in keys)
            lost = self.total.lost(keys) if keys and number else {}
            digests = tuple(digest_of[k] for k in keys) if several and len(keys) > 1 else ()
            totals[member] = Total(
                survivors, members, sizes, offers_to(member, offers), more, lost, number, digests
            )
            bulks[member] = shared[keys]
        seeds = self.total.self_mask_seeds() if number and not withheld else {}
        inputs = self.inputs(survivors) if seeds else {}
        offers_of_sum = self.context.offered.offers
        sent = SentSum(self.heads, seeds, inputs, offers_of_sum, number, rules.host)
        return Reply(totals, bulks, sent=sent if seeds else None)

    def _check_contributors(self, members: tuple[str, ...]) -> None:
        """Refuse a segment with fewer contributors than `min_cohort`."""
        rules = self.context.rules
        counts: dict[bytes, int] = {}
        for member in members:
            for key in self.keys[member] if member != rules.host else ():
                counts[key] = counts.get(key, 0) + (key in self.given[member])
        if unknown := set(self.keys.get(rules.host or "", ())) - set(counts):
            raise Disagreement(
                f"the host expects {len(unknown)} sums that no party contributes to",
                fix="host and parties must name the same values with the same shapes",
                party=rules.host,
            )
        for key in (key for key, count in counts.items() if count < rules.min_cohort):
            self._require_lost_owners(key, set(members) - {rules.host})
        small = sorted(count for count in counts.values() if count < rules.min_cohort)
        if small:
            raise TooFewParties(
                f"a sum would be over {small[0]} of {len(members)} parties; "
                f"min_cohort is {rules.min_cohort}",
                fix="either parties dropped out, or they disagree on names, sizes or contributors, "
                "or the coordinator sent them different data before",
            )

    def _require_lost_owners(self, key: bytes, here: set[str]) -> None:
        """Refuse a part that some list, and that its other owners who are here omit."""
        readers = {party for party in here if key in self.keys[party]}
        owners = here.intersection(self.owners[key] or here) - readers
        if owners:  # most members decide, or nobody
            sides = (readers, owners), (owners, readers)
            both = readers | owners
            named = next((one for one, other in sides if 2 * len(other) > len(here)), both)
            raise UnusableKeys(
                tuple(sorted(named)),
                "some of these list a part of a sum that others of them, its owners, omit",
            )


class ConfirmStep(Step):
    """Collects signatures of the survivor lists after a dropout, and passes all of them on."""

    collects = Confirm
    answers: dict[str, Confirm]

    def reply(self, members: tuple[str, ...]) -> Reply:
        message = Confirmed({party: of.signature for party, of in self.answers.items()})
        return Reply(dict.fromkeys(members, message), waiting_sum=self.context.waiting_sum)


class RevealStep(Step):
    """Collects the shares that remove a sum's masks, and replies with the total."""

    collects = UnmaskShares
    answers: dict[str, UnmaskShares]

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        if not isinstance(context.waiting_sum, SumStep):
            raise CohortError("shares arrived although no sum is waiting for them")
        self.sum, self.survivors = context.waiting_sum, context.waiting_sum.survivors

    def receive(self, party: str, message: UnmaskShares, bulk: bytes) -> None:
        host = self.context.rules.host
        if party != host and self.sum.total is not None:
            self.sum.total.check(party, message, self.survivors)
        check_offer(party, message.offer, self.survivors, host)
        self.answers[party] = message

    def reply(self, members: tuple[str, ...]) -> Reply:
        offers = {party: of.offer for party, of in self.answers.items() if of.offer}
        self.offered = OfferedKeys(self.survivors, offers, self.context.offered.number + 1)
        shares = {p: of for p, of in self.answers.items() if p != self.context.rules.host}
        # The majority decides: one party alone can neither withhold a sum nor force it open.
        revealing = [party for party, of in shares.items() if of.seeds]
        withheld = 2 * len(revealing) < len(shares)
        if not withheld and len(revealing) < min(self.context.rules.threshold, len(shares)):
            raise UnusableKeys(
                tuple(sorted(shares.keys() - revealing)),
                "too few shares are left to open a sum: these withhold theirs, and others do not",
            )
        return self.sum.totals(self.survivors, members, offers, shares, withheld=withheld)
