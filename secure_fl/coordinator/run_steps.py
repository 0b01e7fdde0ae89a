"""The kinds of step a coordinator knows: what it collects in each, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import structs

from secure_fl.coordinator.blame import FindingStep
from secure_fl.coordinator.resume import continuation
from secure_fl.coordinator.sum_steps import (
    ConfirmStep,
    Reply,
    RevealStep,
    Step,
    StepContext,
    SumStep,
    offers_to,
)
from secure_fl.errors import CohortError, Disagreement, TooFewParties, WireError
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import FromParty, Offer
from secure_fl.protocol.ports import Offered


class ReadyStep(Step):
    """Everybody is there: go on after the last round that all, or enough of them, have."""

    takes = messages.Ready

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.ready: dict[str, messages.Ready] = {}
        self.offers: dict[str, Offer] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.Ready)  # noqa: S101 - by the table below
        self.ready[party] = message
        self.newest[party] = max(message.checkpoints, default=0)
        if message.offer:
            self.offers[party] = message.offer

    def reply(self, members: tuple[str, ...]) -> Reply:
        rules, named = self.context.rules, self.context.named
        ready = {m: _without(self.ready[m], named) for m in members}
        after, self.newcomers, self.to_repeat = continuation(ready, rules.host, rules.threshold)
        self.round = after + 1
        self.lacking = lacking(ready, after)
        self.offered = Offered(self.context.members, self.offers, 1)
        return Reply(
            {
                m: messages.Begin(after, members, offers_to(m, self.offers), self.newcomers)
                for m in members
            }
        )


def lacking(ready: Mapping[str, messages.Ready], after: int) -> tuple[str, ...]:
    """Who has no later round than this one, if others would lose more than one by it."""
    newest = {member: max(said.checkpoints, default=0) for member, said in ready.items()}
    if max(newest.values(), default=0) - after <= 1:
        return ()
    return tuple(sorted(member for member, round in newest.items() if round <= after))


def _without(ready: messages.Ready, named: frozenset[str]) -> messages.Ready:
    """Its notes, as those read who were convicted since: a sum is repeated without their input."""
    opened = tuple(
        (round, number, tuple(party for party in who if party not in named))
        for round, number, who in ready.opened
    )
    return structs.replace(ready, opened=opened)


class DeclareStep(Step):
    """Who contributes which name, and who reads it."""

    takes = messages.Declare

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.declared: dict[str, messages.Declare] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.Declare)  # noqa: S101
        names = (*message.names, *message.reads)
        if len({*names}) < len(names):  # the work for all grows with each
            raise WireError("a party declares a name twice", party=party, field="names")
        self.declared[party] = message

    def reply(self, members: tuple[str, ...]) -> Reply:
        host = self.context.rules.host
        said = {member: self.declared[member] for member in members}
        # All are told the same, of all names: masks of who was told something else do not cancel.
        owners = _by_name({m: one.names for m, one in said.items() if m != host})
        readers = _by_name({m: one.reads for m, one in said.items()})
        readers = {name: parties for name, parties in readers.items() if name in owners}
        unscaled = {name for one in said.values() for name in one.unscaled if name in owners}
        table = messages.Owners(owners, readers, tuple(sorted(unscaled)))
        return Reply(dict.fromkeys(members, table))


def _by_name(names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Name -> the parties that declared it, in their order."""
    found: dict[str, tuple[str, ...]] = {}
    for party, declared in names.items():
        for name in declared:
            found[name] = (*found.get(name, ()), party)
    return found


class RelayStep(Step):
    """Passes sealed values on: the host's to everyone, or everyone's to everyone."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.values: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        if bulk:
            self.values[party] = bulk

    def reply(self, members: tuple[str, ...]) -> Reply:
        senders = tuple(m for m in members if m in self.values)
        if not senders:
            raise CohortError("nobody sent the value that everybody waits for")
        bulk = Bulk.of(b"".join(self.values[s] for s in senders))
        message = messages.Relayed(senders, tuple(len(self.values[s]) for s in senders))
        return Reply(dict.fromkeys(members, message), dict.fromkeys(members, bulk))


class BroadcastStep(RelayStep):
    """The host's value."""

    takes = messages.Broadcast


class ShareStep(RelayStep):
    """Everyone's values."""

    takes = messages.Share


class AgreeStep(Step):
    """Equal fingerprints, or the run stops and says who differs."""

    takes: ClassVar[type] = messages.Agree

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.fingerprints: dict[bytes, list[str]] = {}
        self.proofs: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.Agree)  # noqa: S101
        self.fingerprints.setdefault(message.fingerprint, []).append(party)
        self.proofs[party] = message.proof

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.require_one()
        return Reply(dict.fromkeys(members, messages.Agreed({m: self.proofs[m] for m in members})))

    def require_one(self) -> None:
        """Stop if there are several states."""
        if len(self.fingerprints) > 1:
            camps = sorted(self.fingerprints.values(), key=len)
            raise Disagreement(
                "state that must be equal everywhere differs: "
                + " against ".join("{" + ", ".join(sorted(camp)) + "}" for camp in camps),
                fix="compare settings, labels, models and library versions of these parties",
                party=camps[0][0] if len(camps[0]) == 1 < len(camps[1]) else None,
            )


class HandoverStep(AgreeStep):
    """Holders prove what they have; the newcomers are given it, sealed, by the first of them."""

    takes = messages.Handover

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.waiting: list[str] = []
        self.state = Bulk.of()

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.Handover)  # noqa: S101
        if message.fingerprint is None or message.proof is None:
            self.waiting.append(party)
            return
        self.fingerprints.setdefault(message.fingerprint, []).append(party)
        self.proofs[party] = message.proof
        if bulk:
            self.state = Bulk.of(bulk)

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.require_one()
        if not self.state.data:
            raise TooFewParties(
                "who should have handed over the state was lost on the way",
                fix="resume the run again; nothing was changed",
            )
        message = messages.HandedOver(members, self.proofs)
        return Reply(
            dict.fromkeys(members, message), {m: self.state for m in self.waiting if m in members}
        )


class BoundaryStep(Step):
    """Everybody has saved the round."""

    takes = messages.Boundary

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.Boundary)  # noqa: S101
        if self.round not in (None, message.round + 1):
            raise Disagreement("the parties are in different rounds", party=party)
        self.round, self.newest[party] = message.round + 1, message.round

    def reply(self, members: tuple[str, ...]) -> Reply:
        return Reply(dict.fromkeys(members, messages.Continue(members)))


class DoneStep(Step):
    """Everybody's program has ended."""

    takes = messages.Done

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
        HandoverStep,
        BoundaryStep,
        FindingStep,
        DoneStep,
    )
}
