"""Frames between a party and the coordinator, the ends of their link, and the survivor log.

A frame is a *head* (version byte, msgpack envelope, Ed25519 signature) and a *bulk* (sealed bytes;
the head has their digest). Messages decode from one closed table into frozen, typed records.
Unknown kinds, extra fields, wrong types and oversized parts are errors. Nothing is ever unpickled.
docs/protocol.md 4.1 to 4.4 specifies both, and 4.9 the statements of the survivor log. Where no sum
is possible, an honest coordinator passes the statements on with its `Stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, get_args

import msgspec
from msgspec import structs

from secure_fl.errors import DISTRUST, CohortError, SecureFLError, WireError
from secure_fl.protocol.messages import (
    MAX_BULK,
    Count,
    Digest,
    FromCoordinator,
    FromParty,
    Name,
    Offer,
    Size,
    SurvivorStatement,
    Unmask,
)

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import Identity, PublicIdentity


VERSION = 2
SIGNATURE_BYTES = 64
MAX_HEAD = 16 * 2**20
FROM_PARTY = get_args(FromParty)


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The address of a message and the message: checked before anything else."""

    run: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    exchange: Count  # number of the frame in its run: prevents replays and reordering
    round: Count
    sender: Name
    receiver: Name
    size: Size
    digest: Digest  # SHA-256 of the bulk
    message: FromParty | FromCoordinator


class Frame(NamedTuple):
    """A head and its bulk, separate so that one bulk serves many parties without copies."""

    head: bytes
    bulk: bytes = b""

    @property
    def size(self) -> int:
        """The number of bytes on the wire."""
        return len(self.head) + len(self.bulk)

    def to_bytes(self) -> bytes:
        """Join head and bulk, for engines that carry one byte string."""
        return len(self.head).to_bytes(4, "big") + self.head + self.bulk

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Split the result of `to_bytes`."""
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            raise WireError("a frame is cut short", field="head")
        return cls(data[4 : 4 + size], data[4 + size :])


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def digest(data: bytes) -> bytes:
    """Return the digest of a bulk that its head carries."""
    return sha256(data).digest()


class Bulk(NamedTuple):
    """Bytes with their digest, computed once for all receivers."""

    data: bytes
    digest: bytes

    @classmethod
    def of(cls, data: bytes = b"") -> Bulk:
        """Compute the digest of some data."""
        return cls(data, sha256(data).digest())


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split a bulk into parts of these sizes."""
    if sum(sizes) != len(data):
        what = "the sizes of a bulk's parts do not add up to its size"
        raise CohortError(what, field="sizes")
    starts = accumulate(sizes, initial=0)
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def encode(envelope: Envelope, bulk: bytes, sign: Callable[[bytes], bytes]) -> Frame:
    """Serialise and sign an envelope; `sign` gets the digest of all before the signature."""
    unsigned = bytes([VERSION]) + _encoder.encode(envelope)
    if len(unsigned) > MAX_HEAD or len(bulk) > MAX_BULK:
        raise WireError("a message is larger than the wire allows", round=envelope.round)
    return Frame(unsigned + sign(sha256(unsigned).digest()), bulk)


def peek(head: bytes) -> Envelope:
    """Decode a head without verifying it: for recorded frames, never for frames that arrive."""
    try:
        return _decoder.decode(memoryview(head)[1:-SIGNATURE_BYTES])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("a frame does not decode into a known message", field="message") from error


def decode(frame: Frame, verify: Callable[[bytes, bytes], None], *, whole: bool = True) -> Envelope:
    """Check sizes, version, signature (by `verify(digest, signature)`) and bulk digest.

    `whole`: False if only the head was kept.

    The signature is verified before decoding, where one byte can become 16 in memory: a stranger's
    frame costs only its own size. The caller compares the sender's name.
    """
    head, bulk = frame
    if not SIGNATURE_BYTES < len(head) <= MAX_HEAD + SIGNATURE_BYTES or len(bulk) > MAX_BULK:
        raise WireError(
            "a frame's size is out of bounds", field="size", fix="check both sides' versions"
        )
    if head[0] != VERSION:
        raise WireError(
            f"unknown wire version {head[0]}",
            field="version",
            fix="install equal versions everywhere",
        )
    unsigned = memoryview(head)[:-SIGNATURE_BYTES]
    verify(sha256(unsigned).digest(), head[-SIGNATURE_BYTES:])
    envelope = peek(head)
    if whole and (len(bulk) != envelope.size or sha256(bulk).digest() != envelope.digest):
        what = "a frame's bulk is not the one its head pins"
        raise WireError(what, party=envelope.sender, field="bulk")
    return envelope


class Received(NamedTuple):
    """A frame with a valid signature, form and bulk; a `Link` decides if it is expected."""

    frame: Frame
    envelope: Envelope

    @classmethod
    def of(cls, frame: Frame, sender: PublicIdentity) -> Received:
        """Verify and decode, once for all readers."""
        return cls(frame, decode(frame, sender.verify))


@dataclass(slots=True)
class Link:
    """One end of a connection: signs outgoing frames, and refuses forged or unexpected ones.

    A frame is unexpected if it is replayed, reordered or from another run. The coordinator numbers
    the exchanges; an answer carries the number of its question.
    """

    run: bytes
    me: Identity
    peer: PublicIdentity
    asks: bool  # True at the coordinator's end, False at the party's
    exchange: int = 0
    round: int = 0
    bytes_out: int = field(default=0, init=False)
    bytes_in: int = field(default=0, init=False)
    _survivor_log: SurvivorLog = field(init=False)

    def __post_init__(self) -> None:
        self._survivor_log = SurvivorLog(self.run)

    def pack(self, message: FromParty | FromCoordinator, bulk: Bulk | None = None) -> Frame:
        """Sign a message to the other end."""
        bulk = bulk or Bulk.of()
        if self.asks:
            self.exchange += 1
        if isinstance(message, Unmask):
            message = self._survivor_log.sign(self.me, message)
        envelope = Envelope(
            self.run,
            self.exchange,
            self.round,
            self.me.name,
            self.peer.name,
            len(bulk.data),
            bulk.digest,
            message,
        )
        frame = encode(envelope, bulk.data, self.me.sign)
        self.bytes_out += frame.size
        return frame

    def unpack(self, frame: Frame) -> Any:
        """Verify a frame from the other end and return its message."""
        return self.accept(Received.of(frame, self.peer))

    def accept(self, received: Received) -> Any:
        """Return the message of a verified frame, if it is the expected one."""
        frame, envelope = received
        exchange, round = envelope.exchange, envelope.round
        expected = {
            "sender": envelope.sender == self.peer.name,
            "run": envelope.run == self.run,
            "receiver": envelope.receiver == self.me.name,
            "kind": isinstance(envelope.message, FROM_PARTY) == self.asks,
            # A party accepts gaps in the coordinator's numbers, since frames are lost.
            "exchange": exchange == self.exchange if self.asks else exchange > self.exchange,
            "round": round == self.round if self.asks else round >= self.round,
        }
        for name, valid in expected.items():
            self._expect(name, valid)
        if not self.asks:
            self.exchange, self.round = exchange, round
        self.bytes_in += frame.size
        return envelope.message

    def _expect(self, field: str, valid: bool) -> None:
        if not valid:
            raise WireError(
                f"a frame from {self.peer.name} does not carry the {field} expected now",
                fix="it was replayed, reordered or meant for another run; nothing was accepted",
                field=field,
                round=self.round,
                step=self.exchange,
            )


# --- the survivor log -----------------------------------------------------------------------------


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
                field="statement",
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
