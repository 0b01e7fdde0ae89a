"""The party's half of a protected sum: encode, tag, mask, seal; and back.

    x  ->  slots in Z_t (layout)  ->  + tag  ->  + masks mod t  ->  BFV ciphertexts  ->  wire

`he+secagg` does all of it. `secagg` leaves out the ciphertexts, so the coordinator sees the sum;
`he` leaves out the masks, so any party could open another's upload if it got hold of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto import secret, tags
from secure_fl.crypto.blind_sum import from_parts, from_slots, to_parts, to_slots
from secure_fl.crypto.clear_sum import check_bound, segment_key
from secure_fl.crypto.layout import EXACT_BITS, HOST_BITS, SMALL, Field, Layout
from secure_fl.crypto.masking import Slots, StreamId
from secure_fl.crypto.packing import Codec
from secure_fl.crypto.party_keys import Channels, Envelopes, PartyKeys
from secure_fl.crypto.primitives import digest_of
from secure_fl.crypto.scales import Scales
from secure_fl.crypto.scheme import COHORT, check_cohort
from secure_fl.crypto.seen import ALL, PARTIES, Seen, audience_of, listed
from secure_fl.crypto.step_keys import StepKeys
from secure_fl.errors import CohortError, CryptoError, TamperError
from secure_fl.protocol.messages import (
    Confirm,
    Confirmed,
    Offer,
    Salt,
    Segment,
    SumId,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import Group, Rule, Sealed, Vector, require_masks
from secure_fl.thresholds import require_maskable


@dataclass(frozen=True, slots=True)
class _Sent:
    """One segment of the sum that is under way."""

    group: Group
    layout: Layout
    stream: StreamId
    leftovers: Mapping[str, Vector]


class SecureSum:
    """All sums of one run at one party."""

    def __init__(
        self,
        keys: PartyKeys,
        run: bytes,
        *,
        host: str | None,
        threshold: int,
        bits: int,
        masks: bool,
        rng: np.random.Generator,
    ) -> None:
        self.me = keys.identity.name
        self._keys, self._run, self._host = keys, run.hex(), host
        self._threshold = threshold
        self._bits, self._masks = bits, masks
        members = sorted({self.me, *keys.peers})
        self._numbers = {name: number for number, name in enumerate(members, 1)}
        self._parties = len(members) - (host is not None)
        if keys.cohort is not None:
            check_cohort(COHORT, self._parties)
        require_maskable(self._parties)
        self._channels = Channels(keys, b"secure-fl run " + run)
        self._envelopes = Envelopes(keys, run)
        self._rng = rng
        self._scales = Scales(bits)
        self._seen = Seen()
        self._index = 0
        self._step: StepKeys | None = None
        self._next: StepKeys | None = None
        self._sent: list[_Sent] = []
        self._rule = Rule()

    # --- keys of the next sum -------------------------------------------------------------------

    def offer(self, members: Sequence[str]) -> Offer | None:
        """Draw the next sum's keys."""
        if not self._masks:
            return None
        if self.me not in members or not set(members) <= set(self._numbers):
            raise CohortError("the coordinator names other members than the roster", party=self.me)
        self._index += 1
        self._next = StepKeys(
            self.me,
            self._host,
            self._run,
            self._index,
            frozenset(members) - {self._host},
            self._numbers,
            self._threshold,
            self._channels,
        )
        return self._next.offer()

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Take the other members' keys for the next sum; the last sum's are forgotten."""
        if self._masks:
            self._step, self._next = self._next, None
            if self._step is not None:
                self._step.accept({p: o for p, o in offers.items() if p != self.me}, members)

    # --- scales ---------------------------------------------------------------------------------

    def unscaled(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        """The norms of vectors whose scale nobody knows yet."""
        return self._scales.unknown(groups, rule)

    def learn(self, sums: Mapping[str, NDArray[np.float64]]) -> None:
        """Take the scales out of the sum of those norms."""
        self._scales.learn(sums)

    def forget(self, names: Sequence[str]) -> None:
        """Drop scales that other parties to these sums do not know."""
        for name in names:
            self._scales.rms.pop(name, None)

    # --- there ----------------------------------------------------------------------------------

    def seal(self, groups: Sequence[Group], rule: Rule, at: SumId) -> Sealed:
        """Encode, noise, tag, mask and encrypt every group; one segment each."""
        require_masks(rule.audience, masks=self._masks)
        self._rule, self._sent = rule, []
        self._index += not self._masks  # with masks, the keys' exchange has counted this sum
        segments, data = [], []
        for group in groups:
            check_bound(group, rule)
            readers, for_host = (*group.owners, *group.readers), rule.audience == "host"
            # Keyed: what was opened could be few values, which the coordinator might guess.
            seen = self.fingerprint(self._seen.by(readers, host=for_host), b"seen")
            key = segment_key(group, rule, at, seen)
            layout = self._layout(group, rule)
            # The key in it keeps two segments of one sum from sharing a key stream, and the masks
            # of parties that are in different rounds, or saw different things, from cancelling.
            stream = StreamId(self._run, key.hex(), self._index)
            part, salts, leftovers = b"", tuple[Salt, ...](), dict[str, Vector]()
            if self.me in group.owners:
                vectors = {n: self._scales.whole(n, v, rule) for n, v in group.vectors.items()}
                slots, leftovers = layout.encode(vectors, self._rng, rule.noise)
                number = self._numbers[self.me]
                tag = tags.make(self._keys.tag_key, slots, number, COHORT.modulus, stream)
                slots = np.append(slots, np.uint64(tag))
                if self._masks:
                    salts = self._mask(slots, group, stream, rule)
                part = self._sealed(slots, rule)
            self._sent.append(_Sent(group, layout, stream, leftovers))
            owners = () if len(group.owners) == self._parties else group.owners
            segments.append(Segment(key, len(part), layout.slots + 1, owners, salts))
            data.append(part)
        return Sealed(tuple(segments), b"".join(data))

    def _mask(self, slots: Slots, group: Group, stream: StreamId, rule: Rule) -> tuple[Salt, ...]:
        """Add this party's masks; returns what those with single peers are bound to."""
        if self._step is None:
            raise CohortError("no keys are left for this sum", party=self.me)
        modulus, host = COHORT.modulus, rule.audience == "host"
        peers = self._step.peers(group.owners)
        seen = self._seen.beyond(self.me, peers, (*group.owners, *group.readers), host=host)
        salts = {peer: self.fingerprint(both, b"seen by two") for peer, both in seen.items()}
        slots += self._step.mask(
            group.owners,
            stream,
            slots.size,
            modulus,
            for_host=host,
            salts=salts,
        )
        np.minimum(slots, slots - np.uint64(modulus), out=slots)  # below 0 wraps to the top
        return listed(salts, peers)

    def _sealed(self, slots: Slots, rule: Rule) -> bytes:
        if rule.audience == "host" or self._keys.cohort is None:
            return from_slots(slots)
        return from_parts(secret.seal(self._keys.cohort, slots))

    def layouts(self) -> tuple[Layout, ...]:
        """How the segments of the sum under way lie in slots; all parties know it."""
        return tuple(sent.layout for sent in self._sent)

    # --- and back -------------------------------------------------------------------------------

    def confirm(self, unmask: Unmask) -> Confirm | None:
        """Sign who is said to survive, if anybody is said to be gone."""
        for sent in self._sent:
            self._check_noise(sent, unmask.survivors)
        statement = self._under_way().settle(unmask.survivors, unmask.dropped)
        return Confirm(self._keys.identity.sign(statement)) if unmask.dropped else None

    def reveal(self, unmask: Unmask, confirmed: Confirmed | None) -> UnmaskShares:
        """Reveal what removes the masks of this sum, with the keys of the next one."""
        signatures = confirmed.signatures if confirmed else {}
        shares = self._under_way().reveal(signatures, self._keys.peers)
        return UnmaskShares(shares.seeds, shares.keys, self.offer(unmask.survivors))

    def _under_way(self) -> StepKeys:
        if self._step is None:
            raise CohortError("the coordinator asked to unmask a sum without masks", party=self.me)
        return self._step

    def open(
        self, data: Sequence[bytes], survivors: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """Open every segment, check its tag, decode it, and remember scales and leftovers."""
        for_me = self._rule.audience == "parties" or self.me == self._host
        if for_me and len(data) != len(self._sent):
            raise TamperError("the coordinator sent back another number of sums", party=self.me)
        opened: dict[str, NDArray[np.float64]] = {}
        alive = set(survivors)
        for sent, part in zip(self._sent, data, strict=False):
            self._check_noise(sent, survivors)
            owners = [p for p in sent.group.owners if p in alive]
            slots = self._unprotect(part, sent, owners)
            numbers = [self._numbers[p] for p in owners]
            tag, modulus = int(slots[-1]), COHORT.modulus
            tags.check(self._keys.tag_key, slots[:-1], tag, numbers, modulus, sent.stream)
            values, norms = sent.layout.decode(slots[:-1], len(owners), self._rule.noise)
            opened |= values
            if self._rule.audience == "parties":
                readers = (*sent.group.owners, *sent.group.readers)
                audience = audience_of(readers, alive - {self._host or ""})
                self._seen.note(audience, "\n".join(survivors).encode(), slots[:-1].tobytes())
            self._scales.opened(sent.layout, norms, len(owners), self._rule)
        if self._rule.carry:
            for sent in self._sent:
                if self.me in sent.group.owners:
                    self._scales.keep(sent.group.vectors, sent.leftovers)
        return opened

    def leftover(self, name: str) -> Vector | None:
        """What the last carried value of this name left over, for the caller to carry instead."""
        return self._scales.leftovers.pop(name, None)

    def _unprotect(self, part: bytes, sent: _Sent, owners: Sequence[str]) -> Slots:
        count = sent.layout.slots + 1
        if self._rule.audience == "host":
            slots, modulus = to_slots(part, count), np.uint64(COHORT.modulus)
            if self._step is None:
                raise CohortError("no keys are left for this sum", party=self.me)
            masks = self._step.host_masks(owners, sent.stream, count, COHORT.modulus)
            return (slots + (modulus - masks)) % modulus
        if self._keys.cohort is None:
            return to_slots(part, count)
        return secret.open(self._keys.cohort, to_parts(part), count, len(owners))

    def _layout(self, group: Group, rule: Rule) -> Layout:
        exact = rule.bound is None and not rule.carry
        bits = EXACT_BITS if exact else self._bits
        if rule.audience == "host" and not rule.carry:
            bits = max(bits, HOST_BITS)
        extra = 0
        if rule.noise is not None:
            extra = max(0, int(rule.noise.reach).bit_length() + 1 - bits)
        codec = Codec(bits, self._parties, COHORT.modulus, extra)
        fields = []
        for name, vector in group.vectors.items():
            if vector.size <= SMALL and rule.noise is None:
                fields.append(Field(name, vector.size))
            else:
                clip = self._scales.clip(name, vector.size, len(group.owners), rule)
                # A norm that was just summed is not summed again: if somebody left since, the two
                # would differ by that party's.
                norm = rule.carry and (rule.bound is not None or name in self._scales.rms)
                fields.append(Field(name, vector.size, clip, norm=norm))
        return Layout(tuple(fields), codec)

    def _check_noise(self, sent: _Sent, survivors: Sequence[str]) -> None:
        if self._rule.noise is not None:
            self._rule.noise.check_survivors(len(set(sent.group.owners) & set(survivors)))

    # --- what only parties may read -------------------------------------------------------------

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        """Bind all later sums to it."""
        self._seen.note(ALL if host else PARTIES, context, what)

    def turn(self) -> None:
        """A round is over: it is saved with what was seen in it."""
        self._seen.turn()

    def envelope(self, data: bytes, context: bytes) -> bytes:
        """See `Envelopes.seal`."""
        return self._envelopes.seal(data, context)

    def unwrap(self, data: bytes, context: bytes) -> bytes:
        """See `Envelopes.open`."""
        return self._envelopes.open(data, context)

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """See `Envelopes.fingerprint`."""
        return self._envelopes.fingerprint(data, context)

    def vouch(self, statement: bytes) -> bytes:
        """Ed25519, by this party's identity."""
        return self._keys.identity.sign(digest_of(b"secure-fl vouch", statement))

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        """Whether the party's card fits the signature."""
        try:
            card = self._keys.peers[party]
            card.verify(digest_of(b"secure-fl vouch", statement), proof)
        except (KeyError, CryptoError):
            return False
        return True

    # --- checkpoints ----------------------------------------------------------------------------

    def common(self) -> Mapping[str, Any]:
        """The scales, which all parties know alike, and what all have seen."""
        return {"scales": self._scales.common(), "seen": self._seen.common()}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Begin with the others' scales, as if this party had seen what they have.

        Rounding starts with a fresh generator.
        """
        self._scales.adopt(common["scales"])
        self._seen.restore(common["seen"])

    def state(self) -> Mapping[str, Any]:
        """Scales, leftovers, the rounding generator, what was seen; never keys, drawn afresh."""
        return {
            "scales": self._scales.state(),
            "seen": self._seen.state(),
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._scales.restore(state["scales"])
        self._seen.restore(state["seen"])
        self._rng.bit_generator.state = state["rng"]
