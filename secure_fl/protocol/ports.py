"""What a sum needs from the privacy layer: the party's half and the coordinator's half.

In `crypto.sealing`, `secure_sum`, `sum_under_way` and `clear_sum` implement the party's half,
`blind_sum` (and `clear_sum`) the coordinator's. This file only fixes the shape between them
and the two machines, so that both ends can be read, typed and tested alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.protocol.messages import (
    Audience,
    Confirm,
    Confirmed,
    Lost,
    Offer,
    Segment,
    SumId,
    Told,
    Unmask,
    UnmaskShares,
)

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import PublicIdentity
    from secure_fl.crypto.sealing.segments import Layout
    from secure_fl.protocol.frames import Frame

Vector: TypeAlias = NDArray[np.float32]
NOBODY: Mapping[str, Lost] = MappingProxyType({})


class Group(NamedTuple):
    """Vectors that the same parties contribute: one segment of a sum."""

    owners: tuple[str, ...]
    vectors: Mapping[str, Vector]
    readers: tuple[str, ...] = ()  # who gets the sum and contributes nothing


class Noise(Protocol):
    """A party's share of a sum's differential-privacy noise (`privacy.noise.SkellamNoise`)."""

    @property
    def scale(self) -> float:
        """Grid steps per unit."""

    @property
    def reach(self) -> float:
        """What no party's noised integer exceeds, but with negligible probability."""

    def share(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Clip, put on the grid, and add fresh noise from the operating system."""

    def __hash__(self) -> int:
        """Equal noise is the same mechanism: reservations are counted by it."""

    def check_survivors(self, survivors: int) -> None:
        """Refuse to open a sum that lost too much of its noise."""


class Rule(NamedTuple):
    """How one sum is encoded, and for whom."""

    audience: Audience = Audience.PARTIES
    carry: bool = False  # keep what rounding leaves over, and add it to the next sum
    bound: float | None = None  # a public bound of every value; beyond it is an error
    noise: Noise | None = None


class Upload(NamedTuple):
    """A party's contribution, ready to leave: public sizes, and bytes nobody else can read."""

    segments: tuple[Segment, ...]
    data: bytes
    sum: int = 0  # masked sums are counted from 1


class SumUnderWay(Protocol):
    """One sum at one party, with its keys and all of its state; each step once, in this order."""

    @property
    def upload(self) -> Upload:
        """What leaves for the coordinator."""

    @property
    def layouts(self) -> Sequence[Layout | None]:
        """How each segment lies in slots, equal at all parties; None in the clear."""

    @property
    def unscaled(self) -> Sequence[str]:
        """The names whose norms, opened with the sum, cannot be norms: their scale stays."""

    def settle(self, lists: Unmask) -> Confirm | None:
        """A signature under lists that name somebody as dropped; None where nobody is."""

    def shares(self, confirmed: Confirmed | None) -> UnmaskShares:
        """Shares that let the coordinator remove masks, or a refusal."""

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NOBODY
    ) -> dict[str, NDArray[np.float64]]:
        """Check and open the totals; a sum without masks is opened without the two steps before."""


class Evidence(Protocol):
    """What convicts somebody, to be kept (`crypto.blame.inquiry.Case`)."""

    def to_bytes(self) -> bytes:
        """For a file."""


class Inquiry(Protocol):
    """A look at a sum that failed (`crypto.blame.inquiry.Inquiry`)."""

    def look(self, frame: Frame) -> str:
        """Look at one frame of the coordinator; returns whom all of them convict, or nobody."""

    def case(self) -> Evidence | None:
        """What convicts."""


class Sums(Protocol):
    """The party's half of every sum of one run."""

    @property
    def sent(self) -> bytes:
        """What left of the sum that began last."""

    def inquiry(self, coordinator: PublicIdentity) -> Inquiry | None:
        """A look at that sum, if it was masked: else nothing of it may be shown."""

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> SumUnderWay:
        """Encode, noise, mask and encrypt, for this sum and no other."""

    def next_keys(self, members: Sequence[str], told: Told | None = None) -> Offer | None:
        """Fresh keys and shares for the next sum, or None where a mode needs none.

        `told`: goes with them, so that nobody who takes them can be kept from it.
        """

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Take the keys and shares of all other members for the next sum."""

    def unscaled(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        """What must be summed first so that all parties share a scale (often nothing)."""

    def learn(self, sums: Mapping[str, NDArray[np.float64]]) -> None:
        """Take the scales out of the sums that `unscaled` asked for."""

    def forget(self, names: Sequence[str]) -> None:
        """Do not use the scales that this party knows of these names: others do not know them."""

    def leftover(self, name: str) -> Vector | None:
        """What the last carried value of this name left over, which is then forgotten."""

    def postpone(self, groups: Sequence[Group], rule: Rule) -> dict[str, NDArray[np.float64]]:
        """Zeros in place of sums that were not opened; what is carried waits, whole, for the next.

        An error where it cannot wait.
        """


class Envelopes(Protocol):
    """What parties tell each other through a coordinator that can neither read nor forge it."""

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Seal bytes for all parties, not for the coordinator."""

    def open(self, data: bytes, context: bytes) -> bytes:
        """Open what another party put into an envelope."""

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """A digest that only parties can connect with the data."""

    def vouch(self, statement: bytes) -> bytes:
        """Sign it, as no other party could."""

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        """Whether that party signed it."""


class Transcript(Protocol):
    """What a party keeps from sum to sum, and saves with each round."""

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        """All parties, or all with the host, were sent this: sums of who was not do not open."""

    def turn(self) -> None:
        """A round is over, and about to be saved."""

    def common(self) -> Mapping[str, Any]:
        """What of the state is equal at all parties: scales, and what all have seen."""

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Take over what is equal at all others; nothing is left over here yet."""

    def scaling(self) -> Mapping[str, Any]:
        """Scales and leftovers as they are now.

        By name of a vector: "grid" has the squared norm of a party in the mean, as it was summed
        last; "own" that of this party's first one, which nothing was known about.
        """

    def rescale(self, before: Mapping[str, Any]) -> None:
        """Take scales and leftovers back to what `scaling` gave; what was seen stays seen."""

    def state(self) -> Mapping[str, Any]:
        """Scales, leftovers, what was seen and the rounding's random state, for checkpoints."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""


class PrivacyLayer(NamedTuple):
    """All that stands between a party's values and the wire."""

    sums: Sums
    envelopes: Envelopes
    transcript: Transcript


class Offered(NamedTuple):
    """The offers of one exchange, the members they were made for, and for which masked sum."""

    members: tuple[str, ...] = ()
    offers: Mapping[str, Offer] = {}
    number: int = 0  # masked sums are counted from 1, as at the parties


class BlindTotal(Protocol):
    """The coordinator's half of one sum: it adds what it cannot read, as it arrives."""

    @property
    def masked(self) -> bool:
        """Whether the parties must answer an `Unmask` before there is a result."""

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        """Add one party's contribution; nothing of it is kept apart."""

    def forget(self, keys: Collection[bytes]) -> None:
        """Drop segments to which only those contributed who are taken out of the sum."""

    def check(self, sender: str, shares: UnmaskShares, survivors: Sequence[str]) -> None:
        """Refuse shares that do not help to remove the masks of a sum over these."""

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        """The total of each segment, by its key; `shares` of the survivors remove the masks."""

    def selves(self) -> Mapping[str, bytes]:
        """By contributor, the seed of its self mask; none where an inquiry would show values."""

    def lost(self, keys: Sequence[bytes]) -> dict[str, Lost]:
        """Of who was lost, what its masks follow from; for whoever reads these segments."""


TotalFor: TypeAlias = Callable[[Audience, Offered], BlindTotal]
