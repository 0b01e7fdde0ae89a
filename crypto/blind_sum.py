"""The coordinator's half of a sum: it adds what arrives, as it arrives, and keeps nothing apart.

Integer accumulators make every total independent of the order in which parties answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial as bind

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.masking import Slots, StreamId
from secure_fl.crypto.public import PublicContext, Sum
from secure_fl.crypto.seeded import MOST_SEEDS, SeededSum
from secure_fl.crypto.unmasking import RemainingMasks
from secure_fl.errors import CohortError, CryptoError, Disagreement, WireError
from secure_fl.protocol.messages import Salt, Segment, UnmaskShares
from secure_fl.protocol.ports import Offered

COARSE = 2.0**24  # first limb: multiples of 2^-24, up to 2^38
FINE = 2.0**72  # second limb: the rest, to 2^-72
LARGEST = 2.0**30  # per party, so that 256 and more parties fit
CHUNK = 1 << 14  # values at a time: temporaries stay in the cache


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, size, CHUNK))


class ExactFloats:
    """Sums float32 vectors in two 64-bit integers per value: exact, whatever the order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._coarse = np.zeros(size, dtype=np.int64)
        self._fine = np.zeros(size, dtype=np.int64)

    def add(self, values: NDArray[np.float32]) -> None:
        """Add one party's vector."""
        for part in _parts(values.size):
            x = values[part].astype(np.float64)
            x *= COARSE
            coarse = np.rint(x)
            x -= coarse  # exact: what is left of the mantissa
            x *= FINE / COARSE
            np.rint(x, out=x)
            # whole numbers below 2^54 and 2^48: no conversion rounds
            self._coarse[part] += coarse.astype(np.int64)
            self._fine[part] += x.astype(np.int64)

    def total(self) -> NDArray[np.float32]:
        """The sum, rounded once."""
        found = np.empty(self.size, np.float32)
        for part in _parts(self.size):
            found[part] = self._coarse[part] / COARSE + self._fine[part] / FINE
        return found


def require_summable(values: NDArray[np.float32]) -> None:
    """Refuse what `ExactFloats` cannot add, before any of it is added."""
    for part in _parts(values.size):
        if not (np.abs(values[part]) < LARGEST).all():  # also false for NaN
            raise WireError("a clear vector holds NaN, infinity or values of 2^30 and more")


class ClearTotal:
    """The coordinator's half for `protect = "none"`."""

    def __init__(self) -> None:
        self._totals: dict[bytes, ExactFloats] = {}

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        """Add a party's segments: all of them, or none if one cannot be read."""
        values = np.frombuffer(data, dtype="<f4") if len(data) % 4 == 0 else None
        if values is None or sum(s.size for s in segments) != len(data):
            raise WireError("a sum's segments do not fit their bulk", party=sender)
        require_summable(values)
        start = 0
        for segment in segments:
            if not segment.size:  # this party only reads the sum
                continue
            end = start + segment.size // 4
            total = self._totals.setdefault(segment.key, ExactFloats(end - start))
            if segment.size % 4 or total.size != end - start:
                raise Disagreement("this party lays out a sum differently", party=sender)
            total.add(values[start:end])
            start = end

    def needs_unmasking(self) -> bool:
        """Clear sums have no masks."""
        return False

    def unmask(self, sender: str, reveal: UnmaskShares) -> None:
        """Clear sums have no masks."""
        raise CohortError("a clear sum has no masks to remove", party=sender)

    def result(self, survivors: Sequence[str]) -> Mapping[bytes, bytes]:
        """The totals."""
        return {key: total.total().tobytes() for key, total in self._totals.items()}


SLOT_BYTES = 6  # 48 bits hold a slot of 44


def from_slots(slots: Slots) -> bytes:
    """Masked slots as bytes, 48 bits each."""
    return slots.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :SLOT_BYTES].tobytes()


def to_slots(data: bytes, count: int) -> Slots:
    """The inverse of `from_slots`."""
    if len(data) != SLOT_BYTES * count:
        raise WireError("masked values have the wrong size")
    slots = np.zeros((count, 8), np.uint8)
    slots[:, :SLOT_BYTES] = np.frombuffer(data, np.uint8).reshape(count, SLOT_BYTES)
    return slots.view("<u8").reshape(-1).astype(np.uint64, copy=False)


def from_parts(parts: Sequence[bytes]) -> bytes:
    """Ciphertexts one after the other, each behind its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def to_parts(data: bytes) -> list[bytes]:
    """The inverse of `from_parts`."""
    parts, start = [], 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        if end > len(data) or end == start + 4:
            raise WireError("a list of ciphertexts is cut short")
        parts.append(data[start + 4 : end])
        start = end
    return parts


class MaskedInts:
    """Adds masked slots that are not encrypted."""

    def __init__(self, modulus: int) -> None:
        self._modulus = modulus
        self._total: Slots | None = None

    def read(self, data: bytes, count: int) -> Callable[[], None]:
        """Check one party's slots; what comes back adds them."""
        slots = to_slots(data, count)
        if int(slots.max(initial=0)) >= self._modulus:
            raise WireError("a masked value is not below the modulus")
        return bind(self._add, slots)

    def _add(self, slots: Slots) -> None:
        if self._total is None:
            self._total = slots
        else:
            self._total += slots
            self._reduce(self._total)

    def subtract(self, masks: Slots) -> None:
        """Take masks off."""
        if self._total is not None:
            self._total += np.uint64(self._modulus) - masks
            self._reduce(self._total)

    def result(self) -> bytes:
        """The sum."""
        return b"" if self._total is None else from_slots(self._total)

    def _reduce(self, slots: Slots) -> None:
        """Reduce sums of two, or of one and the modulus; below 0 wraps to the top."""
        np.minimum(slots, slots - np.uint64(self._modulus), out=slots)


class SealedInts:
    """Adds ciphertexts that nobody here can open."""

    def __init__(self, context: PublicContext, owners: int) -> None:
        self._sum = SeededSum(context) if owners <= MOST_SEEDS else Sum(context)

    def read(self, data: bytes, count: int) -> Callable[[], None]:
        """Take one party's ciphertexts apart; what comes back adds them."""
        return bind(self._sum.add, to_parts(data))

    def add(self, data: bytes, count: int) -> None:
        """Add one party's ciphertexts."""
        self.read(data, count)()

    def subtract(self, masks: Slots) -> None:
        """Take masks off under the encryption."""
        self._sum.subtract_plain(masks)

    def result(self) -> bytes:
        """The sealed sum."""
        return from_parts(self._sum.result())


@dataclass(slots=True)
class _Vector:
    total: MaskedInts | SealedInts
    segment: Segment
    salts: dict[str, tuple[Salt, ...]] = field(default_factory=dict)  # of each contributor's masks


class ProtectedTotal:
    """The coordinator's half of a protected sum: ciphertexts, masked integers, or both at once."""

    def __init__(
        self,
        modulus: int,
        context: PublicContext | None,  # None: masked integers only
        *,
        masks: bool,
        offered: Offered,
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
        self._modulus, self._context, self._masks = modulus, context, masks
        self._offered, self._numbers, self._host = offered, numbers, host
        self._threshold, self._run = threshold, run.hex()
        self._vectors: dict[bytes, _Vector] = {}
        self._reveals: dict[str, UnmaskShares] = {}

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        """Add one party's segments."""
        if sum(s.size for s in segments) != len(data):
            raise WireError("a sum's segments do not fit their bulk", party=sender)
        start, vectors, adding = 0, dict(self._vectors), []
        for segment in segments:
            vector = vectors.get(segment.key)
            if vector is None:
                vector = vectors[segment.key] = _Vector(self._empty(segment), segment)
            if (segment.slots, segment.owners) != (vector.segment.slots, vector.segment.owners):
                raise Disagreement("this party lays out a sum differently", party=sender)
            if bool(segment.size) != (sender in segment.owners or not segment.owners):
                raise Disagreement("this party contributes where it only reads", party=sender)
            if not segment.size:
                continue
            part = data[start : start + segment.size]
            adding.append((vector, vector.total.read(part, segment.slots), segment.salts))
            start += segment.size
        self._vectors = vectors
        for vector, add, salts in adding:
            add()
            vector.salts[sender] = salts

    def needs_unmasking(self) -> bool:
        """Masks are there to be removed."""
        return self._masks

    def unmask(self, sender: str, reveal: UnmaskShares) -> None:
        """Keep a survivor's shares until all have answered."""
        self._reveals[sender] = reveal

    def result(self, survivors: Sequence[str]) -> Mapping[bytes, bytes]:
        """Remove what is left of the masks and return the totals."""
        if self._masks:
            self._remove_masks([p for p in survivors if p != self._host])
        return {key: vector.total.result() for key, vector in self._vectors.items()}

    def _empty(self, segment: Segment) -> MaskedInts | SealedInts:
        if self._context is None:
            return MaskedInts(self._modulus)
        parties = len(self._numbers) - (self._host is not None)
        return SealedInts(self._context, len(segment.owners) or parties)

    def _remove_masks(self, survivors: Sequence[str]) -> None:
        index = self._offered.index
        if not index:
            raise CohortError("a masked sum began although no keys were exchanged")
        publics = {p: o.public for p, o in self._offered.offers.items() if p != self._host}
        left = RemainingMasks.recover(
            self._numbers, self._threshold, publics, survivors, self._reveals
        )
        for key, vector in self._vectors.items():
            masks = left.masks(
                vector.segment.owners or tuple(publics),
                vector.salts,
                StreamId(self._run, key.hex(), index),
                vector.segment.slots,
                self._modulus,
            )
            vector.total.subtract(masks)
