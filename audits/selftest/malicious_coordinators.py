"""The tricks of a lying coordinator, each under the name by which a report speaks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any

import numpy as np
from msgspec import structs

from secure_fl.audits.selftest.malicious_federation import PARTIES, ChangedSum, Trick
from secure_fl.crypto.sealing import masking, public, tags
from secure_fl.crypto.sealing.blind_sum import ENCRYPTED
from secure_fl.crypto.sealing.packing import from_slots, to_slots
from secure_fl.crypto.sealing.public import (
    SEED_BYTES,
    WORD_BYTES,
    MemoryFile,
    from_parts,
    read_sum,
    to_parts,
    widths,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame, cut
from secure_fl.protocol.messages import Offer, Segment
from secure_fl.settings import Protection

VICTIM, MISSING = PARTIES[0], PARTIES[2]
SLOT = 6  # bytes of a masked slot that is not encrypted

Totals = dict[bytes, bytes]


def expanded(mode: Protection, totals: Totals) -> Totals:
    """The same sums as ciphertexts in full: of seeds, their number alone tells whose they are."""
    if mode not in ENCRYPTED:
        return totals
    return {key: from_parts(_in_full(data)[0].result()) for key, data in totals.items()}


@dataclass
class Altered(Trick):
    """Changes every total as far as its protection lets anyone."""

    mode: Protection
    numbers: Callable[[Any], Any]  # of floats, and of slots mod t
    sealed: Callable[[ChangedSum, int], None]  # a sealed sum, and how many slots it has

    def answer(self, totals: Totals) -> Totals:
        """Change all segments alike."""
        return {key: self._changed(data) for key, data in totals.items()}

    def _changed(self, data: bytes) -> bytes:
        if self.mode == "none":
            found: bytes = self.numbers(np.frombuffer(data, "<f4")).astype("<f4").tobytes()
            return found
        if self.mode == "secagg":
            slots = self.numbers(to_slots(data, len(data) // SLOT)) % np.uint64(COHORT.modulus)
            return from_slots(slots)
        total, slots = _in_full(data)
        self.sealed(total, slots)
        return from_parts(total.result())


@dataclass
class LeftOut(Trick):
    """Adds up without one party and says nothing."""

    mode: Protection

    def answer(self, totals: Totals) -> Totals:
        """In full, so that the number of seeds does not tell."""
        return expanded(self.mode, totals)

    def counts(self, sender: str, segments: Sequence[Segment]) -> bool:
        """All but one."""
        return sender != MISSING


@dataclass
class OldTotal(Trick):
    """Answers a sum with the totals of the one before."""

    mode: Protection
    first: Totals = field(default_factory=dict)

    def answer(self, totals: Totals) -> Totals:
        """The first totals, each time, under the names of this sum."""
        self.first = self.first or expanded(self.mode, totals)
        return dict(zip(totals, self.first.values(), strict=True))


@dataclass
class Crossed(Trick):
    """Gives the total of one vector as that of another."""

    mode: Protection

    def answer(self, totals: Totals) -> Totals:
        """Turn the totals round."""
        found = expanded(self.mode, totals)
        return dict(zip(found, reversed(found.values()), strict=True))


class OtherKeys(Trick):
    """Tells one party keys of its own as those of all others, to know that party's masks."""

    def __init__(self) -> None:
        self._mine = masking.public_key(token_bytes(masking.SEED_BYTES))

    def tell(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """The same shares, under other public keys."""
        if party != VICTIM or not getattr(message, "offers", None):
            return message, bulk
        return structs.replace(message, offers=swapped(message.offers, self._mine)), bulk


@dataclass
class Divided(Trick):
    """Tells one party that another is gone, and the rest that everybody is there."""

    told: bool = False

    def tell(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """Other lists for the victim; after them, nobody tells it of who is gone."""
        if party == VICTIM and self.told and isinstance(message, messages.Owners):
            owners = {
                name: tuple(p for p in parties if p != MISSING)
                for name, parties in message.owners.items()
            }
            return structs.replace(message, owners=owners), bulk
        if party != VICTIM or not isinstance(message, messages.Unmask | messages.Total):
            return message, bulk
        self.told = True
        left = tuple(p for p in message.survivors if p != MISSING)
        if isinstance(message, messages.Unmask):
            return messages.Unmask(left, (MISSING,)), bulk
        stays = tuple(p for p in message.members if p != MISSING)
        return structs.replace(message, survivors=left, members=stays), bulk

    def insist(self, party: str, answer: Any) -> Any:
        """Show the victim its own signature as all there is."""
        if isinstance(answer, messages.Confirm):
            return messages.Confirmed({party: answer.signature})
        return None


@dataclass
class OldFrame(Trick):
    """Delivers the frame of an earlier total in place of a later one."""

    old: Frame | None = None

    def deliver(self, party: str, message: Any, frame: Frame) -> Frame:
        """The victim's first frame with a total, each time."""
        if party != VICTIM or not isinstance(message, messages.Total):
            return frame
        self.old = self.old or frame
        return self.old


@dataclass
class Forged(Trick):
    """With a hospital's keys: one party opens another first sum than all others, with a right tag.

    Whoever learns nothing from a sum like that leaves the others' next inputs alone in theirs. So
    it has failed if the next sum does not open.
    """

    mode: Protection
    tag_key: bytes = b""
    run: str = ""
    slots: dict[bytes, int] = field(default_factory=dict)  # of the first sum's segments
    sums: int = 0

    def conspire(self, keys: Any, run: bytes) -> None:
        """The key of tags is every party's."""
        self.tag_key, self.run = keys.tag_key, run.hex()

    def counts(self, sender: str, segments: Sequence[Segment]) -> bool:
        """All; how long a segment is, every party says."""
        self.slots |= {segment.key: segment.slots for segment in segments if not self.sums}
        return True

    def answer(self, totals: Totals) -> Totals:
        """The truth, for the others."""
        self.sums += 1
        return totals

    def tell(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """Send the victim the first sum with every slot raised by one."""
        if party != VICTIM or not isinstance(message, messages.Total) or self.sums > 1:
            return message, bulk
        parts = zip(self.slots, cut(bulk, message.sizes), strict=False)
        forged = [self._forged(key, data) for key, data in parts]
        sizes = tuple(len(data) for data in forged)
        return structs.replace(message, sizes=sizes), b"".join(forged)

    def _forged(self, key: bytes, data: bytes) -> bytes:
        if self.mode == "none":
            return (np.frombuffer(data, "<f4") + np.float32(1)).astype("<f4").tobytes()
        t, stream = COHORT.modulus, masking.StreamId(self.run, key.hex(), 1)
        more = np.ones(self.slots[key], np.uint64)
        weights = masking.uniform(masking.stream_key(self.tag_key, stream, "tag"), more.size - 1, t)
        more[-1] = tags.dot(more[:-1], weights, t)
        if self.mode == "secagg":
            return from_slots((to_slots(data, more.size) + more) % np.uint64(t))
        total, _ = _in_full(data)
        total.add_plain(more)
        return from_parts(total.result())


def swapped(offers: Mapping[str, Offer], mine: bytes) -> dict[str, Offer]:
    """The same offers under another public key."""
    return {party: structs.replace(offer, public=mine) for party, offer in offers.items()}


def _scaled(mode: Protection) -> Trick:
    return Altered(mode, lambda x: x * x.dtype.type(2), lambda total, _: total.scale(2))


def _injected(mode: Protection) -> Trick:
    def plus_one(total: ChangedSum, slots: int) -> None:
        total.add_plain(np.ones(slots, np.uint64))

    return Altered(mode, lambda x: x + x.dtype.type(1), plus_one)


TRICKS: dict[str, Callable[[Protection], Trick]] = {
    "scales an aggregate": _scaled,
    "injects a constant": _injected,
    "drops a party's input": LeftOut,
    "replays an old total": OldTotal,
    "relabels a sum": Crossed,
    "lies about dropouts": lambda _: Divided(),
    "replays a frame": lambda _: OldFrame(),
    "swaps keys": lambda _: OtherKeys(),
    "forges a sum for one hospital, with another's keys": Forged,
}


def _in_full(data: bytes) -> tuple[ChangedSum, int]:
    """A sealed sum that can be changed, and how many slots it has."""
    context = public.make_context(COHORT)
    count, contributors = _size(data)
    total = ChangedSum(context, count)
    with MemoryFile() as channel:
        each = zip(to_parts(data, count), widths(count), strict=True)
        read = [(read_sum(context, channel, *one, contributors), one[1]) for one in each]
        total.add([public.serialize(context, channel, *one) for one in read])
    return total, count


def _size(data: bytes) -> tuple[int, int]:
    """How many slots a sum of one ciphertext has, over all parties or over some."""
    for contributors in range(len(PARTIES), 1, -1):
        slots, rest = divmod(len(data) - 5 - SEED_BYTES * contributors, WORD_BYTES)
        if not rest:
            return slots, contributors
    raise CryptoError("this is no sum of ciphertexts")
