"""All messages between a party and the coordinator: one closed table of records.

Every message is public metadata, which the coordinator may know. Private values travel only in the
bulk of a frame (`frames`), sealed by the privacy layer. docs/protocol.md 4.5 lists all fields.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

MAX_BULK = 2**31
MAX_PLAN = 2**17
MAX_SHARE = 2**11  # bytes sealed to one peer: more than half of it is the ML-KEM ciphertext
MOST_SEGMENTS = 256  # of a sum: as many sets of contributors as there are kinds of parties
MOST_LOST = 128  # the largest number of parties of a protected sum
MOST_STATEMENTS = 256  # more than members
MOST_KEPT, MOST_NOTES = 16, 256  # rounds a party can resume after; notes of opened sums
JOINED = 0  # as the number of a sum: the round ended, and then others joined

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Code = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[a-z-]*\Z")]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_BULK)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=100_000)]
SumId: TypeAlias = tuple[Count, Count]  # of a sum: its round, and its number in that round
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=64)]
Links = Annotated[dict[Name, Digest], msgspec.Meta(max_length=MOST_LOST)]
Secret16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]


class Audience(StrEnum):
    """The readers of a sum."""

    PARTIES = "parties"
    HOST = "host"


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages; the tag identifies the kind in the closed table."""


class Deal(Message, frozen=True, tag=False):
    """Digests of two shares that a party deals to a holder, and of the half of their secret.

    The seal of the shares depends on them, so the coordinator cannot change them. A holder signs
    what it took (`SumInput.taken`), which exposes it if it reveals a different share.
    """

    key: Digest  # of the share of the mask key
    own: Digest  # of the share of the self mask's seed
    half: Digest  # of the party's half of the secret of the two


class SurvivorStatement(Message, frozen=True, tag=False):
    """The coordinator's signature of all survivor lists of a run so far (`survivor_log`)."""

    run: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    number: Count
    digest: Digest
    signature: Signature


class Offer(Message, frozen=True, tag=False):
    """A party's keys for its next masked sum: one public key, and one sealed share per peer."""

    public: Digest
    shares: dict[Name, Annotated[bytes, msgspec.Meta(max_length=MAX_SHARE)]]
    seed: Digest  # of its self mask's seed
    deals: dict[Name, Deal] = {}  # by holder
    statement: SurvivorStatement | None = None  # the last that it received in the session before


class Salt(Message, frozen=True, tag=False):
    """Digest of history shared only with the listed peers; it salts the pairwise masks."""

    digest: Digest
    peers: Names


class Segment(Message, frozen=True, tag=False):
    """One vector of a sum: digest of its content and readers, size, contributors."""

    key: Digest
    size: Size  # 0: this party only reads the sum
    slots: Count = 0
    owners: Names = ()  # (): every party; otherwise those that `Owners` named
    salts: Annotated[  # of its sender's masks with single peers
        tuple[Salt, ...], msgspec.Meta(max_length=MOST_SEGMENTS)
    ] = ()
    digest: Annotated[bytes, msgspec.Meta(max_length=32)] = b""  # of its part of several


class Lost(Message, frozen=True, tag=False):
    """Seed, salts and links of a lost party's masks, which do not cancel in the others' tags."""

    seed: Secret16  # of its mask key
    salts: tuple[dict[Name, Digest], ...]  # for each segment, by the party that salted a mask
    links: Links = {}  # by survivor


# --- party to coordinator ----------------------------------------------------------------------


class Ready(Message, frozen=True, tag=1):
    """The party can start, and can resume after any of these rounds."""

    checkpoints: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_KEPT)] = ()
    offer: Offer | None = None
    opened: Annotated[  # opened sums with their parties: see `OpenedSumsLog.rounds`
        tuple[tuple[Count, Count, Names], ...], msgspec.Meta(max_length=MOST_NOTES)
    ] = ()


class Declare(Message, frozen=True, tag=2):
    """The names that this party contributes to the next sum, or reads."""

    names: Names
    reads: Names = ()
    unscaled: Names = ()  # names whose scale this party does not know
    at: SumId = (0, 0)  # the sum, as this party counts


class SumInput(Message, frozen=True, tag=3):
    """The party's contribution to a sum; the vectors are in the bulk, one after the other."""

    audience: Audience
    segments: Annotated[tuple[Segment, ...], msgspec.Meta(max_length=MOST_SEGMENTS)]
    more: bool = False  # another sum follows at once: the values after their scales, or a part
    at: SumId = (0, 0)  # as in `Declare`
    sum: Count = 0  # masked sums are counted from 1
    bound: Annotated[bytes, msgspec.Meta(max_length=64)] = b""  # own mask key and seed's digest
    taken: Annotated[bytes, msgspec.Meta(max_length=32)] = b""  # digest of all keys and shares
    links: Links = {}  # by party: the XOR of both halves of the secret that they share


class UnmaskShares(Message, frozen=True, tag=4):
    """Shares of survivors' self-mask seeds and of dropped parties' mask keys, never both of one."""

    seeds: dict[Name, Secret16]
    keys: dict[Name, Secret16]
    offer: Offer | None = None
    sum: Count = 0  # masked sums are counted from 1


class Broadcast(Message, frozen=True, tag=5):
    """The host's value for all is in the bulk; all others wait for it (empty bulk)."""


class Share(Message, frozen=True, tag=6):
    """A value for all parties, sealed under a key the coordinator does not hold."""


class Agree(Message, frozen=True, tag=7):
    """A keyed fingerprint of state that must be equal at all parties."""

    fingerprint: Digest  # equal at all parties if the state is
    proof: Digest  # this party's own, which the others check


class Boundary(Message, frozen=True, tag=8):
    """The party has finished and saved this round."""

    round: Count


class Done(Message, frozen=True, tag=9):
    """The party's program has ended."""


class Failed(Message, frozen=True, tag=10):
    """The party cannot continue: a code from the error tree, without text, which may be private."""

    code: Code
    about: Annotated[str, msgspec.Meta(max_length=200)] = ""  # a member with unfit keys or state


class Confirm(Message, frozen=True, tag=11):
    """The party's signature of the survivor lists of a sum, before it reveals shares."""

    signature: Signature


class Handover(Message, frozen=True, tag=12):
    """Digest of the state for newcomers, and a signature; one holder also sends the state."""

    fingerprint: Digest | None = None  # None: this party is a newcomer, and waits
    proof: Proof | None = None


class Hello(Message, frozen=True, tag=13):
    """The site accepts the invitation; with its part of the run's id."""

    nonce: Secret16


class Gathered(Message, frozen=True, tag=14):
    """The party is ready to begin the run of this id."""

    run: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Complaint(Message, frozen=True, tag=15):
    """The received total, in the bulk, does not fit its tag."""

    total: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN * 8)]  # the head of its frame
    segment: Annotated[int, msgspec.Meta(ge=0, lt=MOST_SEGMENTS)] = 0  # place of the first failure


class Finding(Message, frozen=True, tag=16):
    """A member's verdict on the frames shown so far; its own upload, if it was asked for it."""

    against: Annotated[str, msgspec.Meta(max_length=200)] = ""


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
    """Contributors and readers of each name of the next sum: the same table for all."""

    owners: dict[Name, Names]
    readers: dict[Name, Names] = {}
    unscaled: Names = ()  # names whose scale a party lacks; if any, scales are summed first

    def plain(self) -> bytes:
        """Encode the table: all parties must have received the same bytes."""
        return msgspec.msgpack.encode(self)


class Unmask(Message, frozen=True, tag=23):
    """Survivors and dropouts of a sum; reveal the shares that remove its masks.

    With it the coordinator commits itself to all uploads before anything is revealed: an inquiry
    judges these uploads only.
    """

    survivors: Names
    dropped: Names
    statement: SurvivorStatement | None = None  # the coordinator's signature to these lists
    sum: Count = 0  # as in `SumInput`
    inputs: Annotated[bytes, msgspec.Meta(max_length=32)] = b""  # digest of the uploads' heads


class Total(Message, frozen=True, tag=24):
    """The sum over the survivors; the vectors that this party reads are in the bulk."""

    survivors: Names  # whose inputs are in the sum
    members: Names  # remaining members: a survivor can be lost during unmasking
    sizes: tuple[Size, ...]
    offers: dict[Name, Offer] = {}
    more: bool = False  # as in `SumInput`, for the host
    lost: Annotated[dict[Name, Lost], msgspec.Meta(max_length=MOST_LOST)] = {}
    sum: Count = 0  # as in `SumInput`
    digests: tuple[Digest, ...] = ()  # of the vectors, if there are several


class Relayed(Message, frozen=True, tag=25):
    """Values of other parties, in the bulk one after the other."""

    senders: Names
    sizes: tuple[Size, ...]


class Agreed(Message, frozen=True, tag=26):
    """All fingerprints are equal; with every party's own proof."""

    proofs: dict[Name, Digest]


class Continue(Message, frozen=True, tag=27):
    """All parties have finished the round; these members continue."""

    members: Names


class Stop(Message, frozen=True, tag=28):
    """The run ends here for this reason; with the members' last survivor statements."""

    code: Code
    party: str = ""
    statements: Annotated[  # the last that the members received
        tuple[SurvivorStatement, ...], msgspec.Meta(max_length=MOST_STATEMENTS)
    ] = ()


class Confirmed(Message, frozen=True, tag=29):
    """The signatures of all parties that confirmed the survivor lists."""

    signatures: dict[Name, Signature]


class HandedOver(Message, frozen=True, tag=30):
    """Proofs of all holders of a round; newcomers get its sealed state in the bulk."""

    members: Names
    proofs: dict[Name, Proof]


class Invite(Message, frozen=True, tag=31):
    """The plan that the coordinator would like to run; each site decides by its own rules."""

    plan: Annotated[str, msgspec.Meta(max_length=MAX_PLAN)]
    missing: Names = ()  # members out of reach; sites only show it


class Gather(Message, frozen=True, tag=32):
    """All members that accepted, with their parts of the run's id."""

    nonces: dict[Name, Secret16]


class Examine(Message, frozen=True, tag=33):
    """A complaint, or an upload of the disputed sum, as its author signed it.

    The bulk is the part of the total, or of the upload, that belongs to the disputed segment.
    """

    who: Annotated[str, msgspec.Meta(max_length=200)]  # author; "": there is nothing to examine
    head: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN * 16)]
    seed: Annotated[bytes, msgspec.Meta(max_length=64)] = b""  # of an upload's self mask
    input: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN * 8)] = b""  # upload of the plaintiff
    show: Annotated[str, msgspec.Meta(max_length=200)] = ""  # the next party to show its upload
    sum: Count = 0  # as in `SumInput`
    inputs: dict[Name, Digest] = {}  # the heads that `Unmask` committed to; with a complaint
    taken: dict[Name, bytes] = {}  # the keys and shares that the plaintiff took; with a complaint


FromParty: TypeAlias = (
    Ready
    | Declare
    | SumInput
    | Confirm
    | UnmaskShares
    | Broadcast
    | Share
    | Agree
    | Handover
    | Boundary
    | Done
    | Failed
    | Hello
    | Gathered
    | Complaint
    | Finding
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
    | Examine
)
