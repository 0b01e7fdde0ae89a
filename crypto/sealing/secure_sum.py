"""The party's half of protected sums: it seals this party's vectors, and opens the totals.

Sealing encodes the vectors as integers in slots, adds masks and a tag, and encrypts the slots. In
`secagg` there are no ciphertexts: a pad that all parties add hides the sum from the coordinator.
After the upload, a sum is settled, its shares are revealed, and it is opened: each once, and in
this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import structs

from secure_fl.crypto.blame.inquiry import Inquiry
from secure_fl.crypto.keys.identity import Channel, PublicIdentity, keyed_digest
from secure_fl.crypto.sealing import masking, secret, tags
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import Layout, check_bound, from_slots, segment_key, to_slots
from secure_fl.crypto.sealing.public import from_parts, to_parts
from secure_fl.crypto.sealing.scheme import COHORT, check_cohort
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.transcript import Transcript, audience_of
from secure_fl.errors import DISTRUST, CohortError, TamperError
from secure_fl.protocol.frames import digest
from secure_fl.protocol.messages import (
    Audience,
    Confirm,
    Confirmed,
    Lost,
    Offer,
    Segment,
    SumId,
    SurvivorStatement,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import NONE_LOST, Arrays, Group, Rule, Upload, Vector
from secure_fl.thresholds import require_maskable


@dataclass(frozen=True, slots=True)
class SumContext:
    """State that all sums of one run share at one party."""

    me: str
    keys: PartyKeys
    digest_key: bytes
    transcript: Transcript
    run: str
    host: str | None
    numbers: Mapping[str, int]  # every member of the run, numbered from 1 in order of names
    parties: int  # number of contributors: all members but the host


class SentSegment(NamedTuple):
    """One segment of a sum, as this party sent it."""

    group: Group
    layout: Layout
    stream: StreamId  # of all its masks and its tag
    rounding_errors: Mapping[str, Vector]


class SecureSumInProgress:
    """One sum at one party, from upload to opening, with keys for this sum alone."""

    def __init__(
        self,
        context: SumContext,
        index: int,
        keys: StepKeys,
        groups: Sequence[Group],
        rule: Rule,
        at: SumId,
    ) -> None:
        self._context, self._index, self._keys, self._rule = context, index, keys, rule
        self._sent: list[SentSegment] = []
        self._opened = False
        self.unscaled: list[str] = []  # names whose norms in this sum were invalid
        self.upload = self._make_upload(groups, at)
        self.layouts = tuple(segment.layout for segment in self._sent)

    # --- sealing (docs/protocol.md 4.8) -----------------------------------------------------------

    def _make_upload(self, groups: Sequence[Group], at: SumId) -> Upload:
        """Seal all groups; several segments with bytes also get digests."""
        keys, sealed = self._keys, [self._seal(group, at) for group in groups]
        segments = tuple(segment for segment, _ in sealed)
        if sum(bool(segment.size) for segment in segments) > 1:
            segments = tuple(
                structs.replace(segment, digest=digest(data)) for segment, data in sealed
            )
        data = b"".join(data for _, data in sealed)
        return Upload(segments, data, self._index, keys.bound, keys.taken_digest, keys.links)

    def _seal(self, group: Group, at: SumId) -> tuple[Segment, bytes]:
        """Seal one group as a segment; empty if this party only reads the sum."""
        context, rule, transcript = self._context, self._rule, self._context.transcript
        if rule.bound is not None:
            check_bound(group, rule.bound)
        key = self._segment_key(group, at)
        layout = transcript.scales.layout(group, rule, context.parties)
        # The segment's key is in the stream's id: two segments of a sum share no key stream, and
        # masks of parties in different rounds, or with different histories, do not cancel.
        stream = StreamId(context.run, key.hex(), self._index)
        data, salts, rounding_errors = b"", dict[str, bytes](), dict[str, Vector]()
        if context.me in group.owners:
            vectors = {n: transcript.scales.whole(n, v, rule) for n, v in group.vectors.items()}
            slots, rounding_errors = layout.encode(vectors, transcript.rng, rule.noise)
            salts = self._salts(group)
            data = self._encrypt(self._masked(slots, group, stream, salts))
        self._sent.append(SentSegment(group, layout, stream, rounding_errors))
        owners = () if len(group.owners) == context.parties else group.owners
        return Segment(key, len(data), layout.slots + 1, owners, tags.salts_by_digest(salts)), data

    def _segment_key(self, group: Group, at: SumId) -> bytes:
        """Bind a segment to its description and to the history common to its members."""
        context, rule = self._context, self._rule
        members, for_host = (*group.owners, *group.readers), rule.audience == Audience.HOST
        history = context.transcript.seen.by(members, host=for_host)
        # Keyed: the history may consist of few values, which the coordinator could guess.
        return segment_key(group, rule, at, keyed_digest(context.digest_key, history, b"seen"))

    def _encrypt(self, slots: Slots) -> bytes:
        """Encrypt masked slots for the parties; a host sum and `secagg` have no ciphertexts."""
        cohort = self._context.keys.cohort
        if cohort is None or self._rule.audience == Audience.HOST:
            return from_slots(slots)
        return from_parts(secret.seal(cohort, slots))

    def _salts(self, group: Group) -> dict[str, bytes]:
        """Return the salts of masks with peers that share more history than all members do."""
        context, for_host = self._context, self._rule.audience == Audience.HOST
        peers, members = self._keys.peers(group.owners), (*group.owners, *group.readers)
        seen = context.transcript.seen.beyond(context.me, peers, members, host=for_host)
        return {
            peer: keyed_digest(context.digest_key, history, b"seen by two")
            for peer, history in seen.items()
        }

    def _masked(
        self, slots: Slots, group: Group, stream: StreamId, salts: Mapping[str, bytes]
    ) -> Slots:
        """Add the masks shared with others, then the tag, then the self mask over both."""
        keys, modulus = self._keys, COHORT.modulus
        tagged = np.zeros(slots.size + 1, np.uint64)
        masked = tagged[:-1]
        masked[:] = slots
        for_host = self._rule.audience == Audience.HOST
        shared = keys.mask(
            group.owners, stream, slots.size, modulus, for_host=for_host, salts=salts, own=False
        )
        masking.add_slots(masked, shared, modulus)
        if (pad_key := self._pad(stream)) is not None:
            masking.add(masked, pad_key, modulus)
        tagged[-1] = self._tag(masked, stream, salts)
        keys.add_self_mask(tagged, stream, modulus)
        return tagged

    def _tag(self, masked: Slots, stream: StreamId, salts: Mapping[str, bytes]) -> int:
        """Compute the tag of masked slots; its bonds bind the salts of the masks."""
        context, tag_key, modulus = self._context, self._context.keys.tag_key, COHORT.modulus
        me = context.numbers[context.me]
        by_number = {context.numbers[peer]: salt for peer, salt in salts.items()}
        tag = tags.make(tag_key, masked, [me], modulus, stream)
        return (tag + tags.bonds(tag_key, me, by_number, modulus, stream)) % modulus

    # --- opening ----------------------------------------------------------------------------------

    def settle(self, lists: Unmask) -> Confirm | None:
        """Check the survivor lists once, before anything is revealed; sign them after dropouts."""
        if lists.sum != self._index:
            raise CohortError(
                "the coordinator asks to unmask another sum",
                party=self._context.me,
                fix=DISTRUST,
                field="sum",
            )
        if self._rule.noise is not None:
            for segment in self._sent:
                contributors = {*segment.group.owners} & {*lists.survivors}
                self._rule.noise.check_survivors(len(contributors))
        statement = self._keys.settle(lists.survivors, lists.dropped)
        return Confirm(self._context.keys.identity.sign(statement)) if lists.dropped else None

    def shares(self, confirmed: Confirmed | None) -> UnmaskShares:
        """Reveal the shares that remove masks, once; dropouts need a threshold of signatures."""
        signatures = confirmed.signatures if confirmed else {}
        return self._keys.reveal(signatures, self._context.keys.peers)

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NONE_LOST
    ) -> Arrays:
        """Check and decode the total of each segment; a sum for the host has none for others."""
        me, rule = self._context.me, self._rule
        if self._opened or not self._keys.revealed:
            raise CohortError(
                "the coordinator sent a total before the masks were removed, or twice",
                fix=DISTRUST,
                party=me,
            )
        reads = rule.audience == Audience.PARTIES or me == self._context.host
        if len(parts) != (len(self._sent) if reads else 0):
            raise TamperError(
                "the coordinator sent a wrong number of totals", party=me, reason="wrong-sum"
            )
        self._opened = True
        opened: Arrays = {}
        for index, part in enumerate(parts):
            try:
                opened |= self._open(index, part, survivors, lost)
            except TamperError as error:
                raise error.at(segment=index) from None
        if rule.carry:
            scales = self._context.transcript.scales
            for segment in self._sent:
                if me in segment.group.owners:
                    scales.keep(segment.group.vectors, segment.rounding_errors)
        return opened

    def _open(
        self, index: int, part: bytes, survivors: Sequence[str], lost: Mapping[str, Lost]
    ) -> Arrays:
        """Open and check one segment's total, and update scales and history."""
        context, rule, segment = self._context, self._rule, self._sent[index]
        transcript, owners = context.transcript, segment.group.owners
        alive = set(survivors)
        contributors = [party for party in owners if party in alive]
        if rule.noise is not None:
            rule.noise.check_survivors(len(contributors))
        tagged = self._decrypt(part, segment.layout.slots + 1, len(contributors))
        tags.check_sum(
            context.keys.tag_key, tagged, contributors, context.numbers, segment.stream, owners,
            self._keys.left(lost), tags.salts_with(lost, index, contributors),
        )  # fmt: skip
        slots = self._unmasked(tagged[:-1], contributors, segment.stream)
        values, norms = segment.layout.decode(slots, len(contributors), rule.noise)
        if rule.audience == Audience.PARTIES:
            readers = (*owners, *segment.group.readers)
            audience = audience_of(readers, alive - {context.host or ""})
            transcript.seen.note(audience, "\n".join(survivors).encode(), slots.tobytes())
        invalid = transcript.scales.opened(segment.layout, values, norms, len(contributors), rule)
        self.unscaled += invalid
        return values

    def _decrypt(self, part: bytes, count: int, contributors: int) -> Slots:
        """Decrypt a total of so many contributors; `count`: its slots with the tag."""
        cohort = self._context.keys.cohort
        if cohort is None or self._rule.audience == Audience.HOST:
            return to_slots(part, count, COHORT.modulus)
        return secret.open(cohort, to_parts(part, count), count, contributors)

    def _unmasked(self, slots: Slots, contributors: Sequence[str], stream: StreamId) -> Slots:
        """Remove the masks that the contributors added for the host, or their pads."""
        if self._rule.audience == Audience.HOST:
            modulus = np.uint64(COHORT.modulus)
            masks = self._keys.host_masks(contributors, stream, slots.size, COHORT.modulus)
            return (slots + (modulus - masks)) % modulus
        if (pad_key := self._pad(stream)) is not None:
            masking.subtract(slots, pad_key, len(contributors), COHORT.modulus)
        return slots

    def _pad(self, stream: StreamId) -> bytes | None:
        """Return the key of the pad that hides a sum for all parties which is not encrypted."""
        keys = self._context.keys
        if keys.cohort is not None or self._rule.audience == Audience.HOST:
            return None
        return masking.stream_key(keys.pad_key, stream, "pad")


class SecureSums:
    """Begins all sums of one run at one party, and makes the keys of the next one."""

    def __init__(
        self,
        keys: PartyKeys,
        run: bytes,
        transcript: Transcript,
        digest_key: bytes,
        *,
        host: str | None,
        threshold: int,
    ) -> None:
        members = sorted({keys.identity.name, *keys.peers})
        numbers = {name: number for number, name in enumerate(members, 1)}
        parties = len(members) - (host is not None)
        if keys.cohort is not None:
            check_cohort(COHORT, parties)
        require_maskable(parties)
        self.context = SumContext(
            keys.identity.name, keys, digest_key, transcript, run.hex(), host, numbers, parties
        )
        self._threshold = threshold
        self._channels = {
            name: Channel(keys.identity, card, b"secure-fl run " + run)
            for name, card in keys.peers.items()
            if name != keys.identity.name
        }
        self._index = 0  # number of the sum, from 1
        self._keys: StepKeys | None = None  # of the sum that begins next
        self._offered: StepKeys | None = None  # until the others' offers arrive
        self._uploads: dict[int, bytes] = {}  # by number of the sum: see `upload`
        self._for_host = False  # True if the last sum was for the host

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> SecureSumInProgress:
        """Seal this party's vectors for the next sum; its keys serve no other sum."""
        keys, self._keys = self._keys, None
        if keys is None:
            raise CohortError("no keys are left for this sum", party=self.context.me)
        number = keys.index
        under_way = SecureSumInProgress(self.context, number, keys, groups, rule, at)
        before = {number - 1: self.upload(number - 1)} if self._for_host else {}
        self._uploads = before | {number: under_way.upload.data}
        self._for_host = rule.audience == Audience.HOST
        return under_way

    def upload(self, number: int) -> bytes:
        """Return the upload of the last sum, or of a host sum before it.

        Parties do not read a host sum, so they begin the next one before the host complains.
        """
        return self._uploads.get(number, b"")

    def inquiry(self, coordinator: PublicIdentity, lists: bytes) -> Inquiry | None:
        """Begin an inquiry into the sum of these lists; None without lists."""
        if not lists:
            return None
        context = self.context
        return Inquiry(context.keys, coordinator, context.me, context.host, lists)

    # --- keys of the next sum -------------------------------------------------------------------

    def next_keys(
        self, members: Sequence[str], statement: SurvivorStatement | None = None
    ) -> Offer | None:
        """Draw the keys of the next sum, and offer them to these members of the run."""
        context = self.context
        if context.me not in members or not set(members) <= set(context.numbers):
            raise CohortError(
                "the coordinator names other members than the roster", party=context.me
            )
        self._index += 1
        self._offered = StepKeys(
            context.me,
            context.host,
            context.run,
            self._index,
            frozenset(members) - {context.host},
            context.numbers,
            self._threshold,
            self._channels,
        )
        return self._offered.offer(statement)

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Take the other members' offers, which complete the keys of the next sum."""
        self._keys, self._offered = self._offered, None
        if self._keys is not None:
            others = {party: offer for party, offer in offers.items() if party != self.context.me}
            self._keys.accept(others, members)
