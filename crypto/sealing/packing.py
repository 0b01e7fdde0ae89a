"""Encoding of the named vectors of one segment in slots, and decoding of a sum of slots.

Specified in docs/protocol-bytes.md 5.

    [ exact scalars | squared norms | packed fixed-point values ]        (and the tag after them)

A value x is clipped to ±c and rounded stochastically to one of 2L + 1 integers, L = 2^(bits-1) - 1:

    q = floor(x · L/c + u),  u uniform on [0, 1)        so that E[q] · c/L = clip(x)

(u has 16 bits: the expectation is exact to 2^-17 of a step.) Fields are planar: of m slots, slot s
holds the values s, m + s, 2m + s, ..., so packing works on contiguous memory. The error of rounding
and clipping is returned as the residual, for error feedback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from secure_fl.crypto.keys.identity import digest_of
from secure_fl.errors import CryptoError, WireError
from secure_fl.protocol.messages import SumId
from secure_fl.protocol.ports import Arrays, Group, Noise, Rule, Vector
from secure_fl.protocol.sum_names import SCALES

Slots = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Clip = float | npt.NDArray[np.float32]

BLOCK = 8192  # values per block: all its buffers fit the second-level cache
BITS = (4, 6, 8, 12, 16, 24)
WIDE_LIMBS = 5  # 100 bits: 41 before the binary point with the offset, 40 behind it
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
WIDEST = 2.0**40  # the largest exact number

SLOT_BYTES = 6  # 48 bits hold a slot of 44


class Codec:
    """Parameters of the encoding: values of `bits` bits from up to `parties` parties.

    A clipped value is one of the integers -levels..levels. `extra` bits of head-room let integers
    grow by a factor 2^extra before they are packed, for noise added in the integer domain. `offset`
    makes one party's integers non-negative; integers beyond ±offset are refused. A field of `width`
    bits holds a value and the head-room of a sum; `per_slot` fields fit, because the largest sum
    itself stays below the modulus.
    """

    __slots__ = ("bits", "extra", "levels", "modulus", "offset", "parties", "per_slot", "width")

    def __init__(self, bits: int, parties: int, modulus: int, extra: int = 0) -> None:
        if bits not in BITS or not 1 <= parties <= 1 << 20 or extra < 0:
            raise CryptoError(
                f"no packing of {bits} bits for {parties} parties, {extra} extra",
                fix="use 4, 6, 8, 12, 16 or 24 bits and 1 to 2^20 parties",
                field="bits",
            )
        self.bits, self.parties, self.modulus, self.extra = bits, parties, modulus, extra
        self.levels = (1 << (bits - 1)) - 1
        self.offset = (1 << (bits + extra - 1)) - 1
        self.width = bits + extra + (parties - 1).bit_length()
        field, largest, fields = parties * 2 * self.offset, 0, 0
        while (largest := largest + (field << (self.width * fields))) < modulus:
            fields += 1
        self.per_slot = fields
        if fields < 1 or modulus > 1 << 62:
            raise CryptoError(
                f"a sum of {self.width} bits does not fit below a modulus of "
                f"{modulus.bit_length()} bits",
                fix="use fewer bits per value, fewer parties or less extra head-room",
                field="width",
            )

    def slots(self, values: int) -> int:
        """Return how many slots hold that many values."""
        return -(-values // self.per_slot)


def quantize(
    codec: Codec, values: Floats, clip: Clip, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Clip and round stochastically: integers in -L..L, and the residual."""
    clips = _check_values(values, clip)
    # float32 carries 24 bits: 24-bit values need float64, and 40 bits of fixed point
    exact = codec.bits == 24 or values.dtype == np.float64
    real: Any = np.float64 if exact else np.float32
    fixed: Any = np.int64 if codec.bits == 24 else np.int32
    scale, integers = real(codec.levels << 16), np.empty(values.size, np.int32)
    residual = np.empty(values.size, np.float32)
    y, wide = np.empty(BLOCK, real), np.empty(BLOCK, fixed)
    for start in range(0, values.size, BLOCK):
        here = slice(start, start + BLOCK)
        x = values[here].astype(real, copy=False)
        c, divisor, lowest = _block_clip(clips[here] if clips.ndim else clips, real)
        y, k = y[: x.size], integers[here] if fixed is np.int32 else wide[: x.size]
        largest = np.abs(x, out=y).max()
        if not largest <= np.finfo(np.float32).max:  # a float64 beyond has no finite residual
            raise CryptoError(
                "a value is NaN, infinite or beyond float32",
                fix="training diverged: lower the learning rate, or clip gradients",
                field="values",
            )
        clipped = x if largest <= lowest else np.clip(x, -c, c, out=y)
        np.divide(clipped, divisor, out=y)
        y *= scale
        np.copyto(k, np.rint(y, out=y), casting="unsafe")
        words = rng.bit_generator.random_raw(-(-x.size // 4))
        k += words.view(np.uint16)[: x.size]
        k >>= 16
        np.copyto(y, k)
        if fixed is not np.int32:
            integers[here] = k
        y *= c / real(codec.levels)
        np.subtract(x, y, out=residual[here], casting="same_kind")
    return integers, residual


def _block_clip(clips: npt.NDArray[np.float32], real: Any) -> tuple[Any, Any, Any]:
    """Return clip, divisor and lowest clip of a block: numbers if all values have the same clip."""
    low, high = clips.min(), clips.max()
    if not 0 <= low <= high < np.inf:
        raise _wrong_clips()
    clip: Any = real(low) if low == high else clips.astype(real, copy=False)
    # a clip of 0 represents everything by 0
    return clip, clip if low > 0 else np.where(clip > 0, clip, real(1)), low


def dequantize(codec: Codec, integers: Integers, clip: Clip) -> npt.NDArray[np.float64]:
    """Convert (sums of) integers to reals: times the step, in float64."""
    return integers * (np.asarray(clip, np.float32).astype(np.float64) / codec.levels)


def pack(codec: Codec, integers: Integers) -> Slots:
    """Pack one party's integers into slots."""
    if integers.ndim != 1 or not integers.size:
        raise CryptoError("integers must be a non-empty vector", fix="flatten the tensors first")
    if integers.min() < -codec.offset or integers.max() > codec.offset:
        raise CryptoError(
            "an integer exceeds its field and would change its neighbour",
            fix="give the codec more `extra` bits of head-room for the noise",
            field="integers",
        )
    count = codec.slots(integers.size)
    slots = np.empty(count, np.uint64)
    for start in range(0, count, BLOCK):
        total = slots[start : start + BLOCK]
        total[:] = 0
        for place in reversed(range(codec.per_slot)):
            total <<= np.uint64(codec.width)
            plane = integers[place * count :][start : min(start + BLOCK, count)]
            total[: plane.size] |= np.add(plane, codec.offset, dtype=np.int64).view(np.uint64)
    return slots


def unpack(codec: Codec, slots: Slots, contributors: int, values: int) -> npt.NDArray[np.int64]:
    """Decode the sums of `values` integers over `contributors` parties from the sum of slots."""
    if not 1 <= contributors <= codec.parties or slots.size != codec.slots(values):
        raise CryptoError(
            f"{slots.size} slots of {contributors} parties are not {values} values of "
            f"{codec.parties} parties at {codec.per_slot} to a slot",
            fix="open a sum with the codec it was packed with",
            field="slots",
        )
    integers = np.empty(values, np.int64)
    field = np.uint64((1 << codec.width) - 1)
    for start in range(0, slots.size, BLOCK):
        block = slots[start : start + BLOCK]
        for place in range(codec.per_slot):
            plane = integers[place * slots.size :][start : start + block.size]
            fields = plane.view(np.uint64)
            np.right_shift(block[: plane.size], np.uint64(codec.width * place), out=fields)
            fields &= field
            plane -= contributors * codec.offset
    return integers


def encode_wide(values: npt.NDArray[np.float64]) -> Slots:
    """Encode a few scalars within ±2^40 on a grid of 2^-40, one 20-bit limb to a slot.

    Sums of up to 2^20 parties are exact below any modulus above 2^40.
    """
    if values.ndim != 1 or not values.size or not np.all(np.abs(values) <= WIDEST):  # or NaN
        raise CryptoError(
            "wide values must be a non-empty vector of finite values within ±2^40",
            fix="rescale the values before the sum",
            field="wide",
        )
    whole = np.floor(values)
    low = np.rint((values - whole) * 2.0**40).astype(np.int64)  # 2^40 itself is carried over below
    high = whole.astype(np.int64) + (1 << 40) + (low >> 40)
    low &= (1 << 40) - 1
    limbs = (low, low >> 20, high, high >> 20, high >> 40)
    return np.concatenate([limb & 0xFFFFF for limb in limbs]).view(np.uint64)


def decode_wide(slots: Slots, contributors: int) -> npt.NDArray[np.float64]:
    """Decode the sums of wide values over `contributors` parties; rounded once to float64."""
    if slots.size % WIDE_LIMBS or not 1 <= contributors <= 1 << 20:
        raise CryptoError(
            f"{slots.size} slots of {contributors} parties hold no wide values",
            fix="open a sum with the slots it was encoded to",
            field="slots",
        )
    limbs = slots.view(np.int64).reshape(WIDE_LIMBS, -1)
    low = limbs[0] + (limbs[1] << 20)
    high = limbs[2] + (limbs[3] << 20) + (limbs[4] << 40) - (contributors << 40) + (low >> 40)
    total: npt.NDArray[np.float64] = high + (low & ((1 << 40) - 1)) * 2.0**-40
    return total


def _check_values(values: Floats, clip: Clip) -> npt.NDArray[np.float32]:
    """Refuse other shapes and types than vectors of floats; return the clips as an array."""
    if values.ndim != 1 or not values.size or values.dtype not in (np.float32, np.float64):
        raise CryptoError(
            f"values must be a non-empty vector of floats, not {values.dtype} of {values.shape}",
            fix="flatten the tensors first",
        )
    with np.errstate(over="ignore"):  # refused with its block
        clips = np.asarray(clip, np.float32)
    if clips.shape not in ((), values.shape):
        raise _wrong_clips()
    return clips


def _wrong_clips() -> CryptoError:
    return CryptoError(
        "clips must be finite, not negative, and one for all values or one for each",
        fix="derive the clips from the last opened scales",
        field="clip",
    )


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
        self.slots = WIDE_LIMBS * self.scalars + packed

    def encode(
        self, vectors: Mapping[str, Vector], rng: np.random.Generator, noise: Noise | None
    ) -> tuple[Slots, dict[str, Vector]]:
        """Encode the vectors in slots; also return the rounding error of each packed vector."""
        parts: list[Slots] = []
        leftovers: dict[str, Vector] = {}
        if self.scalars:
            exact = [vectors[f.name].astype(np.float64) for f in self.exact]
            for field, numbers in zip(self.exact, exact, strict=True):
                if not (np.abs(numbers) <= WIDEST).all():
                    raise _too_large(field.name)
            for field in self.packed:
                if field.norm:
                    square = squared_norm(vectors[field.name])
                    large, small = (square / HUGE, 0.0) if square >= 1 else (0.0, square * TINY)
                    if not large <= WIDEST:
                        raise _too_large(field.name)
                    exact.append(np.array([large, small]))
            parts.append(encode_wide(np.concatenate(exact)))
        if self.values:
            values = np.concatenate([vectors[f.name] for f in self.packed])
            names = [f.name for f in self.packed]
            if noise is not None:  # its own grid and clip, which the accounting assumes
                parts.append(pack(self.codec, noise.share(values)))
            else:
                clips = np.array([f.clip for f in self.packed], np.float32)
                clips = np.repeat(clips, [f.size for f in self.packed])
                integers, residual = quantize(self.codec, values, clips, rng)
                parts.append(pack(self.codec, integers))
                leftovers = dict(zip(names, np.split(residual, self._ends), strict=True))
        return np.concatenate(parts), leftovers

    def decode(
        self, slots: Slots, contributors: int, noise: Noise | None = None
    ) -> tuple[Arrays, dict[str, float]]:
        """Return the sums of the vectors, and of the squared norms that were sent."""
        cut = WIDE_LIMBS * self.scalars
        opened: Arrays = {}
        norms: dict[str, float] = {}
        if self.scalars:
            numbers = decode_wide(slots[:cut], contributors)
            ends = list(accumulate((f.size for f in self.exact), initial=0))
            for field, (start, end) in zip(self.exact, pairwise(ends), strict=True):
                opened[field.name] = numbers[start:end]
            pairs = numbers[ends[-1] :].reshape(-1, 2)
            for field, (large, small) in zip(
                (f for f in self.packed if f.norm), pairs, strict=True
            ):
                norms[field.name] = float(large * HUGE + small / TINY)
        if self.values:
            integers = unpack(self.codec, slots[cut:], contributors, self.values)
            for field, part in zip(self.packed, np.split(integers, self._ends), strict=True):
                if noise is not None:
                    opened[field.name] = part / noise.scale
                else:  # a clip per vector; an array of clips would cost as much as unpacking
                    opened[field.name] = dequantize(self.codec, part, field.clip or 0.0)
        return opened, norms


def _too_large(name: str) -> CryptoError:
    return CryptoError(
        f"the values of {name.removeprefix(SCALES)}, or their squared norm, are too large for a "
        "sealed sum",
        fix="divide them, or the weight of this party, by a number that is equal at all parties",
        field="wide",
    )


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
    return slots.astype("<u8", copy=False).view([("low", "V6"), ("high", "V2")])["low"].tobytes()


def to_slots(data: bytes, count: int, modulus: int = 1 << 8 * SLOT_BYTES) -> Slots:
    """Decode the result of `from_slots`; a slot that is not below the modulus is refused."""
    if len(data) != SLOT_BYTES * count:
        raise WireError("masked values have the wrong size", field="size")
    words = np.ndarray((count,), "<u8", bytes(data) + bytes(2), strides=(SLOT_BYTES,))
    slots: Slots = np.bitwise_and(words, np.uint64((1 << 8 * SLOT_BYTES) - 1), dtype=np.uint64)
    if int(slots.max(initial=0)) >= modulus:
        raise WireError("a masked value is not below the modulus", field="slots")
    return slots
