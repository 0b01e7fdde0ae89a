"""The kinds of step a coordinator knows: what it collects in each, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

from secure_fl import wire
from secure_fl.errors import CohortError, Disagreement, TooFewParties
from secure_fl.protocol import Audience, BlindTotal, NewTotal, Offered
from secure_fl.wire import Bulk, FromCoordinator, FromParty, Offer

if TYPE_CHECKING:
    from secure_fl.coordinator import Rules


@dataclass(frozen=True, slots=True)
class Reply:
    """What the coordinator says next, to whom, and the sum it is in the middle of."""

    messages: Mapping[str, FromCoordinator]
    bulks: Mapping[str, Bulk] = field(default_factory=dict)
    pending: SumStep | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """What every step may look at while answers arrive."""

    rules: Rules
    members: tuple[str, ...]
    new_total: NewTotal
    offered: Offered  # the keys for the next sum
    pending: SumStep | None


class Step:
    """Collects one kind of message from every party, then answers all of them."""

    takes: ClassVar[type]
    round: int | None = None  # the round that begins with the answer to this step
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


class ReadyStep(Step):
    """Everybody is there: go on after the last round that all of them have."""

    takes = wire.Ready

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.checkpoints: dict[str, set[int]] = {}
        self.offers: dict[str, Offer] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.Ready)  # noqa: S101 - by the table below
        self.checkpoints[party] = {0, *message.checkpoints}
        if message.offer:
            self.offers[party] = message.offer

    def reply(self, members: tuple[str, ...]) -> Reply:
        after = max(set.intersection(*(self.checkpoints[m] for m in members)))
        self.round = after + 1
        self.offered = Offered(self.answers.members, self.offers, 1)
        return Reply({m: wire.Begin(after, members, offers_to(m, self.offers)) for m in members})


class DeclareStep(Step):
    """Who contributes which name."""

    takes = wire.Declare

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.names: dict[str, tuple[str, ...]] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.Declare)  # noqa: S101
        self.names[party] = message.names

    def reply(self, members: tuple[str, ...]) -> Reply:
        owners: dict[str, list[str]] = {}
        for party in members:
            for name in self.names[party] if party != self.answers.rules.host else ():
                owners.setdefault(name, []).append(party)
        public = {name: tuple(parties) for name, parties in owners.items()}
        return Reply({m: wire.Owners({n: public[n] for n in self.names[m]}) for m in members})


class SumStep(Step):
    """Adds contributions as they arrive."""

    takes = wire.SumInput

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.total: BlindTotal | None = None
        self.audience: Audience = "parties"
        self.keys: dict[str, tuple[bytes, ...]] = {}
        self.survivors: tuple[str, ...] = ()
        self.scales: bool | None = None

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.SumInput)  # noqa: S101
        if self.total is None:
            self.audience = cast(Audience, message.audience)  # wire admits these two only
            self.total = self.answers.new_total(self.audience, self.answers.offered)
        if self.audience != message.audience:
            raise Disagreement("the parties want different audiences for one sum", party=party)
        self.keys[party] = tuple(s.key for s in message.segments)
        if party == self.answers.rules.host:
            return
        self.scales = message.scales if self.scales is None else self.scales
        if self.scales != message.scales:
            raise Disagreement("some parties know the scales of a sum, others do not", party=party)
        self.total.add(party, message.segments, bulk)

    def reply(self, members: tuple[str, ...]) -> Reply:
        assert self.total is not None  # noqa: S101 - set by the first answer
        self._check_contributors(members)
        self.survivors = members
        if self.total.needs_unmasking():
            # Also who was lost since the keys came: everybody masked with everybody's keys.
            dropped = tuple(m for m in sorted(self.answers.offered.offers) if m not in members)
            return Reply({m: wire.Unmask(members, dropped) for m in members}, pending=self)
        return self.totals(members, members)

    def totals(
        self,
        survivors: tuple[str, ...],
        members: tuple[str, ...],
        offers: Mapping[str, Offer] | None = None,
    ) -> Reply:
        """Send each party the totals of its own segments; a host sum goes to the host only."""
        assert self.total is not None  # noqa: S101 - set by the first answer
        result = self.total.result(survivors)
        host = self.answers.rules.host
        shared: dict[tuple[bytes, ...], Bulk] = {}
        messages, bulks = {}, {}
        for member in members:
            keys = self.keys[member] if (member == host) == (self.audience == "host") else ()
            if keys not in shared:  # one bulk serves all parties with the same segments
                shared[keys] = Bulk.of(b"".join(result[k] for k in keys))
            sizes = tuple(len(result[k]) for k in keys)
            messages[member] = wire.Total(
                survivors, members, sizes, offers_to(member, offers or {}), bool(self.scales)
            )
            bulks[member] = shared[keys]
        return Reply(messages, bulks)

    def _check_contributors(self, members: tuple[str, ...]) -> None:
        rules = self.answers.rules
        counts: dict[bytes, int] = {}
        for member in members:
            for key in self.keys[member] if member != rules.host else ():
                counts[key] = counts.get(key, 0) + 1
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
                fix="either parties dropped out, or they disagree on names, sizes or contributors",
            )


class ConfirmStep(Step):
    """Collects signatures under the lists of a sum that lost somebody, and shows them to all."""

    takes = wire.Confirm

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.signatures: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.Confirm)  # noqa: S101
        self.signatures[party] = message.signature

    def reply(self, members: tuple[str, ...]) -> Reply:
        message = wire.Confirmed(self.signatures)
        return Reply(dict.fromkeys(members, message), pending=self.answers.pending)


class RevealStep(Step):
    """Collects the shares that remove the masks of the sum before it."""

    takes = wire.Reveal

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        if answers.pending is None:
            raise CohortError("shares arrived although no sum waits for them")
        self.sum = answers.pending
        self.survivors = answers.pending.survivors
        self.offers: dict[str, Offer] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.Reveal)  # noqa: S101
        if self.sum.total is not None and party != self.answers.rules.host:
            self.sum.total.unmask(party, message)
        if message.offer:
            self.offers[party] = message.offer

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.offered = Offered(self.survivors, self.offers, self.answers.offered.index + 1)
        return self.sum.totals(self.survivors, members, self.offers)


class RelayStep(Step):
    """Passes sealed values on: the host's to everyone, or everyone's to everyone."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.values: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        if bulk:
            self.values[party] = bulk

    def reply(self, members: tuple[str, ...]) -> Reply:
        senders = tuple(m for m in members if m in self.values)
        if not senders:
            raise CohortError("nobody sent the value that everybody waits for")
        bulk = Bulk.of(b"".join(self.values[s] for s in senders))
        message = wire.Relayed(senders, tuple(len(self.values[s]) for s in senders))
        return Reply(dict.fromkeys(members, message), dict.fromkeys(members, bulk))


class BroadcastStep(RelayStep):
    """The host's value."""

    takes = wire.Broadcast


class ShareStep(RelayStep):
    """Everyone's values."""

    takes = wire.Share


class AgreeStep(Step):
    """Equal fingerprints, or the run stops and says who differs."""

    takes = wire.Agree

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self.fingerprints: dict[bytes, list[str]] = {}
        self.proofs: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.Agree)  # noqa: S101
        self.fingerprints.setdefault(message.fingerprint, []).append(party)
        self.proofs[party] = message.proof

    def reply(self, members: tuple[str, ...]) -> Reply:
        if len(self.fingerprints) > 1:
            camps = sorted(self.fingerprints.values(), key=len)
            raise Disagreement(
                "state that must be equal everywhere differs: "
                + " against ".join("{" + ", ".join(sorted(camp)) + "}" for camp in camps),
                fix="compare settings, labels, models and library versions of these parties",
                party=camps[0][0] if len(camps[0]) == 1 else None,
            )
        return Reply(dict.fromkeys(members, wire.Agreed({m: self.proofs[m] for m in members})))


class BoundaryStep(Step):
    """Everybody has saved the round."""

    takes = wire.Boundary

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, wire.Boundary)  # noqa: S101
        if self.round not in (None, message.round + 1):
            raise Disagreement("the parties are in different rounds", party=party)
        self.round = message.round + 1

    def reply(self, members: tuple[str, ...]) -> Reply:
        return Reply(dict.fromkeys(members, wire.Continue(members)))


class DoneStep(Step):
    """Everybody's program has ended."""

    takes = wire.Done

    def reply(self, members: tuple[str, ...]) -> None:
        """Nothing is left to say."""
        return None


STEPS: Mapping[type, type[Step]] = {
    step.takes: step
    for step in (
        ReadyStep,
        DeclareStep,
        SumStep,
        ConfirmStep,
        RevealStep,
        BroadcastStep,
        ShareStep,
        AgreeStep,
        BoundaryStep,
        DoneStep,
    )
}


def open_step(step: Step | None, message: FromParty, answers: Answers, party: str) -> Step:
    """The step that this message belongs to: opened by the first, the same for all others."""
    if step is None:
        if (answers.pending is None) == isinstance(message, wire.Confirm | wire.Reveal):
            raise CohortError("this party did not answer the sum it is in", party=party)
        return STEPS[type(message)](answers)
    if type(message) is not step.takes:
        raise Disagreement(
            f"this party sent {type(message).__name__} where others sent {step.takes.__name__}",
            fix="all parties must run the same algorithm with the same settings",
            party=party,
        )
    return step


def offers_to(member: str, offers: Mapping[str, Offer]) -> dict[str, Offer]:
    """What of the other parties' offers is meant for this one."""
    return {
        sender: Offer(offer.public, {member: offer.shares[member]})
        for sender, offer in offers.items()
        if member in offer.shares
    }
