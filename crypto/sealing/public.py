"""Operations on sealed vectors that need no key: parse, add, serialise. Never imports `secret`.

Specified in docs/protocol-bytes.md 8. docs/decisions.md says why it uses SEAL's raw interface.

Why an own wire form? SEAL's form nests headers in a compressed stream, and its parser calls
`std::terminate` on some malformed ones: a ciphertext with two changed bytes inside ends the whole
process, in TenSEAL's `bfv_vector_from` too, and no handler can stop it (tried with TenSEAL 0.3.18).
Therefore only the variable part crosses the wire: coefficients of 7 bytes, and the seed of a seeded
ciphertext. The structure around them is a `SealForm`, learnt from an object of this process. SEAL
then checks the coefficients' range, which is safe. Integers are coefficients of a polynomial, which
open by themselves: of the first half only those that hold an integer are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from tenseal import sealapi

from secure_fl.crypto.sealing.anonymous_file import AnonymousFile
from secure_fl.crypto.sealing.packing import Slots
from secure_fl.crypto.sealing.scheme import BFV, COHORT, largest_cohort, seal_context
from secure_fl.errors import CryptoError, WireError

SEED_BYTES = 64
WORD_BYTES = 7  # coefficients have at most 55 bits
CIPHERTEXT_HEAD = 113  # header 16, parameters' id 32, NTT flag 1, five numbers 40, inner 24
PLAINTEXT_HEAD = 88  # header 16, parameters' id 32, two numbers 16, inner 24
FULL, SEEDED = bytes([2 * COHORT.number]), bytes([2 * COHORT.number + 1])  # first byte on the wire
MOST_SEEDS = 16


# --- SEAL's serialised form -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealForm:
    """The bytes that SEAL writes around the coefficients of one kind of object."""

    what: str
    head: bytes
    words: int
    tail: bytes = b""
    seed: int = 0  # bytes of a seeded ciphertext's seed, after the tail
    first: int = 0  # words of the first half, of which the last may be missing on the wire
    size: int = field(init=False)  # bytes that SEAL writes, uncompressed

    def __post_init__(self) -> None:
        size = len(self.head) + 8 * self.words + len(self.tail) + self.seed
        object.__setattr__(self, "size", size)

    def strip(self, raw: bytes, used: int | None = None) -> bytes:
        """Extract the coefficients (of the first half `used` many, or all) and the seed."""
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
        """Put coefficients into SEAL's uncompressed form; missing ones become zeros."""
        missing = 0 if used is None else self.first - used
        count = self.words - missing
        size = WORD_BYTES * count
        if len(body) != size + self.seed:
            raise malformed(self.what)
        words = _words(body, count)
        if missing:
            words = np.insert(words, used or 0, np.zeros(missing, np.uint64))
        return b"".join((self.head, words.tobytes(), self.tail, body[size:]))


class MemoryFile(AnonymousFile):
    """A file in memory through which SEAL's objects are saved and loaded."""

    __slots__ = ()

    def save(self, thing: Any, size: int) -> bytes:
        """Return SEAL's form of an object, decompressed to the `size` bytes it must have."""
        thing.save(self.path)  # SEAL truncates the file when it opens it
        saved = self.read()
        try:
            body = pyarrow.Codec("zstd").decompress(saved[16:], size - 16, asbytes=True)
        except OSError:
            raise CryptoError(
                "SEAL did not write zstd of the expected size",
                fix="install the TenSEAL release named in constraints.txt",
            ) from None
        return _header(saved[:5], size) + bytes(body)

    def load(
        self, thing: Any, context: Any, form: SealForm, body: bytes, used: int | None = None
    ) -> Any:
        """Fill an object from its wire form; SEAL checks that coefficients are in range."""
        return self.put(thing, context, form, form.dress(body, used))

    def put(self, thing: Any, context: Any, form: SealForm, raw: bytes) -> Any:
        """Fill an object from SEAL's form."""
        self.write(raw)
        try:
            thing.load(context, self.path)
        except (RuntimeError, ValueError):
            raise malformed(form.what) from None
        return thing


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


def moved(body: bytes, count: int, by: int, modulus: int) -> bytes:
    """Add a number to the first `count` coefficients of a wire form."""
    size = WORD_BYTES * count
    words = (_words(body[:size], count) + np.uint64(by)) % np.uint64(modulus)
    return _planes(words) + body[size:]


def frame(magic: bytes, scheme: BFV, body: bytes = b"") -> bytes:
    """Build a serialised form: four letters of kind, a version, the scheme's number, the body."""
    return magic + bytes((1, scheme.number)) + body


def unframe(magic: bytes, scheme: BFV, data: bytes, what: str) -> bytes:
    """Return the body of a serialised form, if kind, version and scheme are the expected ones."""
    if data[:6] != frame(magic, scheme):
        raise malformed(what)
    return data[6:]


def malformed(what: str) -> CryptoError:
    """Build the error for bytes that are not of the expected kind."""
    return CryptoError(
        f"these bytes are not a {what} of the expected scheme",
        fix="check that both sides run the same release and that the sender is the one pinned",
        field="form",
    )


# --- lists of ciphertexts -------------------------------------------------------------------------


def widths(count: int) -> list[int]:
    """Return how many of `count` integers each ciphertext holds."""
    return [min(COHORT.degree, count - start) for start in range(0, count, COHORT.degree)]


def from_parts(parts: Sequence[bytes]) -> bytes:
    """Join ciphertexts, each after its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def to_parts(data: bytes, count: int) -> list[bytes]:
    """Split the result of `from_parts` into the ciphertexts of `count` integers."""
    parts, start, possible = [], 0, len(data) >= SEED_BYTES * (count // COHORT.degree)
    for _ in range(0, count if possible else 0, COHORT.degree):  # a sender may claim any count
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        parts.append(data[start + 4 : end])
        start = end
    if not possible or start != len(data):
        what = "the number or length of ciphertexts does not fit their integers"
        raise WireError(what, field="parts")
    return parts


# --- contexts and single ciphertexts --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublicContext:
    """A parameter set, ready for addition. It holds no key, so it cannot open anything."""

    seal: Any
    most: int  # fresh ciphertexts that add up exactly
    full: SealForm
    seeded: SealForm
    half: SealForm  # a full ciphertext up to its second half
    stand_in: SealForm  # a first half with a second half of ones, since SEAL refuses zeros
    only_seed: SealForm  # a seeded ciphertext with a first half of zeros: only the seed varies
    plain: SealForm


def make_context(scheme: BFV) -> PublicContext:
    """Prepare a parameter set, and learn how SEAL writes its objects."""
    seal, words = seal_context(scheme), scheme.degree * 2
    blank = sealapi.Ciphertext(seal)
    blank.resize(seal, 2)
    with MemoryFile() as channel:
        head = channel.save(blank, CIPHERTEXT_HEAD + 8 * words)[:CIPHERTEXT_HEAD]
        zeros = channel.save(sealapi.Plaintext(scheme.degree), PLAINTEXT_HEAD + 8 * scheme.degree)
    half = words // 2
    # the seed's own header and b"\1", which is SEAL's number of BLAKE2xb
    tail = _header(head[:5], 17 + SEED_BYTES) + b"\1"
    size = CIPHERTEXT_HEAD + 8 * half + len(tail) + SEED_BYTES
    inner = _header(head[:5], 24 + 8 * half) + struct.pack("<Q", half)
    seeded_head = _header(head[:5], size) + head[16:-24] + inner
    ones = (b"\1" + bytes(7)) * half
    return PublicContext(
        seal,
        largest_cohort(scheme),
        SealForm("ciphertext", head, words, first=half),
        SealForm("seeded ciphertext", seeded_head, half, tail, SEED_BYTES, first=half),
        SealForm("ciphertext", head, half, first=half),
        SealForm("seeded ciphertext", head, half, ones, first=half),
        SealForm("seeded ciphertext", seeded_head + bytes(8 * half), 0, tail, SEED_BYTES),
        SealForm("plaintext", zeros[:PLAINTEXT_HEAD], scheme.degree),
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
        field="context",
    )


def parse(context: PublicContext, channel: MemoryFile, data: bytes, used: int) -> Any:
    """Read and validate one ciphertext of `used` integers; CryptoError for anything else."""
    if data[:1] not in (FULL, SEEDED):
        raise malformed("ciphertext")
    form = context.seeded if data[:1] == SEEDED else context.full
    sealed = channel.load(sealapi.Ciphertext(), context.seal, form, data[1:], used)
    if sealed.is_transparent():
        raise malformed("ciphertext")  # a second half of zeros: the values would be in the clear
    return sealed


def serialize(
    context: PublicContext, channel: MemoryFile, sealed: Any, used: int, seeded: bool = False
) -> bytes:
    """Serialise one ciphertext of `used` integers."""
    form = context.seeded if seeded else context.full
    return (SEEDED if seeded else FULL) + form.strip(channel.save(sealed, form.size), used)


def polynomial(context: PublicContext, channel: MemoryFile, slots: Slots) -> Any:
    """Make a polynomial with these coefficients; SEAL's own form carries them fastest."""
    missing = bytes(8 * (COHORT.degree - slots.size))
    raw = context.plain.head + slots.astype("<u8").tobytes() + missing
    return channel.put(sealapi.Plaintext(), context.seal, context.plain, raw)


def check_slots(slots: Slots) -> None:
    """Refuse anything but a non-empty vector of integers below the modulus."""
    if slots.dtype != np.uint64 or slots.ndim != 1 or slots.size == 0:
        raise CryptoError(
            f"slots must be a non-empty vector of uint64, not {slots.dtype} of shape {slots.shape}",
            fix="encode the values with crypto.sealing.packing first",
        )
    if int(slots.max()) >= COHORT.modulus:
        raise CryptoError(
            f"a slot is not below the plain modulus of {COHORT.name}",
            fix="reduce the slots mod the scheme's modulus before sealing",
        )


# --- sums -----------------------------------------------------------------------------------------


class Sum:
    """A running sum of sealed vectors of `count` integers mod the scheme's modulus."""

    __slots__ = ("_context", "_evaluator", "_parts", "_terms", "count")

    def __init__(self, context: PublicContext, count: int) -> None:
        self._context, self.count = context, count
        self._evaluator = sealapi.Evaluator(context.seal)
        self._parts: list[Any] = []
        self._terms = 0  # in units of one fresh ciphertext's noise variance

    def add(self, parts: Sequence[bytes]) -> None:
        """Add a sealed vector; if any of its ciphertexts is malformed, the sum is unchanged."""
        most, needed = self._context.most, len(widths(self.count))
        if self._terms == most:
            raise CryptoError(
                f"this sum would carry the noise of {self._terms + 1} ciphertexts, "
                f"{most} open exactly",
                fix=f"form cohorts of at most {most} parties",
            )
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

    def remove(self, parts: Sequence[bytes]) -> None:
        """Subtract the vector that was added last."""
        with MemoryFile() as channel:
            self._subtract(channel, parts)
        self._terms -= 1

    def subtract_plain(self, slots: Slots) -> None:
        """Subtract integers in the clear, such as masks."""
        self._require_filled()
        check_slots(slots)
        if slots.size != self.count:
            raise CryptoError(
                f"{slots.size} slots were offered to a sum of {self.count}",
                fix="plain and sealed vectors must have the same length",
            )
        with MemoryFile() as channel:
            for index, part in enumerate(self._parts):
                plain = slots[index * COHORT.degree : (index + 1) * COHORT.degree]
                self._evaluator.sub_plain_inplace(part, polynomial(self._context, channel, plain))

    def result(self) -> list[bytes]:
        """Return the sealed sum; more vectors may be added afterwards."""
        self._require_filled()
        with MemoryFile() as channel:
            used = widths(self.count)
            return [self._write(channel, *one) for one in zip(self._parts, used, strict=True)]

    def _require_filled(self) -> None:
        if not self._parts:
            raise CryptoError("this sum is still empty", fix="add a sealed vector first")

    def _fold(self, channel: MemoryFile, parts: Sequence[bytes]) -> None:
        done = 0
        try:
            for total, read in zip(self._parts, self._read_all(channel, parts), strict=True):
                self._evaluator.add_inplace(total, read)
                done += 1
        except CryptoError:
            self._subtract(channel, parts[:done])
            raise

    def _subtract(self, channel: MemoryFile, parts: Sequence[bytes]) -> None:
        # addition mod q is exactly invertible
        for total, read in zip(self._parts, self._read_all(channel, parts), strict=False):
            self._evaluator.sub_inplace(total, read)

    def _read_all(self, channel: MemoryFile, parts: Sequence[bytes]) -> Iterator[Any]:
        for data, used in zip(parts, widths(self.count), strict=False):
            yield self._read(channel, data, used)

    def _read(self, channel: MemoryFile, data: bytes, used: int) -> Any:
        return parse(self._context, channel, data, used)

    def _write(self, channel: MemoryFile, sealed: Any, used: int) -> bytes:
        return serialize(self._context, channel, sealed, used)


class SeededSum(Sum):
    """A running sum of at most `MOST_SEEDS` seeded uploads, in half the size: with all seeds.

        (c0, seed) + (c0', seed') + ...  =  (c0 + c0' + ..., expand(seed) + expand(seed') + ...)

    It adds the first halves alone; a key holder expands and adds the seeds. A seed is public and
    independent of key, noise and value. Seeds are sorted, which hides the order of the parties.

    The limit: expanding and adding a seed takes 0.15 ms (measured). 16 seeds take 2.3 ms of an
    opening party's CPU per ciphertext, and the 27.6 KB saved take 2.2 ms on a line of 100 Mbit/s.
    """

    __slots__ = ("_seeds",)

    def __init__(self, context: PublicContext, count: int) -> None:
        super().__init__(context, count)
        self._seeds: list[list[bytes]] = []

    def add(self, parts: Sequence[bytes]) -> None:
        """Add an upload; if any of its ciphertexts is malformed, the sum is unchanged."""
        super().add(parts)
        self._seeds.append([part[-SEED_BYTES:] for part in parts])

    def remove(self, parts: Sequence[bytes]) -> None:
        """Subtract the upload that was added last."""
        super().remove(parts)
        self._seeds.pop()

    def result(self) -> list[bytes]:
        """Return the sealed sum with its seeds."""
        seeds = zip(*self._seeds, strict=True)
        return [
            half + b"".join(sorted(of)) for half, of in zip(super().result(), seeds, strict=True)
        ]

    def _read(self, channel: MemoryFile, data: bytes, used: int) -> Any:
        context = self._context
        if data[:1] != SEEDED:
            raise malformed("seeded ciphertext")
        half = data[1:-SEED_BYTES]
        return channel.load(sealapi.Ciphertext(), context.seal, context.stand_in, half, used)

    def _write(self, channel: MemoryFile, sealed: Any, used: int) -> bytes:
        raw, half = channel.save(sealed, self._context.full.size), self._context.half
        return SEEDED + half.strip(raw[: half.size], used)


def read_sum(
    context: PublicContext, channel: MemoryFile, data: bytes, used: int, contributors: int
) -> Any:
    """Read one ciphertext of a sum over so many contributors: in full, or with their seeds."""
    if data[:1] != SEEDED:
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
