"""The party's half of protected sums: encode, tag, mask, seal; and back.

`he+secagg` does all of it. In `secagg` there are no ciphertexts: a pad that all parties add hides
the sum. A sum is settled, its shares are revealed, and it is opened: each once, and in this order.
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
    Salt,
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


class _Part(NamedTuple):
    """One segment of a sum, as this party sent it."""

    group: Group
    layout: Layout
    stream: StreamId
    leftovers: Mapping[str, Vector]


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
        self._parts: list[_Part] = []
        self._opened = False
        self.unscaled: list[str] = []  # names whose norms in this sum were invalid
        sealed = [self._seal(group, at) for group in groups]
        segments = tuple(segment for segment, _ in sealed)
        if sum(bool(segment.size) for segment in segments) > 1:
            segments = tuple(
                structs.replace(segment, digest=digest(data)) for segment, data in sealed
            )
        data = b"".join(data for _, data in sealed)
        self.upload = Upload(segments, data, index, keys.bound, keys.taken_digest, keys.links)
        self.layouts = tuple(part.layout for part in self._parts)

    # --- sealing (docs/protocol.md 4.8) -----------------------------------------------------------

    def _seal(self, group: Group, at: SumId) -> tuple[Segment, bytes]:
        """Seal one group as a segment; empty if this party only reads the sum."""
        context, rule = self._context, self._rule
        transcript, me = context.transcript, context.me
        if rule.bound is not None:
            check_bound(group, rule.bound)
        common = transcript.seen.by(
            (*group.owners, *group.readers), host=rule.audience == Audience.HOST
        )
        # Keyed: the history may consist of few values, which the coordinator could guess.
        key = segment_key(group, rule, at, keyed_digest(context.digest_key, common, b"seen"))
        layout = transcript.scales.layout(group, rule, context.parties)
        # The segment's key is in the stream's id: two segments of a sum share no key stream, and
        # masks of parties in different rounds, or with different histories, do not cancel.
        stream = StreamId(context.run, key.hex(), self._index)
        data, salts, leftovers = b"", tuple[Salt, ...](), dict[str, Vector]()
        if me in group.owners:
            vectors = {n: transcript.scales.whole(n, v, rule) for n, v in group.vectors.items()}
            slots, leftovers = layout.encode(vectors, transcript.rng, rule.noise)
            by_peer = self._salts(group)
            slots = self._masked(slots, group, stream, by_peer)
            salts = tags.salts_by_digest(by_peer)
            cohort = None if rule.audience == Audience.HOST else context.keys.cohort
            data = from_slots(slots) if cohort is None else from_parts(secret.seal(cohort, slots))
        self._parts.append(_Part(group, layout, stream, leftovers))
        owners = () if len(group.owners) == context.parties else group.owners
        return Segment(key, len(data), layout.slots + 1, owners, salts), data

    def _salts(self, group: Group) -> dict[str, bytes]:
        """Return the history shared with single peers only, which salts their masks."""
        context, host = self._context, self._rule.audience == Audience.HOST
        seen = context.transcript.seen.beyond(
            context.me, self._keys.peers(group.owners), (*group.owners, *group.readers), host=host
        )
        return {
            peer: keyed_digest(context.digest_key, both, b"seen by two")
            for peer, both in seen.items()
        }

    def _masked(
        self, slots: Slots, group: Group, stream: StreamId, salts: Mapping[str, bytes]
    ) -> Slots:
        """Add the masks shared with others, then the tag, then the self mask over both."""
        context, keys, t = self._context, self._keys, COHORT.modulus
        numbers, key = context.numbers, context.keys.tag_key
        tagged = np.zeros(slots.size + 1, np.uint64)
        tagged[:-1] = slots
        host = self._rule.audience == Audience.HOST
        shared = keys.mask(
            group.owners, stream, slots.size, t, for_host=host, salts=salts, own=False
        )
        masking.add_slots(tagged[:-1], shared, t)
        if (pad := self._pad(stream)) is not None:
            masking.add(tagged[:-1], pad, t)
        me = numbers[context.me]
        tag = tags.make(key, tagged[:-1], [me], t, stream)
        if salts:
            tag += tags.bonds(key, me, {numbers[peer]: of for peer, of in salts.items()}, t, stream)
        tagged[-1] = tag % t
        keys.add_self_mask(tagged, stream, t)
        return tagged

    # --- opening ----------------------------------------------------------------------------------

    def settle(self, lists: Unmask) -> Confirm | None:
        if self._rule.noise is not None:
            for part in self._parts:
                self._rule.noise.check_survivors(len({*part.group.owners} & {*lists.survivors}))
        if lists.sum != self._index:
            raise CohortError(
                "the coordinator asks to unmask another sum",
                party=self._context.me,
                fix=DISTRUST,
                field="sum",
            )
        statement = self._keys.settle(lists.survivors, lists.dropped)
        return Confirm(self._context.keys.identity.sign(statement)) if lists.dropped else None

    def shares(self, confirmed: Confirmed | None) -> UnmaskShares:
        signatures = confirmed.signatures if confirmed else {}
        return self._keys.reveal(signatures, self._context.keys.peers)

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NONE_LOST
    ) -> Arrays:
        context, rule = self._context, self._rule
        me, host = context.me, context.host
        if self._opened or not self._keys.revealed:
            raise CohortError(
                "the coordinator sent a total before the masks were removed, or twice",
                fix=DISTRUST,
                party=me,
            )
        for_me = rule.audience == Audience.PARTIES or me == host
        if for_me and len(parts) != len(self._parts):
            raise TamperError(
                "the coordinator sent a wrong number of totals", party=me, reason="wrong-sum"
            )
        self._opened = True
        opened: Arrays = {}
        for place, (sent, data) in enumerate(zip(self._parts, parts, strict=False)):
            try:
                opened |= self._open(place, sent, data, survivors, lost)
            except TamperError as error:
                raise error.at(segment=place) from None
        if rule.carry:
            for sent in self._parts:
                if me in sent.group.owners:
                    context.transcript.scales.keep(sent.group.vectors, sent.leftovers)
        return opened

    def _open(
        self,
        place: int,
        sent: _Part,
        data: bytes,
        survivors: Sequence[str],
        lost: Mapping[str, Lost],
    ) -> Arrays:
        """Open and check one segment's total, and update scales and history."""
        context, rule, transcript = self._context, self._rule, self._context.transcript
        alive = set(survivors)
        owners = [party for party in sent.group.owners if party in alive]
        if rule.noise is not None:
            rule.noise.check_survivors(len(owners))
        count, cohort = sent.layout.slots + 1, context.keys.cohort
        if rule.audience == Audience.HOST or cohort is None:
            slots = to_slots(data, count, COHORT.modulus)
        else:
            slots = secret.open(cohort, to_parts(data, count), count, len(owners))
        self._check(place, slots, owners, lost)
        slots = slots[:-1]
        if rule.audience == Audience.HOST:  # remove the masks that the owners added for the host
            modulus = np.uint64(COHORT.modulus)
            masks = self._keys.host_masks(owners, sent.stream, slots.size, COHORT.modulus)
            slots = (slots + (modulus - masks)) % modulus
        elif (pad := self._pad(sent.stream)) is not None:
            masking.subtract(slots, pad, len(owners), COHORT.modulus)
        values, norms = sent.layout.decode(slots, len(owners), rule.noise)
        if rule.audience == Audience.PARTIES:
            readers = (*sent.group.owners, *sent.group.readers)
            audience = audience_of(readers, alive - {context.host or ""})
            transcript.seen.note(audience, "\n".join(survivors).encode(), slots.tobytes())
        self.unscaled += transcript.scales.opened(sent.layout, values, norms, len(owners), rule)
        return values

    def _check(
        self, place: int, slots: Slots, owners: Sequence[str], lost: Mapping[str, Lost]
    ) -> None:
        """Check the tag of a total, which includes masks shared with lost parties."""
        context, sent = self._context, self._parts[place]
        left, salts = self._keys.left(lost), tags.salts_with(lost, place, owners)
        key = context.keys.tag_key
        tags.check_sum(
            key, slots, owners, context.numbers, sent.stream, sent.group.owners, left, salts
        )

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
        self._drawn: StepKeys | None = None  # offered, and not yet answered
        self._sent: dict[int, bytes] = {}  # uploads by number: see `upload`
        self._for_host = False  # True if the last sum was for the host

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> SecureSumInProgress:
        keys, self._keys = self._keys, None
        if keys is None:
            raise CohortError("no keys are left for this sum", party=self.context.me)
        index = keys.index
        under_way = SecureSumInProgress(self.context, index, keys, groups, rule, at)
        before = {index - 1: self.upload(index - 1)} if self._for_host else {}
        self._sent = before | {index: under_way.upload.data}
        self._for_host = rule.audience == Audience.HOST
        return under_way

    def upload(self, number: int) -> bytes:
        """Return the upload of the last sum, or of a host sum before it.

        Parties do not read a host sum, so they begin the next one before the host complains.
        """
        return self._sent.get(number, b"")

    def inquiry(self, coordinator: PublicIdentity, lists: bytes) -> Inquiry | None:
        if not lists:
            return None
        context = self.context
        return Inquiry(context.keys, coordinator, context.me, context.host, lists)

    # --- keys of the next sum -------------------------------------------------------------------

    def next_keys(
        self, members: Sequence[str], statement: SurvivorStatement | None = None
    ) -> Offer | None:
        context = self.context
        if context.me not in members or not set(members) <= set(context.numbers):
            raise CohortError(
                "the coordinator names other members than the roster", party=context.me
            )
        self._index += 1
        self._drawn = StepKeys(
            context.me,
            context.host,
            context.run,
            self._index,
            frozenset(members) - {context.host},
            context.numbers,
            self._threshold,
            self._channels,
        )
        return self._drawn.offer(statement)

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        self._keys, self._drawn = self._drawn, None
        if self._keys is not None:
            others = {party: offer for party, offer in offers.items() if party != self.context.me}
            self._keys.accept(others, members)
