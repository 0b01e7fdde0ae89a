"""SEAL's objects in and out of bytes, without letting SEAL parse what others wrote.

SEAL's own form nests headers in a compressed stream, and its parser calls `std::terminate` on some
malformed ones: a ciphertext with two bytes changed inside ends the whole process, TenSEAL's
`bfv_vector_from` included, and no handler can stop it (tried with TenSEAL 0.3.18). So what crosses
the wire is only what varies: the coefficients, 7 bytes each, and the seed of a seeded ciphertext.
The structure around them is a `SealForm`, learnt from an object this process made itself. SEAL then
checks the coefficients' range, which is safe.

It also pays: 57.3 KB for a sum and 28.8 KB for an upload, where SEAL's zstd gives 61.7 and 31.0,
and reading a full ciphertext takes 50 µs instead of 85.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow
from tenseal import sealapi

from secure_fl.crypto.scheme import BFV
from secure_fl.errors import CryptoError

SEED_BYTES = 64
WORD_BYTES = 7  # coefficients have at most 55 bits
CIPHERTEXT_HEAD = 113  # header 16, parameters' id 32, NTT flag 1, five numbers 40, inner 24


@dataclass(frozen=True, slots=True)
class SealForm:
    """What SEAL writes around the coefficients of one kind of object."""

    what: str
    head: bytes
    words: int
    tail: bytes = b""
    seed: int = 0  # bytes of a seeded ciphertext's seed, behind the tail
    size: int = field(init=False)  # how many bytes SEAL writes, uncompressed

    def __post_init__(self) -> None:
        size = len(self.head) + 8 * self.words + len(self.tail) + self.seed
        object.__setattr__(self, "size", size)

    def strip(self, raw: bytes) -> bytes:
        """Take the coefficients, and the seed if there is one, out of SEAL's form."""
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
        return _planes(np.frombuffer(raw, "<u8", self.words, len(self.head))) + raw[end:]

    def dress(self, body: bytes) -> bytes:
        """Put coefficients from anywhere into SEAL's form, uncompressed."""
        size = WORD_BYTES * self.words
        if len(body) != size + self.seed:
            raise malformed(self.what)
        words = _words(body, self.words).tobytes()
        return b"".join((self.head, words, self.tail, body[size:]))


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

    def load(self, thing: Any, context: Any, layout: SealForm, body: bytes) -> Any:
        """Fill an object from its wire form; SEAL checks that coefficients are in range."""
        os.pwrite(self._file, layout.dress(body), 0)
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
    full = SealForm("ciphertext", head, words)
    half = words // 2
    # the seed's own header and b"\1", which is SEAL's number of BLAKE2xb
    tail = _header(head[:5], 17 + SEED_BYTES) + b"\1"
    size = CIPHERTEXT_HEAD + 8 * half + len(tail) + SEED_BYTES
    inner = _header(head[:5], 24 + 8 * half) + struct.pack("<Q", half)
    start = _header(head[:5], size) + head[16:-24] + inner
    seeded = SealForm("seeded ciphertext", start, half, tail, SEED_BYTES)
    return full, seeded


def key_layout(context: Any, scheme: BFV) -> SealForm:
    """Learn how SEAL writes a secret key, from one made for the purpose."""
    key, words, head = sealapi.KeyGenerator(context).secret_key(), 2 * scheme.degree, 88
    with MemoryFile() as channel:
        return SealForm("secret key", channel.save(key, head + 8 * words)[:head], words)


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
