"""What key holders may do: make keys, seal vectors and open sums.

Opening is for holders alone, and refusing is itself a signal. BFV withstands chosen plaintexts, not
chosen ciphertexts: who may submit ciphertexts and watch which of them fail learns about the key.
After a TamperError stop the run and rotate the keys; never retry in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Self

import numpy as np
from tenseal import sealapi

from secure_fl.crypto.public import (
    PublicContext,
    Sum,
    check_slots,
    context_bytes,
    make_context,
    parse,
    read_sum,
    serialize,
)
from secure_fl.crypto.raw import MemoryFile, frame, key_layout, unframe
from secure_fl.crypto.scheme import COHORT, Slots, check_cohort
from secure_fl.errors import CryptoError

MAGIC = b"SFLS"


class SecretKey:
    """The cohort's key: members seal with it and open sums with it. The coordinator has none.

    It is opaque, never printed, never pickled or copied.
    """

    __slots__ = ("_context", "_decryptor", "_key")

    def __init__(self, context: PublicContext, key: Any) -> None:
        self._context = context
        self._key = key
        self._decryptor = sealapi.Decryptor(context.seal, key)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        context = make_context(COHORT)
        body = unframe(MAGIC, COHORT, data, "secret key")
        layout = key_layout(context.seal, COHORT)
        with MemoryFile() as channel:
            return cls(context, channel.load(sealapi.SecretKey(), context.seal, layout, body))

    def to_bytes(self) -> bytes:
        """Give away the secret in the clear: for the keyring, which encrypts it at once."""
        layout = key_layout(self._context.seal, COHORT)
        with MemoryFile() as channel:
            return frame(MAGIC, COHORT, layout.strip(channel.save(self._key, layout.size)))

    def public(self) -> bytes:
        """Return the public context, for the coordinator."""
        return context_bytes(COHORT)

    def __repr__(self) -> str:
        return f"<SecretKey of scheme {COHORT.name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CryptoError(
            "a secret key is never pickled or copied", fix="use to_bytes and encrypt the result"
        )


def generate() -> SecretKey:
    """Make a cohort's key from the operating system's randomness."""
    context = make_context(COHORT)
    return SecretKey(context, sealapi.KeyGenerator(context.seal).secret_key())


def seal(key: SecretKey, slots: Slots) -> list[bytes]:
    """Seal integers mod the cohort's modulus, 4096 in a ciphertext of 29 KB (seeded)."""
    check_slots(COHORT, slots)
    context = key._context
    encoder = sealapi.BatchEncoder(context.seal)
    encryptor = sealapi.Encryptor(context.seal, key._key)
    plain, sealed = sealapi.Plaintext(), []
    with MemoryFile() as channel:
        for start in range(0, slots.size, COHORT.degree):
            # lists convert three times faster than arrays at this binding
            encoder.encode(slots[start : start + COHORT.degree].tolist(), plain)
            fresh = encryptor.encrypt_symmetric(plain)
            sealed.append(serialize(context, channel, fresh, seeded=True))
    return sealed


def open(key: SecretKey, parts: Sequence[bytes], count: int, contributors: int = 1) -> Slots:
    """Open the sum of what so many members sealed: `count` integers in [0, modulus)."""
    width = COHORT.degree
    if count < 1 or len(parts) != -(-count // width):
        raise CryptoError(
            f"{count} slots need {-(-count // width)} ciphertexts, not {len(parts)}",
            fix="check that the sum was asked for with the same names and shapes everywhere",
        )
    decode = sealapi.BatchEncoder(key._context.seal).decode_uint64  # canonical, never centred
    plain, opened = sealapi.Plaintext(), np.empty(len(parts) * width, np.uint64)
    with MemoryFile() as channel:
        for index, data in enumerate(parts):
            sealed = read_sum(key._context, channel, data, contributors)
            key._decryptor.decrypt(sealed, plain)
            slots = opened[index * width : (index + 1) * width]
            slots[:] = np.fromiter(decode(plain), np.uint64, width)
    return opened[:count]


def noise_budget(key: SecretKey, part: bytes) -> int:
    """Measure the bits of noise a ciphertext can still take; at 0 it no longer opens."""
    with MemoryFile() as channel:
        return int(key._decryptor.invariant_noise_budget(parse(key._context, channel, part)))


def rehearse(key: SecretKey, parties: int) -> int:
    """Seal, sum and open one full ciphertext per party; return the noise budget that is left.

    The key ceremony calls this for the declared cohort size. A sum that is not exact, or that
    leaves no budget, is a CryptoError.
    """
    check_cohort(COHORT, parties)
    highest = np.full(COHORT.degree, COHORT.modulus - 1, np.uint64)
    total = Sum(key._context)
    for _ in range(parties):
        total.add(seal(key, highest))
    parts = total.result()
    left = noise_budget(key, parts[0])
    if left < 1 or np.any(open(key, parts, COHORT.degree) != COHORT.modulus - parties):
        raise CryptoError(
            f"a sum over {parties} parties does not open exactly with scheme {COHORT.name}",
            fix="install the TenSEAL release named in constraints.txt, or form smaller cohorts",
        )
    return left
