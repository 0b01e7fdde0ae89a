"""The members' part of the blame protocol: find the author of a wrong tag, and reveal no values.

If a total does not fit its tag, the party that noticed shows the frame of the total. The
coordinator then shows all members each upload of the sum, as its author signed it, with the seed of
its self mask. So a member sees z_i = x_i + the masks that i shares with its peers, and its tag
(`sealing.tags`):

    a complaint whose total fits                  convicts the plaintiff
    an upload that does not fit its own tag       convicts its author, who signed it
    uploads that fit, and a different total       convict the coordinator, which signed both

What this reveals. To the coordinator: that a total failed, which the failure shows anyway. It has
all uploads already, and members answer only about signed ones. To members: z_i of each survivor.
Masks between parties stay on. A member that knows those of c parties learns the sum over all
others, which the total would have revealed, and nothing else. A coordinator with one colluder has
uploads, seeds and the cohort's key without any inquiry. The tag reveals nothing more, because it is
a function of z_i and of keys that members have. `tests/security/test_inquiry.py` shows that the
values themselves would reveal more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import msgspec
import numpy as np

from secure_fl.crypto.blame.evidence import SeedCommitment
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.sealing import masking, secret, tags
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import RemainingMasks, Slots, StreamId
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.public import context_bytes, load, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, SecureFLError, WireError
from secure_fl.protocol.frames import Envelope, Frame, cut, decode, peek
from secure_fl.protocol.messages import (
    Audience,
    Complaint,
    Examine,
    Name,
    Segment,
    SumInput,
    Total,
)
from secure_fl.protocol.ports import OfferedKeys

MOST_KEPT = 2**28  # largest evidence in bytes


class InquiryEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evidence against one party: frames signed by the coordinator, in order, and commitments.

    A holder of the cohort's keys comes to the same verdict by examining them again.
    """

    accused: Name
    reader: Name  # receiver of the frames
    host: Name | None
    bounds: dict[Name, SeedCommitment]
    frames: tuple[bytes, ...]

    def check(self, keys: PartyKeys, coordinator: PublicIdentity) -> None:
        """Refuse evidence that does not convict the accused: edited, cut, or of a valid tag."""
        inquiry = Inquiry(keys, coordinator, self.reader, self.host, self.bounds)
        verdict = ""
        for data in self.frames:
            verdict = verdict or inquiry.look(Frame.from_bytes(data))
        if verdict != self.accused:
            raise CryptoError(
                "this evidence does not convict the party that it accuses",
                fix="it was edited, or is of other keys; ask another member for its copy",
                party=self.accused,
            )

    def to_bytes(self) -> bytes:
        """Encode for a file in the run's folder."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the result of `to_bytes`."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CryptoError("these bytes are not evidence of a wrong tag") from error


class _Failed(NamedTuple):
    """A segment whose total did not fit its tag, and that total."""

    segment: Segment
    total: bytes


class Inquiry:
    """One member's examination of a failed sum: `look` at each frame gives the verdict so far."""

    def __init__(
        self,
        keys: PartyKeys,
        coordinator: PublicIdentity,
        reader: str,
        host: str | None,
        bounds: Mapping[str, SeedCommitment],  # of all parties that began the sum
    ) -> None:
        self._keys, self._coordinator, self._reader, self._host = keys, coordinator, reader, host
        me = keys.identity
        self._cards = {**keys.peers, me.name: me.public}
        self._numbers = {name: number for number, name in enumerate(sorted(self._cards), 1)}
        self._bounds = bounds
        self._frames: list[Frame] = []
        self._run, self._index = b"", 0
        self._survivors: tuple[str, ...] = ()
        self._failed: dict[bytes, _Failed] = {}
        self._seeds: dict[str, bytes] = {}  # of self masks of the uploads shown so far
        self._left = RemainingMasks(self._numbers, {}, {}, {})
        self._total: ProtectedTotal | None = None
        self.verdict = ""

    def look(self, frame: Frame) -> str:
        """Examine one frame of the coordinator; returns the convicted name, or ""."""
        envelope = decode(frame, self._coordinator.verify)
        shown = envelope.message
        if not isinstance(shown, Examine) or envelope.receiver != self._reader:
            raise WireError("an inquiry accepts frames of the coordinator to one member only")
        self._frames.append(frame)
        if not self.verdict and self._bounds:  # a host holds no shares, so it has no commitments
            examine = self._complaint if shown.input else self._upload
            self.verdict = examine(envelope.run, shown, frame.bulk)
        return self.verdict

    def case(self) -> InquiryEvidence | None:
        """Return the evidence; None if nobody is convicted, or it is too large."""
        first, *uploads = self._frames
        if self.verdict != self._coordinator.name and uploads:
            uploads = uploads[-1:]  # one upload convicts its author
        frames = [first, *uploads]
        if not self.verdict or sum(frame.size for frame in frames) > MOST_KEPT:
            return None
        return InquiryEvidence(
            self.verdict,
            self._reader,
            self._host,
            dict(self._bounds),
            tuple(frame.to_bytes() for frame in frames),
        )

    # --- the complaint ----------------------------------------------------------------------------

    def _complaint(self, run: bytes, shown: Examine, bulk: bytes) -> str:
        """Return the party that a complaint convicts at once: its author or the coordinator."""
        coordinator, party = self._coordinator.name, shown.who
        try:
            if self._run:
                raise WireError("an inquiry has one complaint")
            complaint = self._signed(Frame(shown.head, bulk), party, run).message
            given = self._signed(Frame(shown.input), party, run, whole=False).message
            if not isinstance(complaint, Complaint) or not isinstance(given, SumInput):
                raise WireError("the frames are not a complaint and an upload")
        except SecureFLError:
            return coordinator  # it signed a frame that this party did not
        try:
            sent = decode(Frame(complaint.total, bulk), self._coordinator.verify)
            total = sent.message
            if not isinstance(total, Total) or (sent.run, sent.receiver) != (run, party):
                raise WireError("the complaint is not about a total sent to this party")
            parts = cut(bulk, total.sizes)
        except SecureFLError:
            return party
        self._run, self._index, self._survivors = run, total.sum, total.survivors
        if given.sum != self._index:
            return coordinator  # it chose the upload that belongs to the total
        self._left = self._remaining(total)
        for place, (segment, part) in enumerate(zip(given.segments, parts, strict=False)):
            if not self._fits_total(place, segment, given.audience, part, total):
                self._failed[segment.key] = _Failed(segment, part)
        if not self._failed:
            return party
        members = sorted(self._cards)
        public = None if self._opens(given.audience) is None else load(context_bytes(COHORT))
        self._total = ProtectedTotal(
            COHORT.modulus,
            public,
            masks=True,
            offered=OfferedKeys(number=self._index),
            numbers={name: self._numbers[name] for name in members},
            host=self._host,
            threshold=1,
            run=run,
        )
        return ""

    def _remaining(self, total: Total) -> RemainingMasks:
        """Return the masks shared with lost parties, as the coordinator sent them."""
        publics = {party: bound.public[:32] for party, bound in self._bounds.items()}
        dropped = {party: lost.seed for party, lost in total.lost.items()}
        return RemainingMasks(self._numbers, publics, {}, dropped)

    def _fits_total(
        self, place: int, segment: Segment, audience: Audience, data: bytes, total: Total
    ) -> bool:
        """Return True if a part of the total fits its tag."""
        owners = self._owners(segment)
        try:
            slots = self._slots(data, segment, audience, len(owners))
            if any(
                masking.public_key(seed) != self._left.publics.get(party)
                for party, seed in self._left.dropped.items()
            ):
                return False
            salts = tags.salts_with(total.lost, place, owners)
            key, stream = self._keys.tag_key, self._stream(segment)
            tags.check_sum(
                key, slots, owners, self._numbers, stream, segment.owners, self._left, salts
            )
        except SecureFLError:
            return False
        return True

    # --- uploads ----------------------------------------------------------------------------------

    def _upload(self, run: bytes, shown: Examine, bulk: bytes) -> str:
        """Return the party that an upload convicts; the last one may convict the coordinator."""
        coordinator, party = self._coordinator.name, shown.who
        bound = self._bounds.get(party)
        if self._total is None or party not in self._survivors or bound is None:
            raise WireError("the coordinator shows an upload without a complaint about its sum")
        try:
            sent = self._signed(Frame(shown.head, bulk), party, run).message
            genuine = isinstance(sent, SumInput) and sent.sum == self._index
            bound.check(self._cards[party], run.hex(), self._index)
            if not genuine or not bound.binds(shown.seed, run.hex(), self._index, party):
                return coordinator
        except SecureFLError:
            return coordinator
        assert isinstance(sent, SumInput)  # noqa: S101 - it is genuine
        self._seeds[party] = shown.seed
        for segment, data in _segments(sent, bulk):
            if segment.key in self._failed and not self._fits(
                party, sent, segment, data, shown.seed
            ):
                return party
        try:
            self._total.add(party, sent.segments, bulk)
        except SecureFLError:
            return coordinator  # no honest coordinator counts such an upload
        parties = {name for name in self._survivors if name != self._host}
        return self._end() if self._seeds.keys() == parties else ""

    def _fits(self, party: str, sent: SumInput, segment: Segment, data: bytes, seed: bytes) -> bool:
        """Return True if an upload fits its own tag, after its self mask is removed."""
        t, me, stream = COHORT.modulus, self._numbers[party], self._stream(segment)
        try:
            slots = self._slots(data, segment, sent.audience, 1)
            salts = {self._numbers[p]: s.digest for s in segment.salts for p in s.peers}
        except (SecureFLError, KeyError):
            return False
        self_mask = masking.uniform(masking.stream_key(seed, stream, "self"), slots.size, t)
        slots = (slots + (np.uint64(t) - self_mask)) % np.uint64(t)
        tag = tags.make(self._keys.tag_key, slots[:-1], [me], t, stream)
        tag += tags.bonds(self._keys.tag_key, me, salts, t, stream)
        return int(slots[-1]) == tag % t

    def _end(self) -> str:
        """Judge the total after all uploads: it is another sum, or one upload was too noisy."""
        assert self._total is not None  # noqa: S101 - uploads come after a complaint
        self._total.left = RemainingMasks(
            self._numbers, self._left.publics, self._seeds, self._left.dropped
        )
        totals = self._total.unmasked()
        if any(totals.get(key) != failed.total for key, failed in self._failed.items()):
            return self._coordinator.name
        return self._noisy()

    def _noisy(self) -> str:
        """Find an upload sealed with too much noise: it opens alone, but spoils every sum."""
        for frame in self._frames[1:]:
            shown = peek(frame.head).message
            assert isinstance(shown, Examine)  # noqa: S101 - it was looked at
            sent = peek(shown.head).message
            assert isinstance(sent, SumInput)  # noqa: S101 - it was looked at
            cohort = self._opens(sent.audience)
            for segment, data in _segments(sent, frame.bulk):
                if cohort is None or segment.key not in self._failed:
                    continue
                if not secret.is_fresh(cohort, to_parts(data, segment.slots), segment.slots):
                    return shown.who
        return ""

    # --- helpers ----------------------------------------------------------------------------------

    def _signed(self, frame: Frame, party: str, run: bytes, *, whole: bool = True) -> Envelope:
        """Decode a frame that a member signed in this run."""
        card = self._cards.get(party)
        if card is None:
            raise WireError("a frame of a member that is not on the roster", party=party)
        envelope = decode(frame, card.verify, whole=whole)
        if (envelope.run, envelope.sender) != (run, party):
            raise WireError("a frame of another run, or of another sender", party=party)
        return envelope

    def _owners(self, segment: Segment) -> list[str]:
        """Return the contributors to a segment that are in the sum."""
        owners = segment.owners or tuple(n for n in self._numbers if n != self._host)
        return [party for party in self._survivors if party in owners]

    def _opens(self, audience: Audience) -> secret.SecretKey | None:
        """Return the key of the ciphertexts; None if integers are masked only."""
        return None if audience == Audience.HOST else self._keys.cohort

    def _slots(self, data: bytes, segment: Segment, audience: Audience, summed: int) -> Slots:
        cohort = self._opens(audience)
        if cohort is None:
            slots = to_slots(data, segment.slots)
            if int(slots.max(initial=0)) >= COHORT.modulus:
                raise WireError("a masked value is not below the modulus", field="slots")
            return slots
        return secret.open(cohort, to_parts(data, segment.slots), segment.slots, summed)

    def _stream(self, segment: Segment) -> StreamId:
        return StreamId(self._run.hex(), segment.key.hex(), self._index)


def _segments(sent: SumInput, bulk: bytes) -> Iterator[tuple[Segment, bytes]]:
    """Yield the segments that a party contributed to, with their parts of its bulk."""
    filled: Sequence[Segment] = [segment for segment in sent.segments if segment.size]
    yield from zip(filled, cut(bulk, [segment.size for segment in filled]), strict=True)
