"""Signed log of the coordinator's survivor lists, and proof that it sent two different ones.

For each list of survivors the coordinator signs one digest of all lists of the run so far. An
honest coordinator sends all members the same lists, so a run and a list number have one digest. Two
different signed digests are evidence, which anybody can check with the coordinator's public key.

Members hear each other only through the coordinator, which can keep two of them apart for ever.
Therefore a member's first key offer of a session carries the last statement that it received, and
its keys are sealed under it: the coordinator must pass it on, or no sum with this member is
possible. `party.session` compares it with its own statements. Where no sum is possible, an honest
coordinator passes the statements on with its `Stop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import structs

from secure_fl.errors import DISTRUST, CohortError, SecureFLError, WireError
from secure_fl.protocol.messages import Name, Offer, SurvivorStatement, Unmask

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import Identity, PublicIdentity


@dataclass(slots=True)
class SurvivorLog:
    """Hash chain of the survivor lists that one member received in one run; each end keeps it."""

    run: bytes
    last: SurvivorStatement | None = None

    def sign(self, me: Identity, lists: Unmask) -> Unmask:
        """Sign these lists and all before them (at the coordinator)."""
        number, digest = self._next(lists)
        signature = me.sign(_signed_digest(self.run, number, digest))
        self.last = SurvivorStatement(self.run, number, digest, signature)
        return structs.replace(lists, statement=self.last)

    def verify(self, coordinator: PublicIdentity, lists: Unmask) -> SurvivorStatement:
        """Return the statement of these lists, if it is signed and covers this member's log."""
        statement, (number, digest) = lists.statement, self._next(lists)
        expected = self.run, number, digest
        if statement is None or (statement.run, statement.number, statement.digest) != expected:
            raise CohortError(
                "the coordinator sent a survivor list without a matching signed statement",
                fix=DISTRUST,
            )
        check_signature(statement, coordinator)
        self.last = statement
        return statement

    def _next(self, lists: Unmask) -> tuple[int, bytes]:
        number, digest = (self.last.number, self.last.digest) if self.last else (0, bytes(32))
        chained = digest, sorted(lists.survivors), sorted(lists.dropped)
        return number + 1, sha256(msgspec.msgpack.encode(chained)).digest()


def check_signature(statement: SurvivorStatement, coordinator: PublicIdentity) -> None:
    """Refuse a statement that the coordinator did not sign."""
    digest = _signed_digest(statement.run, statement.number, statement.digest)
    coordinator.verify(digest, statement.signature)


def _signed_digest(run: bytes, number: int, digest: bytes) -> bytes:
    return sha256(b"secure-fl told\0" + msgspec.msgpack.encode((run, number, digest))).digest()


class EquivocationProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two signed statements that contradict each other: an honest coordinator never signs both."""

    accused: Name
    one: SurvivorStatement
    other: SurvivorStatement

    def check(self, coordinator: PublicIdentity) -> None:
        """Refuse evidence that was edited, has another key, or shows no contradiction."""
        for statement in (self.one, self.other):
            check_signature(statement, coordinator)
        if self.accused != coordinator.name or not contradict(self.one, self.other):
            raise WireError(
                "the statements in this evidence do not contradict each other",
                fix="it was edited, or is of another coordinator; ask another member for its copy",
                party=self.accused,
            )

    def to_bytes(self) -> bytes:
        """Encode for a file in the run's folder."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Decode the result of `to_bytes`; None: these bytes are something else."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (ValueError, msgspec.MsgspecError):
            return None


def contradict(one: SurvivorStatement, other: SurvivorStatement) -> bool:
    """Return True if both have the same run and number, but cover different lists."""
    same = (one.run, one.number) == (other.run, other.number)
    return same and one.digest != other.digest


def statements_of(offers: Iterable[Offer | None]) -> tuple[SurvivorStatement, ...]:
    """Return the distinct statements that came with key offers."""
    statements = (offer.statement for offer in offers if offer is not None)
    return tuple(dict.fromkeys(s for s in statements if s is not None))


def find_equivocation(
    mine: Iterable[SurvivorStatement],
    others: Sequence[SurvivorStatement],
    coordinator: PublicIdentity,
) -> EquivocationProof | None:
    """Return proof that another member received a different statement than this one, if any.

    Only statements that the coordinator signed count: a member that invents one convicts nobody.
    """
    if not others:
        return None
    known = {(statement.run, statement.number): statement for statement in mine}
    for theirs in others:
        ours = known.get((theirs.run, theirs.number))
        if ours is None or not contradict(ours, theirs):
            continue
        proof = EquivocationProof(coordinator.name, ours, theirs)
        try:
            proof.check(coordinator)
        except SecureFLError:
            continue
        return proof
    return None
