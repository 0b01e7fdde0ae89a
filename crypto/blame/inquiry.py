"""Whose tag was wrong: members look at signed uploads whose values stay hidden, and at the total.

When a total does not fit its tag, whoever noticed shows the frame that it came in, and the
coordinator shows all members each upload of the sum, as its author signed it, with the seed of its
self mask. So a member sees z_i = x_i + what i masks with its peers, and its tag
(`crypto.sealing.tags`):

    a complaint whose total fits               convicts who complains
    an upload that does not fit its own tag    convicts its author: it signed it, and dealt the seed
    uploads that fit, and another sum of them  convict the coordinator: it signed what it shows

What this reveals. To the coordinator: that a total failed, which the failure itself tells; it has
had all uploads, and members answer about none that is not signed. To members: z_i of each survivor.
Masks between parties stay on, so whoever knows those of c of them learns the sum over all others,
which the total was to tell, and nothing else; a coordinator with one colluder has uploads, seeds
and the cohort's key without any inquiry. The tag shows nothing more, because it is a function of
z_i and of keys that members have. What values would give away: `tests/security/test_inquiry.py`.
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
from secure_fl.crypto.sealing.public import context_bytes, load, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.segments import salts_with, to_slots
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

MOST_KEPT = 2**28  # bytes of frames that are kept as evidence


class InquiryEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What convicts somebody: frames that the coordinator signed, in their order, and deals.

    Whoever holds the cohort's keys comes to the same verdict by looking at them again.
    """

    accused: Name
    reader: Name  # to whom the frames were sent
    host: Name | None
    bounds: dict[Name, SeedCommitment]
    frames: tuple[bytes, ...]

    def check(self, keys: PartyKeys, coordinator: PublicIdentity) -> None:
        """Refuse evidence that does not convict whom it accuses: edited, cut, or of a right tag."""
        inquiry = Inquiry(keys, coordinator, self.reader, self.host, self.bounds)
        verdict = ""
        for data in self.frames:
            verdict = verdict or inquiry.look(Frame.from_bytes(data))
        if verdict != self.accused:
            raise CryptoError(
                "this evidence does not convict whom it accuses",
                fix="it was edited, or is of other keys; ask another member for its copy",
                party=self.accused,
            )

    def to_bytes(self) -> bytes:
        """For a file of the run's folder."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CryptoError("this is no evidence of a wrong tag") from error


class _Failed(NamedTuple):
    """A segment whose total did not fit its tag, and what was sent as its total."""

    segment: Segment
    told: bytes


class Inquiry:
    """One member's look at a sum that failed: `look` at each frame, and know whom it convicts."""

    def __init__(
        self,
        keys: PartyKeys,
        coordinator: PublicIdentity,
        reader: str,
        host: str | None,
        bounds: Mapping[str, SeedCommitment],  # of all others who began the sum, and of this party
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
        self._seeds: dict[str, bytes] = {}  # of the self masks of those whose uploads were shown
        self._left = RemainingMasks(self._numbers, {}, {}, {})
        self._total: ProtectedTotal | None = None
        self.verdict = ""

    def look(self, frame: Frame) -> str:
        """Look at one frame of the coordinator; returns whom all of them convict, or nobody."""
        envelope = decode(frame, self._coordinator.verify)
        shown = envelope.message
        if not isinstance(shown, Examine) or envelope.receiver != self._reader:
            raise WireError("an inquiry holds frames of the coordinator to one member only")
        self._frames.append(frame)
        if not self.verdict and self._bounds:  # to a host, which holds no shares, nobody is bound
            what = self._complaint if shown.input else self._upload
            self.verdict = what(envelope.run, shown, frame.bulk)
        return self.verdict

    def case(self) -> InquiryEvidence | None:
        """What convicts, to be kept; None if nobody was convicted, or it is too much to keep."""
        first, *uploads = self._frames
        if self.verdict != self._coordinator.name and uploads:
            uploads = uploads[-1:]  # one upload is enough to convict its author
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
        """Whom a complaint convicts at once: who shows a total that fits, or is none."""
        coordinator, party = self._coordinator.name, shown.who
        try:
            if self._run:
                raise WireError("an inquiry is about one complaint")
            complaint = self._signed(Frame(shown.head, bulk), party, run).message
            given = self._signed(Frame(shown.input), party, run, whole=False).message
            if not isinstance(complaint, Complaint) or not isinstance(given, SumInput):
                raise WireError("a complaint and an upload belong together")
        except SecureFLError:
            return coordinator  # it signed that these are theirs
        try:
            sent = decode(Frame(complaint.total, bulk), self._coordinator.verify)
            total = sent.message
            if not isinstance(total, Total) or (sent.run, sent.receiver) != (run, party):
                raise WireError("what is complained about is no total that was sent")
            parts = cut(bulk, total.sizes)
        except SecureFLError:
            return party
        self._run, self._index, self._survivors = run, total.sum, total.survivors
        if given.sum != self._index:
            return coordinator  # which upload the total answers is its word
        self._left = self._remaining(total)
        for place, (segment, told) in enumerate(zip(given.segments, parts, strict=False)):
            if not self._fits_total(place, segment, given.audience, told, total):
                self._failed[segment.key] = _Failed(segment, told)
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
        """The masks with those who were lost, as the coordinator told them."""
        publics = {party: bound.public[:32] for party, bound in self._bounds.items()}
        gone = {party: lost.seed for party, lost in total.lost.items()}
        return RemainingMasks(self._numbers, publics, {}, gone)

    def _fits_total(
        self, place: int, segment: Segment, audience: Audience, told: bytes, total: Total
    ) -> bool:
        """Whether a part of the total fits its tag."""
        owners = self._owners(segment)
        try:
            slots = self._slots(told, segment, audience, len(owners))
            if any(
                masking.public_key(seed) != self._left.publics.get(party)
                for party, seed in self._left.gone.items()
            ):
                return False
            salts = salts_with(total.lost, place, owners)
            key, stream = self._keys.tag_key, self._stream(segment)
            tags.check_sum(
                key, slots, owners, self._numbers, stream, segment.owners, self._left, salts
            )
        except SecureFLError:
            return False
        return True

    # --- uploads ----------------------------------------------------------------------------------

    def _upload(self, run: bytes, shown: Examine, bulk: bytes) -> str:
        """Whom an upload convicts: its author, or the coordinator, once all have been shown."""
        coordinator, party = self._coordinator.name, shown.who
        bound = self._bounds.get(party)
        if self._total is None or party not in self._survivors or bound is None:
            raise WireError("the coordinator shows an upload that no complaint is about")
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
            return coordinator  # it counted what no coordinator counts
        parties = {name for name in self._survivors if name != self._host}
        return self._end() if self._seeds.keys() == parties else ""

    def _fits(self, party: str, sent: SumInput, segment: Segment, data: bytes, seed: bytes) -> bool:
        """Whether an upload fits its own tag, once its self mask is off."""
        t, me, stream = COHORT.modulus, self._numbers[party], self._stream(segment)
        try:
            slots = self._slots(data, segment, sent.audience, 1)
            salts = {self._numbers[p]: s.digest for s in segment.salts for p in s.peers}
        except (SecureFLError, KeyError):
            return False
        own = masking.uniform(masking.stream_key(seed, stream, "self"), slots.size, t)
        slots = (slots + (np.uint64(t) - own)) % np.uint64(t)
        tag = tags.make(self._keys.tag_key, slots[:-1], [me], t, stream)
        tag += tags.bonds(self._keys.tag_key, me, salts, t, stream)
        return int(slots[-1]) == tag % t

    def _end(self) -> str:
        """All uploads fit: the coordinator sent another sum of them, or one was full of noise."""
        assert self._total is not None  # noqa: S101 - uploads come after a complaint
        self._total.left = RemainingMasks(
            self._numbers, self._left.publics, self._seeds, self._left.gone
        )
        found = self._total.unmasked()
        if any(found.get(key) != failed.told for key, failed in self._failed.items()):
            return self._coordinator.name
        return self._noisy()

    def _noisy(self) -> str:
        """Who sealed with more noise than is fresh: its upload opens alone, and no sum with it."""
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

    # --- what both need ---------------------------------------------------------------------------

    def _signed(self, frame: Frame, party: str, run: bytes, *, whole: bool = True) -> Envelope:
        """What a member signed, in this run."""
        card = self._cards.get(party)
        if card is None:
            raise WireError("a frame of somebody who is not on the roster", party=party)
        envelope = decode(frame, card.verify, whole=whole)
        if (envelope.run, envelope.sender) != (run, party):
            raise WireError("a frame of another run, or of another sender", party=party)
        return envelope

    def _owners(self, segment: Segment) -> list[str]:
        """Who contributed to a segment and is in the sum."""
        owners = segment.owners or tuple(n for n in self._numbers if n != self._host)
        return [party for party in self._survivors if party in owners]

    def _opens(self, audience: Audience) -> secret.SecretKey | None:
        """The key of ciphertexts; None where integers are masked only."""
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
    """The segments that a party contributed to, with their parts of its bulk."""
    filled: Sequence[Segment] = [segment for segment in sent.segments if segment.size]
    yield from zip(filled, cut(bulk, [segment.size for segment in filled]), strict=True)
