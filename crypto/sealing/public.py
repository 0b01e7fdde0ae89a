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

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow
from tenseal import sealapi

from secure_fl.crypto.sealing.scheme import (
    BFV,
    COHORT,
    Slots,
    largest_cohort,
    seal_context,
)
from secure_fl.errors import CryptoError, WireError

SEED_BYTES = 64
WORD_BYTES = 7  # coefficients have at most 55 bits
CIPHERTEXT_HEAD = 113  # header 16, parameters' id 32, NTT flag 1, five numbers 40, inner 24
PLAINTEXT_HEAD = 88  # header 16, parameters' id 32, two numbers 16, inner 24


@dataclass(frozen=True, slots=True)
class SealForm:
    """What SEAL writes around the coefficients of one kind of object."""

    what: str
    head: bytes
    words: int
    tail: bytes = b""
    seed: int = 0  # bytes of a seeded ciphertext's seed, behind the tail
    first: int = 0  # words of its first half, of which the last may be left out
    size: int = field(init=False)  # how many bytes SEAL writes, uncompressed

    def __post_init__(self) -> None:
        size = len(self.head) + 8 * self.words + len(self.tail) + self.seed
        object.__setattr__(self, "size", size)

    def strip(self, raw: bytes, used: int | None = None) -> bytes:
        """Take the coefficients, and the seed if there is one, out of SEAL's form.

        `used`: so many of the first half, or all.
        """
        end = self.size - self.seed
        if (
            len(raw) != self.size
            or not raw.startswith(self.head)
            or not raw[:end].endswith(self.tail)
        ):
            raise CryptoError(
                f"SEAL wrote a {self.what} in an unknown layout",
                fix="install the TenSEAL release named in constraints.txt",
            )
        words = np.frombuffer(raw, "<u8", self.words, len(self.head))
        if used is not None and used < self.first:
            words = np.delete(words, np.s_[used : self.first])
        return _planes(words) + raw[end:]

    def dress(self, body: bytes, used: int | None = None) -> bytes:
        """Put coefficients from anywhere into SEAL's form, uncompressed; zeros where none came."""
        left_out = 0 if used is None else self.first - used
        count = self.words - left_out
        size = WORD_BYTES * count
        if len(body) != size + self.seed:
            raise malformed(self.what)
        words = _words(body, count)
        if left_out:
            words = np.insert(words, used or 0, np.zeros(left_out, np.uint64))
        return b"".join((self.head, words.tobytes(), self.tail, body[size:]))


class MemoryFile:
    """Carries SEAL's objects through anonymous memory.

    sealapi saves and loads by path only. A memfd has a path but no directory entry: nothing
    touches a disk, no other user can open it, and the kernel clears it when it is closed.
    """

    __slots__ = ("_file", "_path")

    def __enter__(self) -> Self:
        if not hasattr(os, "memfd_create"):
            raise CryptoError(
                "this system has no memfd_create, so keys would have to touch a disk",
                fix="run on Linux 3.17 or later, or in a Linux container",
            )
        self._file = os.memfd_create("secure_fl")
        self._path = f"/proc/self/fd/{self._file}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def save(self, thing: Any, size: int) -> bytes:
        """Return SEAL's form of an object, decompressed to the `size` bytes it must have."""
        thing.save(self._path)  # SEAL truncates the file when it opens it
        saved = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            body = pyarrow.Codec("zstd").decompress(saved[16:], size - 16, asbytes=True)
        except OSError:
            raise CryptoError(
                "SEAL did not write zstd of the expected size",
                fix="install the TenSEAL release named in constraints.txt",
            ) from None
        return _header(saved[:5], size) + bytes(body)

    def load(
        self, thing: Any, context: Any, layout: SealForm, body: bytes, used: int | None = None
    ) -> Any:
        """Fill an object from its wire form; SEAL checks that coefficients are in range."""
        return self.put(thing, context, layout, layout.dress(body, used))

    def put(self, thing: Any, context: Any, layout: SealForm, raw: bytes) -> Any:
        """Fill an object from SEAL's form."""
        os.pwrite(self._file, raw, 0)
        try:
            thing.load(context, self._path)
        except (RuntimeError, ValueError):
            raise malformed(layout.what) from None
        return thing


def ciphertext_layouts(context: Any, scheme: BFV) -> tuple[SealForm, SealForm]:
    """Learn how SEAL writes sums, and fresh ciphertexts whose second half is a seed."""
    blank = sealapi.Ciphertext(context)
    blank.resize(context, 2)
    words = 2 * scheme.degree
    with MemoryFile() as channel:
        head = channel.save(blank, CIPHERTEXT_HEAD + 8 * words)[:CIPHERTEXT_HEAD]
    half = words // 2
    full = SealForm("ciphertext", head, words, first=half)
    # the seed's own header and b"\1", which is SEAL's number of BLAKE2xb
    tail = _header(head[:5], 17 + SEED_BYTES) + b"\1"
    size = CIPHERTEXT_HEAD + 8 * half + len(tail) + SEED_BYTES
    inner = _header(head[:5], 24 + 8 * half) + struct.pack("<Q", half)
    start = _header(head[:5], size) + head[16:-24] + inner
    seeded = SealForm("seeded ciphertext", start, half, tail, SEED_BYTES, first=half)
    return full, seeded


def plaintext_layout(scheme: BFV) -> SealForm:
    """Learn how SEAL writes polynomials, from one of zeros."""
    with MemoryFile() as channel:
        raw = channel.save(sealapi.Plaintext(scheme.degree), PLAINTEXT_HEAD + 8 * scheme.degree)
    return SealForm("plaintext", raw[:PLAINTEXT_HEAD], scheme.degree)


def key_layout(context: Any, scheme: BFV) -> SealForm:
    """Learn how SEAL writes a secret key, from one made for the purpose."""
    key, words, head = sealapi.KeyGenerator(context).secret_key(), 2 * scheme.degree, 88
    with MemoryFile() as channel:
        return SealForm("secret key", channel.save(key, head + 8 * words)[:head], words)


def widths(scheme: BFV, count: int) -> list[int]:
    """How many of so many integers each ciphertext holds."""
    return [min(scheme.degree, count - start) for start in range(0, count, scheme.degree)]


def from_parts(parts: Sequence[bytes]) -> bytes:
    """Ciphertexts one after the other, each behind its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def to_parts(data: bytes, count: int) -> list[bytes]:
    """The inverse of `from_parts`, of ciphertexts that hold so many integers."""
    parts, start = [], 0
    if len(data) < SEED_BYTES * (count // COHORT.degree):  # a count is quickly said
        raise _not_their_size()
    for _ in range(0, count, COHORT.degree):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        parts.append(data[start + 4 : end])
        start = end
    if start != len(data):
        raise _not_their_size()
    return parts


def _not_their_size() -> WireError:
    return WireError("ciphertexts are not as many, or not as long, as their integers take")


def frame(magic: bytes, scheme: BFV, body: bytes = b"") -> bytes:
    """Build a serialised form: four letters of kind, a version, the scheme's number, the body."""
    return magic + bytes((1, scheme.number)) + body


def unframe(magic: bytes, scheme: BFV, data: bytes, what: str) -> bytes:
    """Return the body of a serialised form, if kind, version and scheme are the expected ones."""
    if data[:6] != frame(magic, scheme):
        raise malformed(what)
    return data[6:]


def malformed(what: str) -> CryptoError:
    """Build the error for bytes that are not what they should be."""
    return CryptoError(
        f"these bytes are not a {what} of the expected scheme",
        fix="check that both sides run the same release and that the sender is the one pinned",
    )


def moved(body: bytes, count: int, by: int, modulus: int) -> bytes:
    """A wire form whose first coefficients, so many, are moved by a number."""
    size = WORD_BYTES * count
    words = (_words(body[:size], count) + np.uint64(by)) % np.uint64(modulus)
    return _planes(words) + body[size:]


def _header(start: bytes, size: int) -> bytes:
    # magic, header size and SEAL's version; no compression; two reserved bytes; total size
    return start + b"\0\0\0" + struct.pack("<Q", size)


def _planes(words: npt.NDArray[np.uint64]) -> bytes:
    # low 32, middle 16 and high 8 bits apart: four times faster than cutting 7 bytes out of 8
    middle, high = words >> np.uint64(32), words >> np.uint64(48)
    return (
        words.astype("<u4").tobytes() + middle.astype("<u2").tobytes() + high.astype("u1").tobytes()
    )


def _words(body: bytes, count: int) -> npt.NDArray[np.uint64]:
    words = np.frombuffer(body, "u1", count, 6 * count).astype("<u8")
    words <<= np.uint64(16)
    words |= np.frombuffer(body, "<u2", count, 4 * count)
    words <<= np.uint64(32)
    words |= np.frombuffer(body, "<u4", count)
    return words


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
