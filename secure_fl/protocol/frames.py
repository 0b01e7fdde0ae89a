"""Frames: all that travels between a party and the coordinator; a `Link` is one of the two ends.

A frame is a *head* (version byte, msgpack envelope, Ed25519 signature) and a *bulk* (sealed bytes
that the head pins by digest). Messages decode from one closed table into frozen, typed records;
unknown kinds, extra fields, wrong types and oversized parts are errors. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import msgspec

from secure_fl.errors import CohortError, WireError
from secure_fl.protocol.messages import (
    MAX_BULK,
    Count,
    Digest,
    FromCoordinator,
    FromParty,
    Name,
    Size,
    Unmask,
)
from secure_fl.protocol.survivor_log import Story

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import Identity, PublicIdentity

VERSION = 1
SIGNATURE_BYTES = 64
MAX_HEAD = 16 * 2**20
FROM_PARTY = get_args(FromParty)


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a message belongs: checked before anything else is looked at."""

    run: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    exchange: Count  # counts every frame of a run: nothing can be replayed or reordered
    round: Count
    sender: Name
    receiver: Name
    size: Size
    digest: Digest  # of the bulk
    message: FromParty | FromCoordinator


class Frame(NamedTuple):
    """A head and its bulk, kept apart so that one bulk can serve many parties uncopied."""

    head: bytes
    bulk: bytes = b""

    @property
    def size(self) -> int:
        """The bytes this frame puts on the wire."""
        return len(self.head) + len(self.bulk)

    def to_bytes(self) -> bytes:
        """One byte string for engines that carry one."""
        return len(self.head).to_bytes(4, "big") + self.head + self.bulk

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """The inverse of `to_bytes`."""
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            raise WireError("a frame is cut short", field="head")
        return cls(data[4 : 4 + size], data[4 + size :])


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def digest(data: bytes) -> bytes:
    """The digest by which a head pins its bulk."""
    return sha256(data).digest()


class Bulk(NamedTuple):
    """Bytes with their digest, computed once however many parties get them."""

    data: bytes
    digest: bytes

    @classmethod
    def of(cls, data: bytes = b"") -> Bulk:
        """Digest the data."""
        return cls(data, digest(data))


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The parts of a bulk."""
    if sum(sizes) != len(data):
        raise CohortError("the sizes of a bulk's parts do not add up")
    starts = accumulate(sizes, initial=0)
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def encode(envelope: Envelope, bulk: bytes, sign: Callable[[bytes], bytes]) -> Frame:
    """Sign and serialise; `sign` gets a digest of everything before the signature."""
    unsigned = bytes([VERSION]) + _encoder.encode(envelope)
    if len(unsigned) > MAX_HEAD or len(bulk) > MAX_BULK:
        raise WireError("a message is larger than the wire allows", round=envelope.round)
    return Frame(unsigned + sign(digest(unsigned)), bulk)


def peek(head: bytes) -> Envelope:
    """Decode a recorded head without verifying it: for audits, never for what arrives."""
    return _decoder.decode(memoryview(head)[1:-SIGNATURE_BYTES])


def decode(frame: Frame, verify: Callable[[bytes, bytes], None], *, whole: bool = True) -> Envelope:
    """Check sizes, version, signature (by `verify(digest, signature)`) and bulk digest.

    `whole`: False where only the head was kept.

    The signature comes before decoding, in which 1 byte can become 16 in memory: a stranger costs
    no more than what he sends. Who the sender says to be is for the caller to compare.
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
    try:
        envelope = _decoder.decode(unsigned[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("a frame does not decode into a known message", field="message") from error
    if whole and (len(bulk) != envelope.size or digest(bulk) != envelope.digest):
        raise WireError("a frame's bulk is not the one its head pins", party=envelope.sender)
    return envelope


class Received(NamedTuple):
    """A frame whose signature, form and bulk were checked; what it may do, a `Link` decides."""

    frame: Frame
    envelope: Envelope

    @classmethod
    def of(cls, frame: Frame, sender: PublicIdentity) -> Received:
        """Verify and decode, once for all who look at it."""
        return cls(frame, decode(frame, sender.verify))


@dataclass(slots=True)
class Link:
    """Signs what leaves, and refuses what is forged, replayed, reordered or of another run.

    Exchanges are numbered by the coordinator, one by one; an answer carries the number it answers.
    """

    run: bytes
    me: Identity
    peer: PublicIdentity
    asks: bool  # the coordinator's end asks; the party's end answers
    exchange: int = 0
    round: int = 0
    bytes_out: int = field(default=0, init=False)
    bytes_in: int = field(default=0, init=False)
    _story: Story = field(init=False)

    def __post_init__(self) -> None:
        self._story = Story(self.run)

    def pack(self, message: FromParty | FromCoordinator, bulk: Bulk | None = None) -> Frame:
        """Sign a message to the other end."""
        bulk = bulk or Bulk.of()
        if self.asks:
            self.exchange += 1
        if isinstance(message, Unmask):
            message = self._story.tell(self.me, message)
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
        self.bytes_out += len(frame.head) + len(frame.bulk)
        return frame

    def unpack(self, frame: Frame) -> Any:
        """Verify a frame from the other end and return its message, of a kind that end may send."""
        return self.accept(Received.of(frame, self.peer))

    def accept(self, received: Received) -> Any:
        """Return the message of a verified frame, if it is the one that is expected now."""
        frame, envelope = received
        self._expect("sender", envelope.sender == self.peer.name)
        self._expect("run", envelope.run == self.run)
        self._expect("receiver", envelope.receiver == self.me.name)
        self._expect("kind", isinstance(envelope.message, FROM_PARTY) == self.asks)
        if self.asks:
            self._expect("exchange", envelope.exchange == self.exchange)
            self._expect("round", envelope.round == self.round)
        else:
            # The coordinator counts: on, over what was lost on the way, but never back.
            self._expect("exchange", envelope.exchange > self.exchange)
            self._expect("round", envelope.round >= self.round)
            self.exchange, self.round = envelope.exchange, envelope.round
        self.bytes_in += len(frame.head) + len(frame.bulk)
        return envelope.message

    def _expect(self, field: str, holds: bool) -> None:
        if not holds:
            raise WireError(
                f"a frame from {self.peer.name} does not carry the {field} expected now",
                fix="it was replayed, reordered or meant for another run; nothing was accepted",
                field=field,
                round=self.round,
                step=self.exchange,
            )
