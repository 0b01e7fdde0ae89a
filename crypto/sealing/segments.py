"""Layout of the named vectors of one segment in slots, and back from a sum of slots.

    [ exact scalars | squared norms | packed fixed-point values ]        (and the tag after them)

Vectors of at most `SMALL` values (sample counts, losses) are encoded exactly. All others are
clipped to a scale that every party knows: a public bound, or a multiple of the last sum's root mean
square. For that, a carried vector also sends its squared norm. A vector with neither is first
summed in norm only; then nothing is clipped, at the price of more bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.primitives import digest_of
from secure_fl.crypto.sealing import packing
from secure_fl.crypto.sealing.packing import BLOCK, Codec, Slots
from secure_fl.errors import CohortError, CryptoError, WireError
from secure_fl.protocol.messages import Lost, Salt, SumId
from secure_fl.protocol.ports import Group, Noise, Rule, Vector

SMALL = 8
EXACT_BITS = 24  # for vectors whose clip covers their whole norm
HOST_BITS = 16  # minimum: predictions are few and never carried, so rounding is not corrected
# Clip at this multiple of the RMS. It balances rounding noise and clipping, which are both carried.
# For 4 and 6 bits it minimises the squared error of both for Gaussian values (at 2.27 and 3.10; the
# error is 15 % and 4.4 % of the RMS). Finer values can afford heavier tails.
CLIP_IN_RMS = {4: 2.3, 6: 3.1, 8: 5.0, 12: 7.0, 16: 10.0, 24: 16.0}
# Squared norms have two scales. Those below 1 are magnified to keep their digits. Others are
# shrunk, since the update of a large hospital, times its records, exceeds the exact range.
TINY, HUGE = 2.0**38, 2.0**10

SLOT_BYTES = 6  # 48 bits hold a slot of 44

Arrays = dict[str, NDArray[np.float64]]


class Field(NamedTuple):
    """One vector: its size and, if it is packed, its clip and a flag for its norm."""

    name: str
    size: int
    clip: float | None = None
    norm: bool = False


class Layout:
    """The fields of one segment in order, and the encoding of the packed ones.

    `exact`: vectors encoded exactly; `packed`: vectors in fixed point. `scalars`: count of exact
    numbers, norms included (two scales each); `values`: count of fixed-point values. `slots`:
    length of the segment, without its tag.
    """

    __slots__ = ("_ends", "codec", "exact", "fields", "packed", "scalars", "slots", "values")

    def __init__(self, fields: Sequence[Field], codec: Codec) -> None:
        self.fields, self.codec = tuple(fields), codec
        self.exact = tuple(f for f in self.fields if f.clip is None)
        self.packed = tuple(f for f in self.fields if f.clip is not None)
        self.scalars = sum(f.size for f in self.exact) + 2 * sum(f.norm for f in self.packed)
        ends = list(accumulate(f.size for f in self.packed))
        self.values, self._ends = ends[-1] if ends else 0, ends[:-1]
        packed = codec.slots(self.values) if self.values else 0
        self.slots = packing.WIDE_LIMBS * self.scalars + packed

    def encode(
        self, vectors: Mapping[str, Vector], rng: np.random.Generator, noise: Noise | None
    ) -> tuple[Slots, dict[str, Vector]]:
        """Encode the vectors in slots; also return the rounding error of each packed vector."""
        parts: list[Slots] = []
        leftovers: dict[str, Vector] = {}
        if self.scalars:
            exact = [vectors[f.name].astype(np.float64) for f in self.exact]
            for field in self.packed:
                if field.norm:
                    square = squared_norm(vectors[field.name])
                    large, small = (square / HUGE, 0.0) if square >= 1 else (0.0, square * TINY)
                    exact.append(np.array([large, small]))
            parts.append(packing.encode_wide(np.concatenate(exact)))
        if self.values:
            values = np.concatenate([vectors[f.name] for f in self.packed])
            names = [f.name for f in self.packed]
            if noise is not None:  # its own grid and clip, which the accounting assumes
                parts.append(packing.pack(self.codec, noise.share(values.astype(np.float64))))
            else:
                clips = np.array([f.clip for f in self.packed], np.float32)
                clips = np.repeat(clips, [f.size for f in self.packed])
                integers, residual = packing.quantize(self.codec, values, clips, rng)
                parts.append(packing.pack(self.codec, integers))
                leftovers = dict(zip(names, np.split(residual, self._ends), strict=True))
        return np.concatenate(parts), leftovers

    def decode(
        self, slots: Slots, contributors: int, noise: Noise | None = None
    ) -> tuple[Arrays, dict[str, float]]:
        """Return the sums of the vectors, and of the squared norms that were sent."""
        cut = packing.WIDE_LIMBS * self.scalars
        opened: Arrays = {}
        norms: dict[str, float] = {}
        if self.scalars:
            numbers = packing.decode_wide(slots[:cut], contributors)
            ends = list(accumulate((f.size for f in self.exact), initial=0))
            for field, (start, end) in zip(self.exact, pairwise(ends), strict=True):
                opened[field.name] = numbers[start:end]
            pairs = numbers[ends[-1] :].reshape(-1, 2)
            for field, (large, small) in zip(
                (f for f in self.packed if f.norm), pairs, strict=True
            ):
                norms[field.name] = float(large * HUGE + small / TINY)
        if self.values:
            integers = packing.unpack(self.codec, slots[cut:], contributors, self.values)
            for field, part in zip(self.packed, np.split(integers, self._ends), strict=True):
                if noise is not None:
                    opened[field.name] = part / noise.scale
                else:  # a clip per vector; an array of clips would cost as much as unpacking
                    opened[field.name] = packing.dequantize(self.codec, part, field.clip or 0.0)
        return opened, norms


def squared_norm(vector: Vector) -> float:
    """Compute ‖x‖² in float64."""
    total = 0.0
    for start in range(0, vector.size, BLOCK):  # longer blocks start BLAS threads, which then spin
        part = vector[start : start + BLOCK].astype(np.float64)
        total += float(np.dot(part, part))
    return total


def segment_key(group: Group, rule: Rule, at: SumId, seen: bytes = b"") -> bytes:
    """Digest the content, number and contributors of a segment, and their common history.

    Parties that disagree have different segments at the coordinator.
    """
    layout = "\n".join(f"{name} {vector.size}" for name, vector in group.vectors.items())
    owners, readers = "\n".join(group.owners), "\n".join(group.readers)
    # With less noise than the others a party has another key, and no sum with them.
    noise = rule.noise and f"{rule.noise.scale:.6g} {rule.noise.reach:.6g}"
    rules = f"{rule.audience} {rule.carry} {rule.bound} {noise} {at[0]} {at[1]}"
    parts = (rules, layout, owners, readers)
    return digest_of(b"secure-fl segment", seen, *(part.encode() for part in parts))


def needs_masks() -> CohortError:
    """Build the error of a host sum without masks: all parties could open its ciphertexts."""
    return CohortError(
        "a sum for the host alone needs masks, and this run has none",
        fix='set protection.mode = "he+secagg"',
    )


def left_between_parts(me: str) -> CohortError:
    """Build the error of a partial sum that a party left, with values that are not carried."""
    return CohortError(
        "a party left between two parts of a large sum, whose values cannot wait for the next sum",
        fix="resume the run: the round is repeated",
        party=me,
    )


def check_bound(group: Group, bound: float) -> None:
    """Refuse values beyond their public bound: they would be clipped without notice."""
    for name, vector in group.vectors.items():
        if np.abs(vector).max(initial=0) > bound:
            raise CryptoError(
                f"{name} holds values beyond the public bound of {bound:g}",
                fix="clip them first, or name a larger bound",
            )


def from_slots(slots: Slots) -> bytes:
    """Encode masked slots in 48 bits each."""
    return slots.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :SLOT_BYTES].tobytes()


def to_slots(data: bytes, count: int) -> Slots:
    """Decode the result of `from_slots`."""
    if len(data) != SLOT_BYTES * count:
        raise WireError("masked values have the wrong size")
    slots = np.zeros((count, 8), np.uint8)
    slots[:, :SLOT_BYTES] = np.frombuffer(data, np.uint8).reshape(count, SLOT_BYTES)
    return slots.view("<u8").reshape(-1).astype(np.uint64, copy=False)


def salts_by_digest(by_peer: Mapping[str, bytes]) -> tuple[Salt, ...]:
    """Group the salts of masks with single peers for the wire: most often all are equal."""
    named: dict[bytes, list[str]] = {}
    for peer, digest in sorted(by_peer.items()):
        named.setdefault(digest, []).append(peer)
    return tuple(Salt(digest, tuple(names)) for digest, names in named.items())


def salt_of(salts: Sequence[Salt], peer: str) -> bytes:
    """Return the digest that is listed for this peer, if any."""
    return next((salt.digest for salt in salts if peer in salt.peers), b"")


def salts_with(
    lost: Mapping[str, Lost], place: int, owners: Collection[str]
) -> dict[str, dict[str, bytes]]:
    """Return the salts that contributors to a segment used for masks with lost parties."""
    salts = {peer: of.salts[place] for peer, of in lost.items() if place < len(of.salts)}
    return {
        party: {peer: by[party] for peer, by in salts.items() if party in by} for party in owners
    }
