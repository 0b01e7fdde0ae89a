"""Steps between sums: the start of a session, values passed on, agreement and round ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import structs

from secure_fl.coordinator.blame import Inquest
from secure_fl.coordinator.resume import continuation, require_evidence
from secure_fl.coordinator.sum_steps import (
    ConfirmStep,
    Reply,
    RevealStep,
    Step,
    StepContext,
    SumStep,
    check_offer,
    offers_to,
)
from secure_fl.errors import (
    CohortError,
    Disagreement,
    TamperError,
    TooFewParties,
    UnusableKeys,
    WireError,
)
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.ports import OfferedKeys


class ReadyStep(Step):
    """Collects the parties' saved rounds, and replies with the round after which all continue."""

    collects = messages.Ready
    answers: dict[str, messages.Ready]

    def receive(self, party: str, message: messages.Ready, bulk: bytes) -> None:
        self.newest[party] = max(message.checkpoints, default=0)
        context = self.context
        total = context.total_for(messages.Audience.PARTIES, context.offered)
        if total.masked or message.offer:
            check_offer(party, message.offer, context.members, context.rules.host)
        self.answers[party] = message

    def reply(self, members: tuple[str, ...]) -> Reply:
        rules, named = self.context.rules, self.context.named
        offers = {party: ready.offer for party, ready in self.answers.items() if ready.offer}
        ready = {m: _without(self.answers[m], named) for m in members}
        after, self.newcomers, self.to_repeat = continuation(ready, rules.host, rules.threshold)
        require_evidence({m: self.answers[m] for m in members}, named, self.to_repeat)
        self.round = after + 1
        self.behind = parties_behind(ready, after)
        self.offered = OfferedKeys(self.context.members, offers, 1)
        new = self.newcomers
        begin = {m: messages.Begin(after, members, offers_to(m, offers), new) for m in members}
        return Reply(begin, newcomers=new)


def parties_behind(ready: Mapping[str, messages.Ready], after: int) -> tuple[str, ...]:
    """Return the parties without a later round, if others lose more than one round by that."""
    newest = {member: max(saved.checkpoints, default=0) for member, saved in ready.items()}
    if max(newest.values(), default=0) - after <= 1:
        return ()
    return tuple(sorted(member for member, round in newest.items() if round <= after))


def _without(ready: messages.Ready, named: frozenset[str]) -> messages.Ready:
    """Take convicted parties out of a party's notes: sums are repeated without their inputs."""
    opened = tuple(
        (round, number, tuple(party for party in parties if party not in named))
        for round, number, parties in ready.opened
    )
    return structs.replace(ready, opened=opened)


MOST_NAMES = frames.MAX_HEAD // 4  # characters of the names that all members declare


class DeclareStep(Step):
    """Collects the names that each party contributes to or reads, and replies with all of them."""

    collects = messages.Declare
    answers: dict[str, messages.Declare]

    def receive(self, party: str, message: messages.Declare, bulk: bytes) -> None:
        names = (*message.names, *message.reads)
        if len({*names}) < len(names):  # every name costs work at all parties
            raise WireError("a party declares a name twice", party=party, field="names")
        if sum(map(len, names)) * len(self.context.members) > MOST_NAMES:
            raise WireError("a party declares more names than one table holds", party=party)
        self.answers[party] = message

    def reply(self, members: tuple[str, ...]) -> Reply:
        host = self.context.rules.host
        declared = {member: self.answers[member] for member in members}
        # All members get the same table of all names: with different tables, masks do not cancel.
        owners = _by_name({m: of.names for m, of in declared.items() if m != host})
        readers = _by_name({m: of.reads for m, of in declared.items()})
        readers = {name: parties for name, parties in readers.items() if name in owners}
        unscaled = {name for of in declared.values() for name in of.unscaled if name in owners}
        table = messages.Owners(owners, readers, tuple(sorted(unscaled)))
        return Reply(dict.fromkeys(members, table))


def _by_name(names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Invert party -> names to name -> parties, in order of the parties."""
    parties: dict[str, tuple[str, ...]] = {}
    for party, declared in names.items():
        for name in declared:
            parties[name] = (*parties.get(name, ()), party)
    return parties


class RelayStep(Step):
    """Collects sealed values, and passes them on to all members."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.values: dict[str, bytes] = {}

    def receive(self, party: str, message: Any, bulk: bytes) -> None:
        if bulk:
            self.values[party] = bulk

    def reply(self, members: tuple[str, ...]) -> Reply:
        senders = tuple(m for m in members if m in self.values)
        if not senders:
            raise CohortError("no party sent the value that all parties wait for")
        bulk = Bulk.of(b"".join(self.values[s] for s in senders))
        message = messages.Relayed(senders, tuple(len(self.values[s]) for s in senders))
        return Reply(dict.fromkeys(members, message), dict.fromkeys(members, bulk))


class BroadcastStep(RelayStep):
    """Passes on the host's value."""

    collects = messages.Broadcast

    def receive(self, party: str, message: Any, bulk: bytes) -> None:
        if bool(bulk) != (party == self.context.rules.host):
            raise WireError("the host sends the value of a broadcast, and nobody else", party=party)
        super().receive(party, message, bulk)


class ShareStep(RelayStep):
    """Passes on the values of all parties."""

    collects = messages.Share

    def receive(self, party: str, message: Any, bulk: bytes) -> None:
        if not bulk:  # the others would count a member less than the coordinator does
            raise WireError("a party shares no value", party=party)
        super().receive(party, message, bulk)


class AgreeStep(Step):
    """Collects fingerprints of shared state; stops the run and names who differs if they differ."""

    collects: ClassVar[type] = messages.Agree

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.fingerprints: dict[bytes, list[str]] = {}
        self.proofs: dict[str, bytes] = {}

    def receive(self, party: str, message: messages.Agree | messages.Handover, bulk: bytes) -> None:
        if message.fingerprint is not None and message.proof is not None:  # no newcomer
            self.fingerprints.setdefault(message.fingerprint, []).append(party)
            self.proofs[party] = message.proof

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.require_one()
        return Reply(dict.fromkeys(members, messages.Agreed({m: self.proofs[m] for m in members})))

    def require_one(self) -> None:
        """Raise Disagreement if the parties have different states."""
        if len(self.fingerprints) > 1:
            camps = sorted(self.fingerprints.values(), key=len)
            raise Disagreement(
                "state that must be equal everywhere differs: "
                + " against ".join("{" + ", ".join(sorted(camp)) + "}" for camp in camps),
                fix="compare settings, labels, models and library versions of these parties",
                party=camps[0][0] if len(camps[0]) == 1 < len(camps[1]) else None,
            )


class HandoverStep(AgreeStep):
    """Collects the state for newcomers, sealed by its first holder, and proofs of all holders."""

    collects = messages.Handover

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.states: dict[str, bytes] = {}

    def receive(self, party: str, message: messages.Agree | messages.Handover, bulk: bytes) -> None:
        holds = party not in (*self.context.newcomers, self.context.rules.host)
        if holds != (message.fingerprint is not None and message.proof is not None):
            what = "the holders of a round vouch for its state, and nobody else"
            raise WireError(what, party=party)
        super().receive(party, message, bulk)
        if holds:
            self.states[party] = bulk

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.require_one()
        donor = next((member for member in members if member in self.states), "")
        state = Bulk.of(self.states.get(donor, b""))  # all others send none, unless they lie
        if not state.data:
            asked = self.context.members
            if donor and {*asked[: asked.index(donor)]} <= {*members}:  # nobody before it was lost
                raise UnusableKeys((donor,), "this one should hand over its state, and sent none")
            raise TooFewParties(
                "the party that should hand over the state was lost",
                fix="resume the run again; nothing was changed",
            )
        message, newcomers = messages.HandedOver(members, self.proofs), {*members} - {*self.states}
        return Reply(dict.fromkeys(members, message), dict.fromkeys(newcomers, state))


class BoundaryStep(Step):
    """Waits until all parties have saved the round."""

    collects = messages.Boundary

    def receive(self, party: str, message: messages.Boundary, bulk: bytes) -> None:
        if self.round not in (None, message.round + 1):
            raise Disagreement("the parties are in different rounds", party=party)
        self.round, self.newest[party] = message.round + 1, message.round

    def reply(self, members: tuple[str, ...]) -> Reply:
        return Reply(dict.fromkeys(members, messages.Continue(members)))


class FindingStep(Step):
    """Collects the members' verdicts in an inquiry, and the upload that was asked for."""

    collects = messages.Finding

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        if context.inquest is None:
            raise CohortError("verdicts arrived although no inquiry is open")
        self.inquest: Inquest = context.inquest

    def receive(self, party: str, message: messages.Finding, bulk: bytes) -> None:
        self.inquest.note(party, message.against, bulk)

    def reply(self, members: tuple[str, ...]) -> Reply:
        inquest = self.inquest
        inquest.require_no_verdict(members)
        if (shown := inquest.next(members)) is not None:
            message, upload = shown[0], Bulk.of(shown[1])
            others = messages.Examine("", b"", sum=message.sum)  # there is nothing for them
            readers = {m for m in members if m in inquest.readers}
            return Reply(
                {m: message if m in readers else others for m in members},
                dict.fromkeys(readers, upload),
                inquest=inquest,
            )
        inquest.require_shown(*inquest.silent)
        raise TamperError(
            "a sum failed, and the uploads that were shown convict nobody",
            fix="the coordinator sent the parties different data before, or a party lied about it: "
            "compare their logs",
            reason="wrong-sum",
        )


class DoneStep(Step):
    """Waits until the programs of all parties have ended."""

    collects = messages.Done

    def reply(self, members: tuple[str, ...]) -> None:
        """End the run."""
        return None


STEPS: Mapping[type, type[Step]] = {
    step.collects: step
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
