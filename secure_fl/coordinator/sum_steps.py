"""The steps of a sum: contributions, confirmations if somebody is gone, and shares.

`party.summing` tells the whole story; rows are those of docs/protocol.md, "A sum".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secure_fl.coordinator.step import Reply, Rules, Step, StepContext, offers_to
from secure_fl.crypto import public
from secure_fl.crypto.blind_sum import ProtectedTotal
from secure_fl.crypto.clear_sum import ClearTotal
from secure_fl.crypto.scheme import COHORT
from secure_fl.errors import CohortError, Disagreement, TooFewParties
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Bulk
from secure_fl.protocol.messages import Audience, FromParty, Offer
from secure_fl.protocol.ports import BlindTotal, Offered, TotalFor, require_masks
from secure_fl.settings import ProtectionSettings

ENCRYPTED = ("he", "he+secagg")
MASKED = ("secagg", "he+secagg")


def blind_totals(
    protection: ProtectionSettings, members: Sequence[str], rules: Rules, run: bytes
) -> TotalFor:
    """The coordinator's half: how each sum of a run is added up."""
    numbers = {name: number for number, name in enumerate(sorted(members), 1)}
    masks, encrypted = protection.mode in MASKED, protection.mode in ENCRYPTED
    # Preparing a context costs as much as adding a few ciphertexts: once a run is enough.
    context = public.load(public.context_bytes(COHORT)) if encrypted else None

    def total_for(audience: Audience, offered: Offered) -> BlindTotal:
        if protection.mode == "none":
            return ClearTotal()
        require_masks(audience, masks=masks)
        return ProtectedTotal(
            COHORT.modulus,
            context if audience == Audience.PARTIES else None,
            masks=masks,
            offered=offered,
            numbers=numbers,
            host=rules.host,
            threshold=rules.threshold,
            run=run,
        )

    return total_for


class SumStep(Step):
    """Row 1 and 2: adds contributions as they arrive, then says who is in the sum."""

    takes = messages.SumInput

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.total: BlindTotal | None = None
        self.audience = Audience.PARTIES
        self.keys: dict[str, tuple[bytes, ...]] = {}  # the sums that each party waits for
        self.given: dict[str, tuple[bytes, ...]] = {}  # and those of them that it contributes to
        self.survivors: tuple[str, ...] = ()
        self.scales: bool | None = None

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.SumInput)  # noqa: S101
        if self.total is None:
            self.audience = message.audience
            self.total = self.context.total_for(self.audience, self.context.offered)
        if self.audience != message.audience:
            raise Disagreement("the parties want different audiences for one sum", party=party)
        self.keys[party] = tuple(s.key for s in message.segments)
        self.given[party] = tuple(s.key for s in message.segments if s.size)
        if party == self.context.rules.host:
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
            here = set(members)
            dropped = tuple(m for m in sorted(self.context.offered.offers) if m not in here)
            return Reply({m: messages.Unmask(members, dropped) for m in members}, waiting_sum=self)
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
        host = self.context.rules.host
        shared: dict[tuple[bytes, ...], Bulk] = {}
        sizes, bulks = {}, {}
        for member in members:
            keys = self.keys[member] if (member == host) == (self.audience == Audience.HOST) else ()
            if keys not in shared:  # one bulk serves all parties with the same segments
                shared[keys] = Bulk.of(b"".join(result[k] for k in keys))
            sizes[member] = tuple(len(result[k]) for k in keys)
            bulks[member] = shared[keys]
        return Reply(self._total(survivors, members, offers or {}, sizes), bulks)

    def withheld(
        self, survivors: tuple[str, ...], members: tuple[str, ...], offers: Mapping[str, Offer]
    ) -> Reply:
        """No total: the parties do not let it be opened over those who are left."""
        return Reply(self._total(survivors, members, offers, {}))

    def _total(
        self,
        survivors: tuple[str, ...],
        members: tuple[str, ...],
        offers: Mapping[str, Offer],
        sizes: Mapping[str, tuple[int, ...]],
    ) -> dict[str, messages.Total]:
        return {
            member: messages.Total(
                survivors,
                members,
                sizes.get(member, ()),
                offers_to(member, offers),
                bool(self.scales),
            )
            for member in members
        }

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

    takes = messages.Confirm

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.signatures: dict[str, bytes] = {}

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.Confirm)  # noqa: S101
        self.signatures[party] = message.signature

    def reply(self, members: tuple[str, ...]) -> Reply:
        message = messages.Confirmed(self.signatures)
        return Reply(dict.fromkeys(members, message), waiting_sum=self.context.waiting_sum)


class RevealStep(Step):
    """Row 2b and 3: collects the shares that remove a sum's masks, and sends the total."""

    takes = messages.UnmaskShares

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        if not isinstance(context.waiting_sum, SumStep):
            raise CohortError("shares arrived although no sum waits for them")
        self.sum = context.waiting_sum
        self.survivors = context.waiting_sum.survivors
        self.offers: dict[str, Offer] = {}
        self.revealed = False

    def take(self, party: str, message: FromParty, bulk: bytes) -> None:
        assert isinstance(message, messages.UnmaskShares)  # noqa: S101
        self.revealed |= bool(message.seeds)
        if self.sum.total is not None and party != self.context.rules.host:
            self.sum.total.unmask(party, message)
        if message.offer:
            self.offers[party] = message.offer

    def reply(self, members: tuple[str, ...]) -> Reply:
        self.offered = Offered(self.survivors, self.offers, self.context.offered.index + 1)
        reply = self.sum.totals if self.revealed else self.sum.withheld
        return reply(self.survivors, members, self.offers)
