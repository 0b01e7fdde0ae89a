"""Interfaces of the privacy layer: the party's half and the coordinator's half of a sum.

In `crypto.sealing`, `secure_sum` and `clear_sum` implement the party's half, `blind_sum` and
`clear_sum` the coordinator's. This module defines the methods between them and the two machines.
Each is documented here; implementations document what is specific to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import CohortError
from secure_fl.protocol.messages import (
    Audience,
    Confirm,
    Confirmed,
    Lost,
    Offer,
    Segment,
    SumId,
    SumInput,
    SurvivorStatement,
    Unmask,
    UnmaskShares,
)

if TYPE_CHECKING:
    from secure_fl.crypto.keys.identity import PublicIdentity
    from secure_fl.protocol.frames import Frame

# Integers: with their noise. float64: integers beyond the digits of float32.
Vector: TypeAlias = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]
Arrays: TypeAlias = dict[str, NDArray[np.float64]]
NONE_LOST: Mapping[str, Lost] = MappingProxyType({})
NO_ARRAYS: Mapping[str, NDArray[np.float64]] = MappingProxyType({})


class Group(NamedTuple):
    """Vectors with the same contributors: one segment of a sum."""

    owners: tuple[str, ...]
    vectors: Mapping[str, Vector]
    readers: tuple[str, ...] = ()  # parties that get the sum and contribute nothing


class Noise(Protocol):
    """A party's share of a sum's differential-privacy noise (`privacy.noise.SkellamNoise`)."""

    @property
    def scale(self) -> float:
        """Grid steps per unit."""

    @property
    def reach(self) -> float:
        """Bound of a party's noised integers, except with negligible probability."""

    @property
    def prepaid(self) -> bool:
        """True if values carry their noise already, and the ledger has it."""

    def share(self, x: NDArray[Any]) -> NDArray[np.int64]:
        """Clip, round to the grid, and add fresh noise from the operating system.

        Integers that carry their noise already are returned as they are.
        """

    def __hash__(self) -> int:
        """Hash the mechanism: reservations are counted by mechanism."""

    def check_survivors(self, survivors: int) -> None:
        """Refuse to open a sum that lost too much of its noise."""


class Rule(NamedTuple):
    """Encoding and audience of one sum."""

    audience: Audience = Audience.PARTIES
    carry: bool = False  # add the rounding error to the next sum
    bound: float | None = None  # public bound of every value; larger ones are an error
    noise: Noise | None = None


class Upload(NamedTuple):
    """A party's contribution, ready to send: public sizes, and bytes only parties can open."""

    segments: tuple[Segment, ...]
    data: bytes
    sum: int = 0  # masked sums are counted from 1
    bound: bytes = b""  # this party's commitments to its masks
    taken: bytes = b""  # digest of the keys and shares that it took
    links: Mapping[str, bytes] = {}  # by party, of the secrets of masks


class SlotLayout(Protocol):
    """Public layout of the slots of one segment (`sealing.segments.Layout`)."""

    @property
    def fields(self) -> Sequence[Any]:
        """The vectors in their order."""

    @property
    def codec(self) -> Any:
        """The parameters of the fixed-point encoding."""


class SumInProgress(Protocol):
    """One sum at one party, with its keys and state; each step once, in this order."""

    @property
    def upload(self) -> Upload:
        """The message to the coordinator."""

    @property
    def layouts(self) -> Sequence[SlotLayout | None]:
        """The layout of each segment, equal at all parties; None in the clear."""

    @property
    def unscaled(self) -> Sequence[str]:
        """Names whose summed norms are invalid: these keep their scale."""

    def settle(self, lists: Unmask) -> Confirm | None:
        """Accept the survivor lists; returns a signature of them if they name dropouts."""

    def shares(self, confirmed: Confirmed | None) -> UnmaskShares:
        """Return the shares that let the coordinator remove masks, or refuse."""

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NONE_LOST
    ) -> Arrays:
        """Check and open the totals; without masks this is the only step."""


class StoredEvidence(Protocol):
    """Evidence against a party or the coordinator (`crypto.blame.inquiry.InquiryEvidence`)."""

    def to_bytes(self) -> bytes:
        """Encode for a file."""


class SumInquiry(Protocol):
    """A member's examination of a failed sum (`crypto.blame.inquiry.Inquiry`)."""

    @property
    def explained(self) -> bool:
        """True if all uploads were shown, and add up to the total: nobody changed it."""

    def look(self, frame: Frame) -> str:
        """Examine one frame of the coordinator; returns the convicted name, or ""."""

    def case(self) -> StoredEvidence | None:
        """Return the evidence, if somebody is convicted."""


class SumLayer(Protocol):
    """The party's half of all sums of one run."""

    def upload(self, number: int) -> bytes:
        """Return the upload of a sum for an inquiry, or b"" if it is not kept."""

    def inquiry(self, coordinator: PublicIdentity, lists: bytes) -> SumInquiry | None:
        """Begin an inquiry into the sum of these lists (the head of the coordinator's `Unmask`).

        None without masks, where uploads are values.
        """

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> SumInProgress:
        """Encode, noise, mask and encrypt, with keys for this sum alone."""

    def next_keys(
        self, members: Sequence[str], statement: SurvivorStatement | None = None
    ) -> Offer | None:
        """Make fresh keys and shares for the next sum; None in a mode without masks.

        `statement` travels with the keys: the coordinator cannot pass on the keys without it.
        """

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Store the keys and shares of all other members for the next sum."""


class EnvelopeLayer(Protocol):
    """Messages between parties that the coordinator can neither read nor forge."""

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Seal bytes for all parties, not for the coordinator."""

    def open(self, data: bytes, context: bytes) -> bytes:
        """Open bytes that another party sealed."""

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """Return a digest that only parties can connect with the data."""

    def vouch(self, statement: bytes) -> bytes:
        """Sign a statement with this party's identity."""

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        """Return True if that party signed the statement."""


class ScaleLayer:
    """Scales and rounding errors of vectors; this base class has none, for sums in the clear."""

    def unknown(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        """Return vectors to sum first so that all parties share a scale (often none)."""
        return ()

    def capped(self, groups: Sequence[Group], *, partial: bool = False) -> Sequence[Group]:
        """Return what `unknown` asked for, with every number limited to the exact range.

        In a `partial` sum too large numbers stay, and are an error.
        """
        return groups

    def beyond(
        self, groups: Sequence[Group], sums: Mapping[str, NDArray[np.float64]]
    ) -> Sequence[Group]:
        """Return numbers to sum again in another unit, since the range may have limited one."""
        return ()

    def learn(
        self,
        sums: Mapping[str, NDArray[np.float64]],
        again: Mapping[str, NDArray[np.float64]] = NO_ARRAYS,
    ) -> None:
        """Store the scales from the sums that `unknown` and then `beyond` asked for."""

    def clipped(self) -> Sequence[str]:
        """Return, once, the vectors of which the last sums carried most over to the next."""
        return ()

    def forget(self, names: Sequence[str]) -> None:
        """Discard scales of these names that other parties do not know."""

    def leftover(self, name: str) -> Vector | None:
        """Remove and return the rounding error of the last carried value of this name."""
        return None

    def postpone(self, me: str, groups: Sequence[Group], rule: Rule) -> Arrays:
        """Return zeros in place of sums that were not opened, and carry their values to the next.

        Values that are not carried raise an error.
        """
        raise CohortError(
            "a party left between two parts of a large sum, whose values cannot wait for the next "
            "sum",
            fix="resume the run: the round is repeated",
            party=me,
        )


class TranscriptLayer:
    """State that a party keeps from sum to sum, and saves with each round; this base class: none.

    In sums in the clear nothing is masked, so nothing depends on the history.
    """

    scales: ScaleLayer = ScaleLayer()

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        """Record data sent to all parties, or to all and the host.

        Masks depend on it: a party that did not receive it cannot open later sums.
        """

    def turn(self) -> None:
        """Mark the end of a round, before it is saved."""

    def common(self) -> Mapping[str, Any]:
        """Return the state that is equal at all parties: scales and history."""
        return {}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Replace the state by the one that is equal at all others, without leftovers."""

    def scaling(self) -> Mapping[str, Any]:
        """Return the present scales and leftovers.

        By name of a vector: "grid" has the mean squared norm of a party's vector in the last sum,
        "own" the squared norm of this party's first vector, which had no scale.
        """
        return {"grid": {}, "own": {}}

    def rescale(self, before: Mapping[str, Any]) -> None:
        """Restore scales and leftovers from `scaling`; the history stays."""

    def state(self) -> Mapping[str, Any]:
        """Return scales, leftovers, history and the random state, for checkpoints."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""


class PrivacyLayer(NamedTuple):
    """The three parts of a party's privacy layer."""

    sums: SumLayer
    envelopes: EnvelopeLayer
    transcript: TranscriptLayer


class OfferedKeys(NamedTuple):
    """Key offers of one exchange: the members, their offers, and the number of the masked sum."""

    members: tuple[str, ...] = ()
    offers: Mapping[str, Offer] = {}
    number: int = 0  # masked sums are counted from 1, as at the parties


class BlindTotal(Protocol):
    """The coordinator's half of one sum: it adds sealed contributions as they arrive."""

    @property
    def masked(self) -> bool:
        """True if the parties must answer an `Unmask` before there is a result."""

    def admit(self, sender: str, upload: SumInput) -> None:
        """Refuse an upload of another sum, or under other keys than were exchanged."""

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        """Add one party's contribution, which is not stored separately; check what it reads."""

    def require_consistent(self, survivors: Collection[str]) -> None:
        """Refuse a sum that would fail because of uploads that contradict each other."""

    def forget(self, keys: Collection[bytes]) -> None:
        """Drop segments of parties that are removed from the sum."""

    def check(self, sender: str, shares: UnmaskShares, survivors: Sequence[str]) -> None:
        """Refuse shares that are not the needed ones, or not those that were dealt."""

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        """Return the total of each segment by its key, with masks removed by these shares."""

    def self_mask_seeds(self) -> Mapping[str, bytes]:
        """Return the seed of each contributor's self mask, for an inquiry; or none."""

    def lost(self, keys: Sequence[bytes]) -> dict[str, Lost]:
        """Return the seeds of lost parties' masks, for a reader of these segments."""


TotalFor: TypeAlias = Callable[[Audience, OfferedKeys], BlindTotal]
