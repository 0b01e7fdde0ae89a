"""What anyone may do with sealed vectors: parse and add them. Never imports `sealing.secret`.

A public context names a parameter set and nothing else: six bytes, with no room for a key. The
coordinator therefore cannot hold one by accident, and every other serialised form is refused.

Why SEAL's raw API and not `tenseal.bfv_vector` (per ciphertext of 4096 slots, one core): seal and
serialise 0.70 ms against 0.80, open 0.46 against 0.57, parse and add 0.05 against 0.09. Above all
it reaches seeded ciphertexts: whoever holds the secret key may replace the uniform half of a fresh
ciphertext by the seed it was drawn from. Uploads take 29 KB instead of 57; drawing that half again
brings parse and add to 0.16 ms. Sums of a few uploads stay seeded too (`SeededSum`).

A sealed vector is a list of ciphertexts. Each is a byte for scheme and kind (twice the scheme's
number, plus one if seeded) and the form of `raw`, and the last ends with its last integer.
Integers are coefficients of a polynomial and not its values, as in batches: adding is the same for
both, and only a coefficient has a place of its own in the ciphertext.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tenseal import sealapi

from secure_fl.crypto.sealing.raw import (
    SEED_BYTES,
    WORD_BYTES,
    MemoryFile,
    SealForm,
    ciphertext_layouts,
    frame,
    malformed,
    plaintext_layout,
    widths,
)
from secure_fl.crypto.sealing.scheme import (
    BFV,
    COHORT,
    Slots,
    largest_cohort,
    seal_context,
)
from secure_fl.errors import CryptoError

MOST_SEEDS = 16


@dataclass(frozen=True, slots=True)
class PublicContext:
    """A parameter set, ready for adding. It cannot open anything: it holds no key."""

    scheme: BFV
    seal: Any
    full: SealForm
    seeded: SealForm
    most: int  # fresh ciphertexts that add up exactly
    marks: tuple[bytes, bytes]  # what begins a ciphertext: in full, and seeded
    half: SealForm  # of a full one up to its second half
    stand_in: SealForm  # a first half, before a second of ones: SEAL refuses zeros
    only_seed: SealForm  # a seeded one whose first half is zero, so that only the seed varies
    plain: SealForm  # of integers


def make_context(scheme: BFV) -> PublicContext:
    """Prepare a parameter set."""
    seal = seal_context(scheme)
    full, seeded = ciphertext_layouts(seal, scheme)
    words = full.words // 2
    return PublicContext(
        scheme,
        seal,
        full,
        seeded,
        largest_cohort(scheme),
        # A byte for scheme and kind.
        (bytes([2 * scheme.number]), bytes([2 * scheme.number + 1])),
        SealForm(full.what, full.head, words, first=words),
        SealForm(seeded.what, full.head, words, (b"\1" + bytes(7)) * words, first=words),
        SealForm(seeded.what, seeded.head + bytes(8 * words), 0, seeded.tail, seeded.seed),
        plaintext_layout(scheme),
    )


def context_bytes(scheme: BFV) -> bytes:
    """Serialise the public context of a parameter set."""
    return frame(b"SFLC", scheme)


def load(data: bytes) -> PublicContext:
    """Read a public context; anything else, above all a secret key, is refused (promise P1)."""
    if data == context_bytes(COHORT):
        return make_context(COHORT)
    secret = data[:4] == b"SFLS"
    raise CryptoError(
        "a secret key was offered as a public context" if secret else "this is no public context",
        fix="give the coordinator the bytes of `public()` of the cohort's key, never a key file",
    )


def parse(context: PublicContext, channel: MemoryFile, data: bytes, used: int) -> Any:
    """Read one ciphertext of so many integers, validated; CryptoError for anything else."""
    if data[:1] not in context.marks:
        raise malformed("ciphertext")
    layout = context.seeded if data[0] % 2 else context.full
    sealed = channel.load(sealapi.Ciphertext(), context.seal, layout, data[1:], used)
    if sealed.is_transparent():
        raise malformed("ciphertext")  # a second half of zeros: the values would be in the clear
    return sealed


def serialize(
    context: PublicContext, channel: MemoryFile, sealed: Any, used: int, seeded: bool = False
) -> bytes:
    """Turn one ciphertext of so many integers to bytes."""
    layout = context.seeded if seeded else context.full
    return context.marks[seeded] + layout.strip(channel.save(sealed, layout.size), used)


def polynomial(context: PublicContext, channel: MemoryFile, slots: Slots) -> Any:
    """Integers as coefficients, the rest zero. SEAL's own form carries them fastest."""
    missing = bytes(8 * (context.scheme.degree - slots.size))
    raw = context.plain.head + slots.astype("<u8").tobytes() + missing
    return channel.put(sealapi.Plaintext(), context.seal, context.plain, raw)


def check_slots(scheme: BFV, slots: Slots) -> None:
    """Refuse anything but a non-empty vector of integers below the modulus."""
    if slots.dtype != np.uint64 or slots.ndim != 1 or slots.size == 0:
        raise CryptoError(
            f"slots must be a non-empty vector of uint64, not {slots.dtype} of shape {slots.shape}",
            fix="encode the values with crypto.sealing.packing first",
        )
    if int(slots.max()) >= scheme.modulus:
        raise CryptoError(
            f"a slot is not below the plain modulus of {scheme.name}",
            fix="reduce the slots mod the scheme's modulus before sealing",
        )


class Sum:
    """A running sum of so many sealed integers mod the scheme's modulus, added as they arrive."""

    __slots__ = ("_context", "_evaluator", "_parts", "_terms", "count")

    def __init__(self, context: PublicContext, count: int) -> None:
        self._context, self.count = context, count
        self._evaluator = sealapi.Evaluator(context.seal)
        self._parts: list[Any] = []
        self._terms = 0  # in units of one fresh ciphertext's noise variance

    def add(self, parts: Sequence[bytes]) -> None:
        """Add a sealed vector; if any of its ciphertexts is malformed, the sum is unchanged."""
        if self._terms == self._context.most:
            raise CryptoError(
                f"this sum would carry the noise of {self._terms + 1} ciphertexts, "
                f"{self._context.most} open exactly",
                fix=f"form cohorts of at most {self._context.most} parties",
            )
        needed = -(-self.count // self._context.scheme.degree)
        if len(parts) != needed:
            raise CryptoError(
                f"{len(parts)} ciphertexts were offered to a sum of {needed}",
                fix="all contributors of a sum must send the same names and shapes",
            )
        with MemoryFile() as channel:
            if self._parts:
                self._fold(channel, parts)
            else:
                self._parts = list(self._read_all(channel, parts))
        self._terms += 1

    def subtract_plain(self, slots: Slots) -> None:
        """Subtract integers mod the modulus in the clear, such as masks to be taken off."""
        if not self._parts:
            raise _empty()
        check_slots(self._context.scheme, slots)
        if slots.size != self.count:
            raise CryptoError(
                f"{slots.size} slots were offered to a sum of {self.count}",
                fix="plain and sealed vectors must have the same length",
            )
        width = self._context.scheme.degree
        with MemoryFile() as channel:
            for index, part in enumerate(self._parts):
                own = slots[index * width : (index + 1) * width]
                self._evaluator.sub_plain_inplace(part, polynomial(self._context, channel, own))

    def result(self) -> list[bytes]:
        """Return the sealed sum; more may be added afterwards."""
        if not self._parts:
            raise _empty()
        with MemoryFile() as channel:
            both = zip(self._parts, widths(self._context.scheme, self.count), strict=True)
            return [self._write(channel, part, used) for part, used in both]

    def _fold(self, channel: MemoryFile, parts: Sequence[bytes]) -> None:
        done = 0
        try:
            for total, read in zip(self._parts, self._read_all(channel, parts), strict=True):
                self._evaluator.add_inplace(total, read)
                done += 1
        except CryptoError:
            # addition mod q is exactly invertible, so what was added of a bad upload comes out
            added = self._read_all(channel, parts[:done])
            for total, read in zip(self._parts, added, strict=False):
                self._evaluator.sub_inplace(total, read)
            raise

    def _read_all(self, channel: MemoryFile, parts: Sequence[bytes]) -> Iterator[Any]:
        for data, used in zip(parts, widths(self._context.scheme, self.count), strict=False):
            yield self._read(channel, data, used)

    def _read(self, channel: MemoryFile, data: bytes, used: int) -> Any:
        return parse(self._context, channel, data, used)

    def _write(self, channel: MemoryFile, sealed: Any, used: int) -> bytes:
        return serialize(self._context, channel, sealed, used)


class SeededSum(Sum):
    """A running sum of at most `MOST_SEEDS` seeded uploads, in half its size: with all their seeds.

        (c0, seed) + (c0', seed') + ...  =  (c0 + c0' + ..., expand(seed) + expand(seed') + ...)

    It adds the first halves alone, and whoever opens it expands the seeds and adds them. One byte
    for scheme and kind, then the half, then the seeds: a seeded upload is the sum of one.

    A full total is 57.3 KB a ciphertext; this is 28.7 KB and 64 bytes a contributor, and the
    coordinator, which never expands, reads and adds an upload in 0.05 ms instead of 0.16.

    Nothing more is told. The second half of an encryption under a secret key is uniform, drawn from
    a seed that has nothing to do with key, noise or value, and public by construction: it crosses
    the wire with the upload. Seeds are sorted, so that not even the order of the parties is told.
    Wrong seeds open to noise, as a wrong half would, and the tags refuse them.

    At most `MOST_SEEDS`, because expanding and adding a seed takes 0.15 ms (measured): with 16 that
    is 2.3 ms of an opening party's CPU per ciphertext, and the 27.6 KB saved take 2.2 ms on a line
    of 100 Mbit/s. Where a party's own such line is the bottleneck, 16 breaks even and fewer are a
    gain; where it is the coordinator's, which sends n such totals, even 16 are a large one.
    """

    __slots__ = ("_seeds",)

    def __init__(self, context: PublicContext, count: int) -> None:
        super().__init__(context, count)
        self._seeds: list[list[bytes]] = []

    def add(self, parts: Sequence[bytes]) -> None:
        """Add an upload; if any of its ciphertexts is malformed, the sum is unchanged."""
        super().add(parts)
        self._seeds.append([part[-SEED_BYTES:] for part in parts])

    def result(self) -> list[bytes]:
        """Return the sealed sum with its seeds."""
        seeds = zip(*self._seeds, strict=True)
        return [
            half + b"".join(sorted(of)) for half, of in zip(super().result(), seeds, strict=True)
        ]

    def _read(self, channel: MemoryFile, data: bytes, used: int) -> Any:
        context = self._context
        if data[:1] != context.marks[True]:
            raise malformed("seeded ciphertext")
        half = data[1:-SEED_BYTES]
        return channel.load(sealapi.Ciphertext(), context.seal, context.stand_in, half, used)

    def _write(self, channel: MemoryFile, sealed: Any, used: int) -> bytes:
        context = self._context
        raw = channel.save(sealed, context.full.size)
        return context.marks[True] + context.half.strip(raw[: context.half.size], used)


def read_sum(
    context: PublicContext, channel: MemoryFile, data: bytes, used: int, contributors: int
) -> Any:
    """Read one ciphertext of a sum over so many contributors: in full, or with their seeds."""
    if data[:1] != context.marks[True]:
        return parse(context, channel, data, used)
    first = 1 + WORD_BYTES * used + SEED_BYTES
    if not 1 <= contributors <= MOST_SEEDS or len(data) != first + SEED_BYTES * (contributors - 1):
        raise malformed("sum of that many contributors")
    total = parse(context, channel, data[:first], used)
    evaluator, fresh = sealapi.Evaluator(context.seal), sealapi.Ciphertext()
    for start in range(first, len(data), SEED_BYTES):
        channel.load(fresh, context.seal, context.only_seed, data[start : start + SEED_BYTES])
        evaluator.add_inplace(total, fresh)
    return total


def _empty() -> CryptoError:
    return CryptoError("this sum is still empty", fix="add a sealed vector first")
