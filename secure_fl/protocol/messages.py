"""Everything that a party and the coordinator can say to each other: one closed table of records.

Every message is public metadata: what the coordinator may know. Private values travel in the bulk
of a frame only (`frames`), sealed by the privacy layer. docs/protocol.md has a row for each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

MAX_BULK = 2**31
MAX_PLAN = 2**17
MOST_SEGMENTS = 256  # of a sum: as many sets of contributors as there are kinds of parties
MOST_LOST = 128  # as many as a protected sum has parties
MOST_STATEMENTS = 256  # more than members
MOST_KEPT, MOST_NOTES = 16, 256  # rounds that a party could resume after; notes of what it opened
JOINED = 0  # in the place of a sum's number: the round ended, and then others joined

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Code = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[a-z-]*\Z")]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_BULK)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=100_000)]
SumId: TypeAlias = tuple[Count, Count]  # of a sum: its round, and its number in that round
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=64)]
Secret16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]


class Audience(StrEnum):
    """Who learns a sum."""

    PARTIES = "parties"
    HOST = "host"


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The base of all messages; the tag is the kind in the closed table."""


class Deal(Message, frozen=True, tag=False):
    """What binds a party to the two shares that it deals to a holder, and its signature to both.

    Whoever reveals another share is found out, and so is who dealt shares of something else.
    """

    key: Digest  # of the share of its mask key
    own: Digest  # of the share of its self mask's seed
    signature: Signature  # of these, with the public key and the seed's digest


class SurvivorStatement(Message, frozen=True, tag=False):
    """What the coordinator signed of who was in all sums of a run so far: see `stories`."""

    run: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    number: Count
    digest: Digest
    signature: Signature


class Offer(Message, frozen=True, tag=False):
    """A party's keys for its next masked sum: one public key, and one sealed share per peer."""

    public: Digest
    shares: dict[Name, Annotated[bytes, msgspec.Meta(max_length=256)]]
    seed: Digest  # of its self mask's seed
    deals: dict[Name, Deal] = {}  # by holder
    statement: SurvivorStatement | None = None  # the last that it received in the session before


class Salt(Message, frozen=True, tag=False):
    """A keyed digest of what a party has seen with these, and not with all who are in a sum."""

    digest: Digest
    peers: Names


class Segment(Message, frozen=True, tag=False):
    """One vector of a sum: a digest of what it holds and for whom, its size, who contributes."""

    key: Digest
    size: Size  # 0: this party only reads the sum
    slots: Count = 0
    owners: Names = ()  # (): every party; otherwise those that `Owners` named
    salts: Annotated[  # of the masks that its sender shares with these
        tuple[Salt, ...], msgspec.Meta(max_length=MOST_SEGMENTS)
    ] = ()


class Lost(Message, frozen=True, tag=False):
    """What a lost party's masks follow from: in the others' tags they are not cancelled."""

    seed: Secret16  # of its mask key
    salts: tuple[dict[Name, Digest], ...]  # for each segment, by who salted a mask with it


# --- party to coordinator ----------------------------------------------------------------------


class Ready(Message, frozen=True, tag=1):
    """The party can start, and could resume after any of these rounds."""

    checkpoints: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_KEPT)] = ()
    offer: Offer | None = None
    opened: Annotated[  # over whom: see `OpenedSumsLog.rounds`
        tuple[tuple[Count, Count, Names], ...], msgspec.Meta(max_length=MOST_NOTES)
    ] = ()


class Declare(Message, frozen=True, tag=2):
    """The names this party contributes to the next sum, and those of which it reads the sum."""

    names: Names
    reads: Names = ()
    unscaled: Names = ()  # of all these, whose scale this party does not know
    at: SumId = (0, 0)  # the sum, as this party notes it: repeated, it needs the same parties


class SumInput(Message, frozen=True, tag=3):
    """The party's contribution to a sum; the vectors are in the bulk, one after the other."""

    audience: Audience
    segments: Annotated[tuple[Segment, ...], msgspec.Meta(max_length=MOST_SEGMENTS)]
    more: bool = False  # the next sum belongs to it: its values, if this was of scales, or a part
    at: SumId = (0, 0)  # as in `Declare`
    sum: Count = 0  # masked sums are counted from 1


class UnmaskShares(Message, frozen=True, tag=4):
    """Shares of survivors' self-mask seeds and of dropped parties' mask keys, never both of one."""

    seeds: dict[Name, Secret16]
    keys: dict[Name, Secret16]
    offer: Offer | None = None
    sum: Count = 0  # masked sums are counted from 1


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


class Complaint(Message, frozen=True, tag=15):
    """The total that this party was sent does not fit its tag; the total itself is in the bulk."""

    total: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN * 8)]  # the head that it came under


class Finding(Message, frozen=True, tag=16):
    """Whom this party finds convicted by what it was shown; its own upload, if it was asked."""

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
    statement: SurvivorStatement | None = None  # the coordinator's signature to these lists


class Total(Message, frozen=True, tag=24):
    """The sum over the survivors; the vectors this party contributes to are in the bulk."""

    survivors: Names  # whose inputs are in the sum
    members: Names  # who goes on: a survivor can be lost while masks are removed
    sizes: tuple[Size, ...]
    offers: dict[Name, Offer] = {}
    more: bool = False  # as in `SumInput`: the host contributes nothing, and has to be told
    lost: Annotated[dict[Name, Lost], msgspec.Meta(max_length=MOST_LOST)] = {}  # who began it, too
    sum: Count = 0  # as in `SumInput`


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
    """The run ends here, for this reason; if members cannot go on, with what each was told last."""

    code: Code
    party: str = ""
    statements: Annotated[  # the last that the members received
        tuple[SurvivorStatement, ...], msgspec.Meta(max_length=MOST_STATEMENTS)
    ] = ()


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
    missing: Names = ()  # whom the coordinator does not reach; sites only show it


class Gather(Message, frozen=True, tag=32):
    """All who accepted, with their parts of the run's id: none can be left out or repeated."""

    nonces: dict[Name, Secret16]


class Examine(Message, frozen=True, tag=33):
    """A complaint, or an upload of the sum that it is about, as its author signed it."""

    who: Annotated[str, msgspec.Meta(max_length=200)]  # "": whose upload was wanted is silent
    head: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN * 16)]
    seed: Annotated[bytes, msgspec.Meta(max_length=64)] = b""  # of an upload's self mask
    input: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN * 8)] = b""  # of who complains
    show: Annotated[str, msgspec.Meta(max_length=200)] = ""  # whose upload is wanted next


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
