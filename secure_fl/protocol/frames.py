"""Frames: the only thing that travels between a party and the coordinator.

A frame is a *head* (version byte, msgpack envelope, Ed25519 signature) and a *bulk* (sealed bytes
that the head pins by digest). Messages decode from one closed table into frozen, typed records;
unknown kinds, extra fields, wrong types and oversized parts are errors. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Annotated, NamedTuple

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
)

VERSION = 1
SIGNATURE_BYTES = 64
MAX_HEAD = 16 * 2**20


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


def decode(frame: Frame, verify: Callable[[bytes, bytes], None]) -> Envelope:
    """Check sizes, version, signature (by `verify(digest, signature)`) and bulk digest.

    The signature comes before decoding, in which 1 byte can become 16 in memory: a stranger costs
    no more than what he sends. Who the sender says to be is for the caller to compare.
    """
    head, bulk = frame
    if not SIGNATURE_BYTES < len(head) <= MAX_HEAD + SIGNATURE_BYTES or len(bulk) > MAX_BULK:
        raise WireError("a frame's size is out of bounds", fix="check both sides' versions")
    if head[0] != VERSION:
        raise WireError(f"unknown wire version {head[0]}", fix="install equal versions everywhere")
    unsigned = memoryview(head)[:-SIGNATURE_BYTES]
    verify(sha256(unsigned).digest(), head[-SIGNATURE_BYTES:])
    try:
        envelope = _decoder.decode(unsigned[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("a frame does not decode into a known message") from error
    if len(bulk) != envelope.size or digest(bulk) != envelope.digest:
        raise WireError("a frame's bulk is not the one its head pins", party=envelope.sender)
    return envelope
