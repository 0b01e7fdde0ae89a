"""Malicious coordinators, by the name of their attack in reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any

import numpy as np
from msgspec import structs

from secure_fl.audits.selftest.malicious_federation import PARTIES, ChangedSum, HonestCoordinator
from secure_fl.crypto.sealing import masking, public, tags
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
    """Expand sums to full ciphertexts, since the number of seeds reveals the contributors."""
    if mode != "he+secagg":
        return totals
    return {key: from_parts(_in_full(data)[0].result()) for key, data in totals.items()}


@dataclass
class AlteringCoordinator(HonestCoordinator):
    """A coordinator that changes every total as far as the protection allows."""

    mode: Protection
    numbers: Callable[[Any], Any]  # of floats, and of slots mod t
    sealed: Callable[[ChangedSum, int], None]  # of a sealed sum with so many slots

    def rewrite_totals(self, totals: Totals) -> Totals:
        """Change all segments in the same way."""
        return {key: self._changed(data) for key, data in totals.items()}

    def _changed(self, data: bytes) -> bytes:
        if self.mode == "none":
            changed: bytes = self.numbers(np.frombuffer(data, "<f4")).astype("<f4").tobytes()
            return changed
        if self.mode == "secagg":
            slots = self.numbers(to_slots(data, len(data) // SLOT)) % np.uint64(COHORT.modulus)
            return from_slots(slots)
        total, slots = _in_full(data)
        self.sealed(total, slots)
        return from_parts(total.result())


@dataclass
class OmittingCoordinator(HonestCoordinator):
    """A coordinator that silently leaves one party out of sums."""

    mode: Protection

    def rewrite_totals(self, totals: Totals) -> Totals:
        """Expand totals, so that the number of seeds does not reveal the omission."""
        return expanded(self.mode, totals)

    def includes(self, sender: str, segments: Sequence[Segment]) -> bool:
        """Leave one party out."""
        return sender != MISSING


@dataclass
class ReplayingCoordinator(HonestCoordinator):
    """A coordinator that answers later sums with the totals of the first."""

    mode: Protection
    first: Totals = field(default_factory=dict)

    def rewrite_totals(self, totals: Totals) -> Totals:
        """Send the first totals, under the names of this sum."""
        self.first = self.first or expanded(self.mode, totals)
        return dict(zip(totals, self.first.values(), strict=True))


@dataclass
class RelabellingCoordinator(HonestCoordinator):
    """A coordinator that sends the total of one vector as that of another."""

    mode: Protection

    def rewrite_totals(self, totals: Totals) -> Totals:
        """Reverse the order of the totals."""
        full = expanded(self.mode, totals)
        return dict(zip(full, reversed(full.values()), strict=True))


class KeySwappingCoordinator(HonestCoordinator):
    """A coordinator that sends one party its own keys as those of all others, to know its masks."""

    def __init__(self) -> None:
        self._mine = masking.public_key(token_bytes(masking.SEED_BYTES))

    def rewrite_message(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """Send the same shares, under other public keys."""
        if party != VICTIM or not getattr(message, "offers", None):
            return message, bulk
        return structs.replace(message, offers=swapped(message.offers, self._mine)), bulk


@dataclass
class EquivocatingCoordinator(HonestCoordinator):
    """A coordinator that sends one party another survivor list than the others."""

    begun: bool = False

    def rewrite_message(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        """Send the victim lists without one party, and later messages that agree with them."""
        if party == VICTIM and self.begun and isinstance(message, messages.Owners):
            owners = {
                name: tuple(p for p in parties if p != MISSING)
                for name, parties in message.owners.items()
            }
            return structs.replace(message, owners=owners), bulk
        if party != VICTIM or not isinstance(message, messages.Unmask | messages.Total):
            return message, bulk
        self.begun = True
        left = tuple(p for p in message.survivors if p != MISSING)
        if isinstance(message, messages.Unmask):
            return structs.replace(message, survivors=left, dropped=(MISSING,)), bulk
        stays = tuple(p for p in message.members if p != MISSING)
        return structs.replace(message, survivors=left, members=stays), bulk

    def follow_up(self, party: str, answer: Any) -> Any:
        """Confirm the victim's list with its own signature alone."""
        if isinstance(answer, messages.Confirm):
            return messages.Confirmed({party: answer.signature})
        return None


@dataclass
class FrameReplayingCoordinator(HonestCoordinator):
    """A coordinator that delivers the frame of an earlier total instead of a later one."""

    old: Frame | None = None

    def replace_frame(self, party: str, message: Any, frame: Frame) -> Frame:
        """Deliver the victim's first frame with a total each time."""
        if party != VICTIM or not isinstance(message, messages.Total):
            return frame
        self.old = self.old or frame
        return self.old


@dataclass
class ForgingCoordinator(HonestCoordinator):
    """A coordinator that forges one party's first sum, with a right tag by a hospital's keys.

    The victim's next masks then depend on another sum than those of the others. So the forgery has
    failed if the next sum does not open.
    """

    mode: Protection
    tag_key: bytes = b""
    run: str = ""
    slots: dict[bytes, int] = field(default_factory=dict)  # of the first sum's segments
    sums: int = 0

    def receive_keys(self, keys: Any, run: bytes) -> None:
        """Keep the key of tags, which all parties share."""
        self.tag_key, self.run = keys.tag_key, run.hex()

    def includes(self, sender: str, segments: Sequence[Segment]) -> bool:
        """Include all inputs, and note the length of each segment."""
        self.slots |= {segment.key: segment.slots for segment in segments if not self.sums}
        return True

    def rewrite_totals(self, totals: Totals) -> Totals:
        """Send the others the true totals."""
        self.sums += 1
        return totals

    def rewrite_message(self, party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
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
    """Put offers under another public key."""
    return {party: structs.replace(offer, public=mine) for party, offer in offers.items()}


def _scaling(mode: Protection) -> HonestCoordinator:
    return AlteringCoordinator(mode, lambda x: x * x.dtype.type(2), lambda total, _: total.scale(2))


def _injecting(mode: Protection) -> HonestCoordinator:
    def plus_one(total: ChangedSum, slots: int) -> None:
        total.add_plain(np.ones(slots, np.uint64))

    return AlteringCoordinator(mode, lambda x: x + x.dtype.type(1), plus_one)


COORDINATORS: dict[str, Callable[[Protection], HonestCoordinator]] = {
    "scales an aggregate": _scaling,
    "injects a constant": _injecting,
    "drops a hospital's input": OmittingCoordinator,
    "replays an old total": ReplayingCoordinator,
    "relabels a sum": RelabellingCoordinator,
    "lies about dropouts": lambda _: EquivocatingCoordinator(),
    "replays a frame": lambda _: FrameReplayingCoordinator(),
    "swaps keys": lambda _: KeySwappingCoordinator(),
    "forges a sum for one hospital, with another's keys": ForgingCoordinator,
}


def _in_full(data: bytes) -> tuple[ChangedSum, int]:
    """Expand a sealed sum so that it can be changed; also return its number of slots."""
    context = public.make_context(COHORT)
    count, contributors = _size(data)
    total = ChangedSum(context, count)
    with MemoryFile() as channel:
        each = zip(to_parts(data, count), widths(count), strict=True)
        read = [(read_sum(context, channel, *one, contributors), one[1]) for one in each]
        total.add([public.serialize(context, channel, *one) for one in read])
    return total, count


def _size(data: bytes) -> tuple[int, int]:
    """Find the number of slots and contributors of a sum, from its length."""
    for contributors in range(len(PARTIES), 1, -1):
        slots, rest = divmod(len(data) - 5 - SEED_BYTES * contributors, WORD_BYTES)
        if not rest:
            return slots, contributors
    raise CryptoError("these bytes are not a sum of ciphertexts")
