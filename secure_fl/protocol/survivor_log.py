"""What the coordinator says of who is in each sum, signed so that two stories convict it.

It signs, for each list of survivors, one digest of all lists of the run so far. An honest one tells
all members the same lists, so of a run and a number there is one such digest. Two that differ,
both signed, are evidence that needs no other key than the coordinator's public one.

All that members hear comes from the coordinator, which can keep two of them apart for ever. So what
a member was told last goes with its first keys of the next gathering, and those are sealed under
it: it is passed on, or no sum with this member is. `party.session` compares it with its own notes.
Where no sum can be, a coordinator passes it on with its `Stop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import structs

from secure_fl.errors import DISTRUST, CohortError, SecureFLError, WireError
from secure_fl.protocol.messages import Name, Offer, Told, Unmask

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import Identity, PublicIdentity


@dataclass(slots=True)
class Story:
    """All that one member is told of who is in the sums of one run; each end keeps it."""

    run: bytes
    last: Told | None = None

    def tell(self, me: Identity, lists: Unmask) -> Unmask:
        """At the coordinator: sign these lists, after all before them."""
        number, digest = self._next(lists)
        self.last = Told(self.run, number, digest, me.sign(_statement(self.run, number, digest)))
        return structs.replace(lists, told=self.last)

    def hear(self, coordinator: PublicIdentity, lists: Unmask) -> Told:
        """At a member: what was signed, if it is just what this member was told in this run."""
        told, (number, digest) = lists.told, self._next(lists)
        if told is None or (told.run, told.number, told.digest) != (self.run, number, digest):
            raise CohortError(
                "the coordinator does not sign what it says of who is in a sum", fix=DISTRUST
            )
        check(told, coordinator)
        self.last = told
        return told

    def _next(self, lists: Unmask) -> tuple[int, bytes]:
        before = self.last or Told(self.run, 0, bytes(32), bytes(64))
        what = before.digest, sorted(lists.survivors), sorted(lists.dropped)
        return before.number + 1, sha256(msgspec.msgpack.encode(what)).digest()


def check(told: Told, coordinator: PublicIdentity) -> None:
    """Refuse what the coordinator did not sign."""
    coordinator.verify(_statement(told.run, told.number, told.digest), told.signature)


def _statement(run: bytes, number: int, digest: bytes) -> bytes:
    return sha256(b"secure-fl told\0" + msgspec.msgpack.encode((run, number, digest))).digest()


class TwoStories(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two statements that no coordinator signs that tells all members the same."""

    accused: Name
    one: Told
    other: Told

    def check(self, coordinator: PublicIdentity) -> None:
        """Refuse evidence that does not convict: edited, of another key, or of one story."""
        for told in (self.one, self.other):
            check(told, coordinator)
        if self.accused != coordinator.name or not contradict(self.one, self.other):
            raise WireError(
                "the statements in this evidence do not contradict each other",
                fix="it was edited, or is of another coordinator; ask another member for its copy",
                party=self.accused,
            )

    def to_bytes(self) -> bytes:
        """For a file of the run's folder."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """The inverse of `to_bytes`; None: this is something else."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (ValueError, msgspec.MsgspecError):
            return None


def contradict(one: Told, other: Told) -> bool:
    """Whether both are of one place in one run, and of different lists up to there."""
    same = (one.run, one.number) == (other.run, other.number)
    return same and one.digest != other.digest


def of_offers(offers: Iterable[Offer | None]) -> tuple[Told, ...]:
    """What those who offer keys were told last, each once."""
    told = (offer.told for offer in offers if offer is not None)
    return tuple(dict.fromkeys(one for one in told if one is not None))


def found_in(
    mine: Iterable[Told], others: Sequence[Told], coordinator: PublicIdentity
) -> TwoStories | None:
    """Whether another member was told something else than this one, in a run of both.

    Only what the coordinator signed counts: a member that invents a story convicts nobody.
    """
    if not others:
        return None
    own = {(told.run, told.number): told for told in mine}
    for theirs in others:
        ours = own.get((theirs.run, theirs.number))
        if ours is None or not contradict(ours, theirs):
            continue
        found = TwoStories(coordinator.name, ours, theirs)
        try:
            found.check(coordinator)
        except SecureFLError:
            continue
        return found
    return None
