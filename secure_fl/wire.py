"""Frames: the only thing that travels between a party and the coordinator.

A frame is a *head* (version byte, msgpack envelope, Ed25519 signature) and a *bulk* (sealed bytes
that the head pins by digest). Messages decode from one closed table into frozen, typed records;
unknown kinds, extra fields, wrong types and oversized parts are errors. Nothing is ever unpickled.

Every message below is public metadata: what the coordinator may know. Private values travel in the
bulk only, sealed by the privacy layer.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from secure_fl.errors import WireError

VERSION = 1
SIGNATURE_BYTES = 64
MAX_HEAD = 16 * 2**20
MAX_BULK = 2**31
MAX_PLAN = 2**17

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Code = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[a-z-]*\Z")]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_BULK)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=100_000)]
Place: TypeAlias = tuple[Count, Count]  # of a sum: its round, and its number in that round
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=64)]
Secret16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The base of all messages; the tag is the kind in the closed table."""


class Offer(Message, frozen=True, tag=False):
    """A party's keys for its next masked sum: one public key, and one sealed share per peer."""

    public: Digest
    shares: dict[Name, bytes]


class Salt(Message, frozen=True, tag=False):
    """A keyed digest of what a party has seen with these, and not with all who are in a sum."""

    digest: Digest
    peers: Names = ()  # (): all with whom it masks


class Segment(Message, frozen=True, tag=False):
    """One vector of a sum: a digest of what it holds and for whom, its size, who contributes."""

    key: Digest
    size: Size  # 0: this party only reads the sum
    slots: Count = 0
    owners: Names = ()  # (): every party; otherwise those that `Owners` named
    salts: tuple[Salt, ...] = ()  # of the masks that its sender shares with these


# --- party to coordinator ----------------------------------------------------------------------


class Ready(Message, frozen=True, tag=1):
    """The party can start, and could resume after any of these rounds."""

    checkpoints: tuple[Count, ...] = ()
    offer: Offer | None = None
    opened: tuple[tuple[Count, Count, Names], ...] = ()  # over whom: see `Openings.rounds`


class Declare(Message, frozen=True, tag=2):
    """The names this party contributes to the next sum, and those of which it reads the sum."""

    names: Names
    reads: Names = ()
    unscaled: Names = ()  # of all these, whose scale this party does not know
    at: Place = (0, 0)  # the sum, as this party notes it: repeated, it needs the same parties


class SumInput(Message, frozen=True, tag=3):
    """The party's contribution to a sum; the vectors are in the bulk, one after the other."""

    audience: Annotated[str, msgspec.Meta(pattern=r"^(parties|host)\Z")]
    segments: tuple[Segment, ...]
    scales: bool = False  # the scales of the values that follow in the next sum
    at: Place = (0, 0)  # as in `Declare`


class Reveal(Message, frozen=True, tag=4):
    """Shares of survivors' self-mask seeds and of dropped parties' mask keys, never both of one."""

    seeds: dict[Name, Secret16]
    keys: dict[Name, Secret16]
    offer: Offer | None = None


class Broadcast(Message, frozen=True, tag=5):
    """The host's value for everyone is in the bulk; everyone else waits for it (empty bulk)."""


class Share(Message, frozen=True, tag=6):
    """A value for all parties, sealed under a key the coordinator does not hold."""


class Agree(Message, frozen=True, tag=7):
    """A keyed fingerprint of state that must be equal everywhere."""

    fingerprint: Digest  # equal at all parties if the state is
    proof: Digest  # the same by this party: the others check it, so nobody need be believed


class Boundary(Message, frozen=True, tag=8):
    """The party has finished and saved this round."""

    round: Count


class Done(Message, frozen=True, tag=9):
    """The party's program has ended."""


class Failed(Message, frozen=True, tag=10):
    """The party cannot go on. A code from the error tree, and no text: text may be private."""

    code: Code


class Confirm(Message, frozen=True, tag=11):
    """The party's signature under the survivors and the dropped of a sum, before it reveals."""

    signature: Signature


class Handover(Message, frozen=True, tag=12):
    """A keyed digest of what newcomers are given, and its signature; one holder sends that."""

    fingerprint: Digest | None = None  # None: this party is a newcomer, and waits
    proof: Proof | None = None


class Hello(Message, frozen=True, tag=13):
    """The site's own rules allow what it was invited to; its part of the run's id."""

    nonce: Secret16


class Gathered(Message, frozen=True, tag=14):
    """The party is ready to begin, in the run of this id."""

    run: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


# --- coordinator to party ----------------------------------------------------------------------


class Start(Message, frozen=True, tag=20):
    """The run begins (or begins again)."""

    members: Names


class Begin(Message, frozen=True, tag=21):
    """Run the program, continuing after this round (0: from the start)."""

    after_round: Count
    members: Names
    offers: dict[Name, Offer] = {}
    newcomers: Names = ()  # members that have no checkpoint of that round


class Owners(Message, frozen=True, tag=22):
    """Who contributes which name to the next sum, and who else reads it: the same for all."""

    owners: dict[Name, Names]
    readers: dict[Name, Names] = {}
    unscaled: Names = ()  # names whose scale somebody lacks; if there are any, scales come first

    def plain(self) -> bytes:
        """What all must have been told alike."""
        return msgspec.msgpack.encode(self)


class Unmask(Message, frozen=True, tag=23):
    """These parties' inputs arrived, those did not; reveal what removes the masks."""

    survivors: Names
    dropped: Names


class Total(Message, frozen=True, tag=24):
    """The sum over the survivors; the vectors this party contributes to are in the bulk."""

    survivors: Names  # whose inputs are in the sum
    members: Names  # who goes on: a survivor can be lost while masks are removed
    sizes: tuple[Size, ...]
    offers: dict[Name, Offer] = {}
    scales: bool = False


class Relayed(Message, frozen=True, tag=25):
    """Values of other parties, in the bulk one after the other."""

    senders: Names
    sizes: tuple[Size, ...]


class Agreed(Message, frozen=True, tag=26):
    """All fingerprints were equal; here is every party's own proof of it."""

    proofs: dict[Name, Digest]


class Continue(Message, frozen=True, tag=27):
    """Everybody has finished the round; these parties go on."""

    members: Names


class Stop(Message, frozen=True, tag=28):
    """The run ends here, for this reason."""

    code: Code
    party: str = ""


class Confirmed(Message, frozen=True, tag=29):
    """The signatures of all who confirmed the lists of a sum that lost somebody."""

    signatures: dict[Name, Signature]


class HandedOver(Message, frozen=True, tag=30):
    """What the holders of a round proved to have; for newcomers it is, sealed, in the bulk."""

    members: Names
    proofs: dict[Name, Proof]


class Invite(Message, frozen=True, tag=31):
    """What the coordinator would like to run; each site decides by its own rules."""

    plan: Annotated[str, msgspec.Meta(max_length=MAX_PLAN)]


class Gather(Message, frozen=True, tag=32):
    """All who accepted, with their parts of the run's id: none can be left out or repeated."""

    nonces: dict[Name, Secret16]


FromParty: TypeAlias = (
    Ready
    | Declare
    | SumInput
    | Confirm
    | Reveal
    | Broadcast
    | Share
    | Agree
    | Handover
    | Boundary
    | Done
    | Failed
    | Hello
    | Gathered
)
FromCoordinator: TypeAlias = (
    Start
    | Begin
    | Owners
    | Unmask
    | Confirmed
    | Total
    | Relayed
    | Agreed
    | HandedOver
    | Continue
    | Stop
    | Invite
    | Gather
)


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
