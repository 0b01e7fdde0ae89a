"""The coordinator's half of a protected sum: it adds uploads as they arrive, and unmasks the sum.

Specified in docs/protocol.md 4.8, 4.10 and 4.11.

Only the salts of each party's masks are stored per party. Bonawitz et al., CCS 2017: the sum still
contains the survivors' self masks, and the masks that survivors share with dropped parties. The
seeds of both follow from the shares that the survivors reveal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from secure_fl.crypto.blame.evidence import digest_taken, taken_by
from secure_fl.crypto.keys.identity import commit
from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.clear_sum import ClearTotal
from secure_fl.crypto.sealing.masking import RemainingMasks, Slots, StreamId
from secure_fl.crypto.sealing.packing import from_slots, to_slots
from secure_fl.crypto.sealing.public import (
    MOST_SEEDS,
    PublicContext,
    SeededSum,
    Sum,
    context_bytes,
    from_parts,
    load,
    to_parts,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.tags import salt_of
from secure_fl.errors import (
    CohortError,
    CryptoError,
    Disagreement,
    Misconduct,
    UnusableKeys,
    WireError,
)
from secure_fl.protocol.frames import digest
from secure_fl.protocol.messages import Audience, Lost, Offer, Salt, Segment, SumInput, UnmaskShares
from secure_fl.protocol.ports import BlindTotal, OfferedKeys, TotalFor
from secure_fl.settings import ProtectionSettings


class MaskedInts:
    """Sum of masked slots that are not encrypted."""

    def __init__(self, modulus: int) -> None:
        self._modulus = modulus
        self._total: Slots | None = None

    def add(self, data: bytes, count: int) -> None:
        """Add one party's slots, if they are in range."""
        slots = to_slots(data, count, self._modulus)
        if self._total is None:
            self._total = slots
        else:
            masking.add_slots(self._total, slots, self._modulus)

    def remove(self, data: bytes, count: int) -> None:
        """Subtract what was added last."""
        self.subtract(to_slots(data, count, self._modulus))

    def subtract(self, masks: Slots) -> None:
        """Remove masks."""
        if self._total is not None:
            masking.add_slots(self._total, np.uint64(self._modulus) - masks, self._modulus)

    def result(self) -> bytes:
        """Return the sum."""
        return b"" if self._total is None else from_slots(self._total)


class SealedInts:
    """Sum of ciphertexts, which the coordinator cannot open."""

    def __init__(self, context: PublicContext, owners: int, count: int) -> None:
        self._sum = (SeededSum if owners <= MOST_SEEDS else Sum)(context, count)

    def add(self, data: bytes, count: int) -> None:
        """Add one party's ciphertexts, if all are well-formed."""
        self._sum.add(to_parts(data, count))

    def remove(self, data: bytes, count: int) -> None:
        """Subtract what was added last."""
        self._sum.remove(to_parts(data, count))

    def subtract(self, masks: Slots) -> None:
        """Remove masks under the encryption."""
        self._sum.subtract_plain(masks)

    def result(self) -> bytes:
        """Return the sealed sum."""
        return from_parts(self._sum.result())


class _Vector(NamedTuple):
    total: MaskedInts | SealedInts
    segment: Segment
    salts: dict[str, tuple[Salt, ...]]  # of each contributor's masks


class ProtectedTotal:
    """The coordinator's half of a protected sum, of masked integers or of their ciphertexts."""

    masked = True

    def __init__(
        self,
        modulus: int,
        context: PublicContext | None,  # None: masked integers only
        *,
        offered: OfferedKeys,
        numbers: Mapping[str, int],
        host: str | None,
        threshold: int,
        run: bytes,
    ) -> None:
        if context is not None and not isinstance(context, PublicContext):
            raise CryptoError(
                "a coordinator was offered something that is not a public context",
                fix="never hand a key to a coordinator; give it what `public()` of the key returns",
            )
        self._modulus, self._context = modulus, context
        self._offered, self._numbers, self._host = offered, numbers, host
        self._threshold, self._run = threshold, run.hex()
        self._vectors: dict[bytes, _Vector] = {}
        self._links: dict[str, Mapping[str, bytes]] = {}  # of each upload
        self.left: RemainingMasks | None = None  # masks of the sum, once their seeds are known

    def admit(self, sender: str, upload: SumInput) -> None:
        offers, number = self._offered.offers, self._offered.number
        own = offers.get(sender)
        taken = digest_taken(taken_by(sender, offers, self._host), self._run, number, sender)
        if upload.sum != number:
            raise WireError("an upload of another sum", party=sender, field="sum")
        if own is None or (upload.bound, upload.taken) != (own.public + own.seed, taken):
            what = "an upload with other keys than were exchanged"
            raise WireError(what, party=sender, field="keys")
        for segment in upload.segments:
            check_salts(sender, segment, set(offers) - {self._host})
        check_links(sender, upload, () if sender == self._host else set(offers) - {self._host})
        self._links[sender] = upload.links

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        if sum(s.size for s in segments) != len(data):
            raise WireError("a sum's segments do not fit their bulk", party=sender, field="size")
        if len({segment.key for segment in segments}) < len(segments):
            raise WireError("an upload holds a segment twice", party=sender, field="segments")
        start, vectors, adding = 0, dict(self._vectors), []
        several = sum(bool(segment.size) for segment in segments) > 1
        for segment in segments:
            vector = vectors.get(segment.key)
            if vector is None:
                empty: MaskedInts | SealedInts
                if self._context is None:
                    empty = MaskedInts(self._modulus)
                else:
                    parties = len(self._numbers) - (self._host is not None)
                    count = len(segment.owners) or parties
                    empty = SealedInts(self._context, count, segment.slots)
                vector = vectors[segment.key] = _Vector(empty, segment, {})
            if (segment.slots, segment.owners) != (vector.segment.slots, vector.segment.owners):
                what = "this party lays out a sum differently"
                raise Disagreement(what, party=sender, field="layout")
            owners = segment.owners or set(self._numbers) - {self._host}
            if bool(segment.size) != (sender in owners):
                what = "this party uploads to a sum that it only reads, or not to one of its own"
                raise Disagreement(what, party=sender, field="owners")
            if not segment.size:
                continue
            part = data[start : start + segment.size]
            if several and digest(part) != segment.digest:
                what = "a part of an upload is not the one that it signs"
                raise WireError(what, party=sender, field="digest")
            adding.append((vector, part, segment.salts))
            start += segment.size
        added = 0
        try:
            for vector, part, _ in adding:
                vector.total.add(part, vector.segment.slots)
                added += 1
        except (CryptoError, WireError) as error:  # of one part: no other may stay in its sum
            for vector, part, _ in adding[:added]:
                vector.total.remove(part, vector.segment.slots)
            found = WireError(error.what, party=sender)
            raise found.at(**error.where) from error
        self._vectors = vectors
        for vector, _, salts in adding:
            vector.salts[sender] = salts

    def forget(self, keys: Collection[bytes]) -> None:
        for key in keys:
            self._vectors.pop(key, None)

    def require_consistent(self, survivors: Collection[str]) -> None:
        """Refuse unequal salts of two parties, and a part that some of its owners omit."""
        here = set(survivors) - {self._host}
        for vector in self._vectors.values():
            salted = {party: of for party, of in vector.salts.items() if party in survivors}
            owners = here.intersection(vector.segment.owners or here)
            if salted and (lacking := owners - salted.keys()):
                sides = (lacking, salted), (salted, lacking)  # most members decide, or nobody
                named = next((one for one, other in sides if 2 * len(other) > len(here)), owners)
                raise UnusableKeys(
                    tuple(sorted(named)),
                    "some of these contribute a part of a sum that others of its owners omit",
                )
            if pair := unlike_salts(salted):
                raise UnusableKeys(
                    pair,
                    "these two salt the masks that they share differently: one of them lies, or "
                    "the coordinator sent them different data before",
                )

    def salts(self, key: bytes) -> dict[str, dict[str, bytes]]:
        """Return each contributor's salts of its masks with dropped parties, for one segment."""
        dropped = self.left.dropped if self.left else {}
        return {
            party: {peer: salt for peer in dropped if (salt := salt_of(salted, peer))}
            for party, salted in self._vectors[key].salts.items()
        }

    def self_mask_seeds(self) -> Mapping[str, bytes]:
        return self.left.self_seeds if self.left else {}

    def lost(self, keys: Sequence[bytes]) -> dict[str, Lost]:
        if self.left is None or not self.left.dropped:
            return {}
        salts = [self.salts(key) for key in keys]
        return {
            peer: Lost(
                seed,
                tuple({party: by[peer] for party, by in of.items() if peer in by} for of in salts),
                dict(self.left.links[peer]),
            )
            for peer, seed in self.left.dropped.items()
        }

    def check(self, sender: str, shares: UnmaskShares, survivors: Sequence[str]) -> None:
        offers, alive = self._offered.offers, set(survivors) - {self._host}
        dropped = set(offers) - alive - {self._host}
        if not shares.keys and not shares.seeds:
            return  # this party withholds the sum
        expected = self._offered.number, dropped, alive
        if (shares.sum, set(shares.keys), set(shares.seeds)) != expected:
            what = "a party reveals other shares than it should"
            raise WireError(what, party=sender, field="shares")
        for kind, revealed in (("key", shares.keys), ("self", shares.seeds)):
            for owner, share in revealed.items():
                about = self._run, shares.sum, owner, sender, kind
                deal = offers[owner].deals.get(sender) if owner in offers else None
                if deal is None:
                    what = "a party reveals a share that nobody dealt to it"
                    raise WireError(what, party=sender, field="deal")
                if commit(share, *about) != (deal.key if kind == "key" else deal.own):
                    raise Misconduct(
                        f"this party reveals another share than {owner!r} dealt to it",
                        party=sender,
                        owner=owner,
                        field="share",
                    )

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        step = self._run, self._offered.number
        if not self._offered.number:
            raise CohortError("a masked sum began although no keys were exchanged")
        offers = {p: o for p, o in self._offered.offers.items() if p != self._host}
        alive = {p for p in survivors if p != self._host}
        self.left = recovered(
            self._numbers, self._threshold, offers, alive, shares, step, self._links
        )
        return self.unmasked()

    def unmasked(self) -> Mapping[bytes, bytes]:
        """Return the totals, with all remaining masks removed."""
        if self.left is not None:
            for key, vector in self._vectors.items():
                stream = StreamId(self._run, key.hex(), self._offered.number)
                slots = vector.segment.slots
                if not slots:
                    continue
                masks = self.left.own(vector.salts, stream, slots, self._modulus)
                if self.left.dropped:  # all but the last slot: to correct a tag takes the tag key
                    owners = vector.segment.owners or tuple(self.left.dropped)
                    shared = self.left.shared(
                        owners, self.salts(key), stream, slots - 1, self._modulus
                    )
                    masks[:-1] += shared
                    masking.reduce(masks, self._modulus)
                vector.total.subtract(masks)
        return {key: vector.total.result() for key, vector in self._vectors.items()}


def check_salts(sender: str, segment: Segment, parties: Collection[str]) -> None:
    """Refuse salts of masks that nobody shares: no other tag cancels their part of this one."""
    sharing = set(segment.owners or parties).intersection(parties) - {sender}
    peers = [peer for salt in segment.salts for peer in salt.peers]
    if len(set(peers)) < len(peers) or not sharing.issuperset(peers):
        what = "an upload salts a mask that no other party shares"
        raise WireError(what, party=sender, field="salts")


def check_links(sender: str, upload: SumInput, parties: Collection[str]) -> None:
    """Refuse an upload without the link of each pair of masks: a dropout's would stay on."""
    if upload.links.keys() != set(parties) - {sender}:
        raise WireError("an upload lacks a link of its masks", party=sender, field="links")


def unlike_salts(salted: Mapping[str, Sequence[Salt]]) -> tuple[str, str] | None:
    """Find two contributors whose salts of the masks that they share differ."""
    listed = {
        party: {p: salt.digest for salt in of for p in salt.peers} for party, of in salted.items()
    }
    for party, by_peer in listed.items():
        for peer, salt in by_peer.items():
            if peer in listed and listed[peer].get(party) != salt:
                return min(party, peer), max(party, peer)
    return None


def recovered(
    numbers: Mapping[str, int],
    threshold: int,
    offers: Mapping[str, Offer],  # of all parties that began the sum
    survivors: Collection[str],
    shares: Mapping[str, UnmaskShares],  # of the survivors, by holder
    step: tuple[str, int],  # the run and the sum's number
    links: Mapping[str, Mapping[str, bytes]],  # of the survivors, by the other party
) -> RemainingMasks:
    """Recover the seeds of remaining masks; refuse seeds and links unlike the signed digests."""
    seeds: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
    for party, offer in offers.items():
        alive = party in survivors
        by_holder = {n: s.seeds if alive else s.keys for n, s in shares.items()}
        held = {numbers[n]: owned[party] for n, owned in by_holder.items() if party in owned}
        try:
            secret = masking.recover_secret(held, threshold)
            bound = (
                commit(secret, *step, party) == offer.seed
                if alive
                else masking.public_key(secret) == offer.public
                and all(
                    commit(masking.half(secret, numbers[n]), *step, party, n, "half") == deal.half
                    for n, deal in offer.deals.items()
                )
            )
        except CryptoError as error:
            raise error.at(party=party) from error
        if not bound:  # each share was dealt by this party
            what = "this party dealt shares of other secrets than its own"
            raise UnusableKeys((party,), what)
        seeds[not alive][party] = secret
    publics = {p: offer.public for p, offer in offers.items()}
    linked = {p: {n: links[n][p] for n in survivors} for p in seeds[True]}
    left = RemainingMasks(numbers, publics, *seeds, linked)
    _check_links(left, offers, step)
    return left


def _check_links(left: RemainingMasks, offers: Mapping[str, Offer], step: tuple[str, int]) -> None:
    """Refuse links with dropped parties that do not fit the signed digests of halves."""
    for lost, by_party in left.links.items():
        for party, link in by_party.items():
            half = masking.link(link, masking.half(left.dropped[lost], left.numbers[party]))
            if commit(half, *step, party, lost, "half") != offers[party].deals[lost].half:
                what = "this party signs another link than its own"
                raise UnusableKeys((party,), what)


def blind_totals(
    protection: ProtectionSettings,
    members: Sequence[str],
    *,
    host: str | None,
    threshold: int,
    run: bytes,
) -> TotalFor:
    """Return the factory of a run's blind sums, by protection mode."""
    numbers = {name: number for number, name in enumerate(sorted(members), 1)}
    if protection.mode == "none":
        return lambda audience, offered: ClearTotal()
    # Preparing a context costs as much as adding a few ciphertexts: do it once.
    context = load(context_bytes(COHORT)) if protection.mode == "he+secagg" else None

    def total_for(audience: Audience, offered: OfferedKeys) -> BlindTotal:
        return ProtectedTotal(
            COHORT.modulus,
            context if audience == Audience.PARTIES else None,
            offered=offered,
            numbers=numbers,
            host=host,
            threshold=threshold,
            run=run,
        )

    return total_for
