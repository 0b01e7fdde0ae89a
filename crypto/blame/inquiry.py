"""The members' part of the blame protocol: find the author of a wrong tag, and reveal no values.

docs/protocol.md 9 specifies the party that each finding convicts. A member sees an upload as
z_i = x_i + the masks that i shares with its peers, and its tag (`sealing.tags`).

All frames are judged against one transcript. With `Unmask`, before anything is revealed, the
coordinator signs the sum's number and a digest of all uploads. Each upload carries its author's
commitments, and a digest of the keys that the author took from the others. A frame about another
sum, or an upload that the coordinator did not commit to, convicts the coordinator or nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Self

import msgspec
import numpy as np

from secure_fl.crypto.blame.evidence import BOUND, digest_inputs, digest_taken
from secure_fl.crypto.keys.identity import PublicIdentity, commit
from secure_fl.crypto.sealing import masking, secret, tags
from secure_fl.crypto.sealing.blind_sum import (
    ProtectedTotal,
    check_links,
    check_salts,
    unlike_salts,
)
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import RemainingMasks, Slots, StreamId
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.public import context_bytes, load, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import remaining
from secure_fl.errors import CryptoError, SecureFLError, WireError
from secure_fl.protocol.frames import Envelope, Frame, decode, digest, peek
from secure_fl.protocol.messages import (
    Audience,
    Complaint,
    Examine,
    Name,
    Salt,
    Segment,
    SumInput,
    Total,
    Unmask,
)
from secure_fl.protocol.ports import OfferedKeys

MOST_KEPT = 2**28  # largest evidence in bytes


class InquiryEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evidence against one party: frames signed by the coordinator, in order.

    A holder of the cohort's keys comes to the same verdict by examining them again.
    """

    accused: Name
    reader: Name  # receiver of the frames
    lists: bytes  # the head of the coordinator's commitment to the uploads
    frames: tuple[bytes, ...]

    def check(self, keys: PartyKeys, coordinator: PublicIdentity, host: str | None) -> None:
        """Refuse evidence that does not convict the accused: edited, cut, or of a valid tag.

        The host is the roster's: nobody signs it with the frames, and verdicts depend on it.
        """
        inquiry = Inquiry(keys, coordinator, self.reader, host, self.lists)
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


class _Dispute(NamedTuple):
    """The disputed segment, as the plaintiff signed it, and its part of the total."""

    segment: Segment
    audience: Audience
    part: bytes
    left: RemainingMasks  # masks shared with dropped parties
    owners: frozenset[str]  # contributors that are in the sum
    salts: Mapping[str, Mapping[str, bytes]]  # of their masks with dropped parties, by the total
    cohort: secret.SecretKey | None  # the key of the ciphertexts; None: integers are masked only
    total: ProtectedTotal  # of the uploads shown so far


class Inquiry:
    """One member's examination of a failed sum: `look` at each frame gives the verdict so far."""

    def __init__(
        self,
        keys: PartyKeys,
        coordinator: PublicIdentity,
        reader: str,
        host: str | None,
        lists: bytes,
    ) -> None:
        self._keys, self._coordinator, self._reader, self._host = keys, coordinator, reader, host
        self._lists = lists
        me = keys.identity
        self._cards = {**keys.peers, me.name: me.public}
        self._numbers = {name: number for number, name in enumerate(sorted(self._cards), 1)}
        envelope = decode(Frame(lists), coordinator.verify, whole=False)
        commitment = envelope.message
        if not isinstance(commitment, Unmask) or envelope.receiver != reader:
            raise WireError("an inquiry needs the coordinator's lists of the sum")
        self._run, self._commitment = envelope.run, commitment
        self._index, self._survivors = commitment.sum, commitment.survivors
        self._inputs: dict[str, bytes] = {}  # digests of the uploads' heads
        self._frames: list[Frame] = []
        self._disputed: _Dispute | None = None
        self._seeds: dict[str, bytes] = {}  # of self masks of the uploads shown so far
        self._salts: dict[str, tuple[Salt, ...]] = {}
        self._links: dict[str, Mapping[str, bytes]] = {}
        self.verdict = ""
        self.explained = False  # True if all uploads were shown, and they add up to the total

    def look(self, frame: Frame) -> str:
        """Examine one frame of the coordinator; returns the convicted name, or ""."""
        envelope = decode(frame, self._coordinator.verify)
        shown = envelope.message
        address = envelope.run, envelope.receiver
        if not isinstance(shown, Examine) or address != (self._run, self._reader):
            raise WireError("an inquiry accepts frames of the coordinator to one member only")
        if shown.sum != self._index:
            raise WireError("the coordinator shows frames of another sum")
        if not self.verdict and bool(shown.inputs) != (self._disputed is None):
            raise WireError("an inquiry begins with one complaint, and then shows uploads")
        if shown.who in self._seeds:
            raise WireError("the coordinator shows an upload twice")
        self._frames.append(frame)
        if not self.verdict:
            examine = self._complaint if self._disputed is None else self._upload
            self.verdict = examine(shown, frame.bulk)
        return self.verdict

    def case(self) -> InquiryEvidence | None:
        """Return the evidence; None if nobody is convicted, or it is too large."""
        first, *uploads = self._frames
        if self.verdict != self._coordinator.name and not self.explained:
            uploads = uploads[-1:]  # one upload convicts its author, if it fails alone
        frames = [first, *uploads]
        if not self.verdict or sum(frame.size for frame in frames) > MOST_KEPT:
            return None
        shown = tuple(frame.to_bytes() for frame in frames)
        return InquiryEvidence(self.verdict, self._reader, self._lists, shown)

    # --- the complaint ----------------------------------------------------------------------------

    def _complaint(self, shown: Examine, part: bytes) -> str:
        """Return the party that a complaint convicts at once: its author or the coordinator."""
        coordinator, party = self._coordinator.name, shown.who
        try:
            complaint, given = self._filed(shown)
        except SecureFLError:
            return coordinator  # it signed a frame that this party did not
        place = complaint.segment
        try:
            sent = decode(Frame(complaint.total), self._coordinator.verify, whole=False)
            total = sent.message
            if not isinstance(total, Total) or (sent.run, sent.receiver) != (self._run, party):
                raise WireError("the complaint is not about a total sent to this party")
            segment = given.segments[place]
        except (SecureFLError, IndexError):
            return party
        digests = total.digests or (sent.digest,)
        genuine = len(digests) == len(total.sizes) > place and digest(part) == digests[place]
        if not genuine or (total.sum, total.survivors) != (self._index, self._survivors):
            return coordinator  # it shows another sum, or sent totals of other parties
        publics = {name: taken[:32] for name, taken in shown.taken.items()}
        left = remaining(self._numbers, publics, total.lost)
        parties = set(self._survivors) - {self._host}
        if not publics.keys() >= parties or not left.complete(publics.keys() - parties, parties):
            return party  # an honest plaintiff refuses this total, and does not complain
        owners = segment.owners or tuple(name for name in self._numbers if name != self._host)
        here = frozenset(owners).intersection(self._survivors)
        salts = tags.salts_with(total.lost, place, sorted(here))
        cohort = None if given.audience == Audience.HOST else self._keys.cohort
        empty = self._empty_total(masked_only=cohort is None)
        self._disputed = _Dispute(segment, given.audience, part, left, here, salts, cohort, empty)
        return party if self._fits_total() else ""

    def _filed(self, shown: Examine) -> tuple[Complaint, SumInput]:
        """Return a complaint and its author's upload; refuse what no honest coordinator shows."""
        party, run = shown.who, self._run.hex()
        inputs = shown.inputs
        if digest_inputs(inputs) != self._commitment.inputs or set(inputs) != set(self._survivors):
            raise WireError("the coordinator committed itself to other uploads")
        self._inputs = inputs
        complaint = self._signed(Frame(shown.head), party).message
        given = self._input(party, shown.input)
        if not isinstance(complaint, Complaint):
            raise WireError("the frame is not a complaint")
        if digest_taken(shown.taken, run, self._index, party) != given.taken:
            raise WireError("the plaintiff took other keys")
        if not self._numbers.keys() >= {*shown.taken, *inputs}:
            raise WireError("the sum has parties that are not on the roster")
        return complaint, given

    @property
    def _dispute(self) -> _Dispute:
        if self._disputed is None:
            raise WireError("the coordinator shows an upload without a complaint about its sum")
        return self._disputed

    def _empty_total(self, *, masked_only: bool) -> ProtectedTotal:
        """Prepare to add the uploads of the disputed segment."""
        return ProtectedTotal(
            COHORT.modulus,
            None if masked_only else load(context_bytes(COHORT)),
            offered=OfferedKeys(number=self._index),
            numbers=self._numbers,
            host=self._host,
            threshold=1,
            run=self._run,
        )

    def _fits_total(self) -> bool:
        """Return True if the disputed part fits its tag, so that there was nothing to complain."""
        dispute = self._dispute
        owners, of, left = sorted(dispute.owners), dispute.segment.owners, dispute.left
        try:
            slots = self._slots(dispute.part, len(owners))
            key, stream = self._keys.tag_key, self._stream()
            tags.check_sum(key, slots, owners, self._numbers, stream, of, left, dispute.salts)
        except SecureFLError:
            return False
        return True

    # --- uploads ----------------------------------------------------------------------------------

    def _upload(self, shown: Examine, part: bytes) -> str:
        """Return the party that an upload convicts; the last one may convict the coordinator."""
        coordinator, party, dispute = self._coordinator.name, shown.who, self._dispute
        if party not in dispute.owners:
            raise WireError("the coordinator shows an upload without a complaint about its sum")
        try:
            sent = self._input(party, shown.head)
            places = [s for s in sent.segments if s.key == dispute.segment.key]
            if len(places) != 1 or len(sent.bound) != BOUND or not places[0].size:
                raise WireError("no honest coordinator accepts this upload")
            segment = places[0]
            several = sum(bool(s.size) for s in sent.segments) > 1
            if digest(part) != (segment.digest if several else peek(shown.head).digest):
                raise WireError("the part is not the one that its author signed")
            about = self._run.hex(), self._index, party
            if commit(shown.seed, *about) != sent.bound[-32:]:
                raise WireError("the seed is not the one that its owner committed to")
            described = (segment.slots, segment.owners, sent.audience)
            if described != (dispute.segment.slots, dispute.segment.owners, dispute.audience):
                raise WireError("the plaintiff's upload describes another sum")
            check_salts(party, segment, dispute.left.publics)
            check_links(party, sent, dispute.left.publics)
        except SecureFLError:
            return coordinator
        self._seeds[party], self._salts[party] = shown.seed, segment.salts
        self._links[party] = sent.links
        if not self._fits(party, segment, part, shown.seed):
            return party
        try:
            dispute.total.add(party, [segment], part)
        except SecureFLError:
            return coordinator  # no honest coordinator counts such an upload
        return self._end() if self._seeds.keys() == dispute.owners else ""

    def _fits(self, party: str, segment: Segment, data: bytes, seed: bytes) -> bool:
        """Return True if an upload fits its own tag, after its self mask is removed."""
        t, me, stream = COHORT.modulus, self._numbers[party], self._stream()
        try:
            slots = self._slots(data, 1)
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
        dispute = self._dispute
        if unlike_salts(self._salts):
            return self._coordinator.name  # an honest coordinator opens no such sum
        left = dispute.left
        dispute.total.left = replace(left, self_seeds=self._seeds)
        key = dispute.segment.key
        if dispute.total.unmasked().get(key) != dispute.part:
            return self._coordinator.name
        links = {p: {o: self._links[o][p] for o in dispute.owners} for p in left.dropped}
        given = {p: {o: left.links[p][o] for o in dispute.owners} for p in left.dropped}
        if (dispute.total.salts(key), links) != (dispute.salts, given):
            return self._coordinator.name
        self.explained = True
        return self._noisy()

    def _noisy(self) -> str:
        """Find an upload sealed with too much noise: it opens alone, but spoils every sum."""
        cohort, slots = self._dispute.cohort, self._dispute.segment.slots
        if cohort is None:
            return ""
        for frame in self._frames[1:]:
            shown = peek(frame.head).message
            assert isinstance(shown, Examine)  # noqa: S101 - it was looked at
            if not secret.is_fresh(cohort, to_parts(frame.bulk, slots), slots):
                return shown.who
        return ""

    # --- helpers ----------------------------------------------------------------------------------

    def _signed(self, frame: Frame, party: str) -> Envelope:
        """Decode a head that a member signed in this run."""
        card = self._cards.get(party)
        if card is None:
            raise WireError("a frame of a member that is not on the roster", party=party)
        envelope = decode(frame, card.verify, whole=False)
        if (envelope.run, envelope.sender) != (self._run, party):
            raise WireError("a frame of another run, or of another sender", party=party)
        return envelope

    def _input(self, party: str, head: bytes) -> SumInput:
        """Decode an upload of this sum that the coordinator committed to."""
        message = self._signed(Frame(head), party).message
        if digest(head) != self._inputs.get(party) or not isinstance(message, SumInput):
            raise WireError("the coordinator committed itself to another upload", party=party)
        if message.sum != self._index:
            raise WireError("an upload of another sum", party=party)
        return message

    def _slots(self, data: bytes, summed: int) -> Slots:
        cohort, count = self._dispute.cohort, self._dispute.segment.slots
        if cohort is None:
            return to_slots(data, count, COHORT.modulus)
        return secret.open(cohort, to_parts(data, count), count, summed)

    def _stream(self) -> StreamId:
        return StreamId(self._run.hex(), self._dispute.segment.key.hex(), self._index)
