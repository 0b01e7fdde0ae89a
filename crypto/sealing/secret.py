"""Operations for key holders only: make keys, seal vectors and open sums.

Specified in docs/protocol-bytes.md 8.

Opening is for holders alone, and a refusal is itself a signal. BFV withstands chosen plaintexts,
not chosen ciphertexts: an attacker that submits ciphertexts and sees which of them fail learns
about the key. After a TamperError stop the run and rotate the keys; never retry in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Self

import numpy as np
from tenseal import sealapi

from secure_fl.crypto.sealing.packing import Slots
from secure_fl.crypto.sealing.public import (
    PLAINTEXT_HEAD,
    MemoryFile,
    PublicContext,
    SealForm,
    Sum,
    check_slots,
    context_bytes,
    frame,
    make_context,
    moved,
    parse,
    polynomial,
    read_sum,
    serialize,
    unframe,
    widths,
)
from secure_fl.crypto.sealing.scheme import COHORT, check_cohort
from secure_fl.errors import CryptoError

MAGIC = b"SFLS"
FRESH = 32  # bound of fresh noise on a coefficient: SEAL draws at most 21


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
        """Read the result of `to_bytes`."""
        context = make_context(COHORT)
        body = unframe(MAGIC, COHORT, data, "secret key")
        with MemoryFile() as channel:
            form = _key_form(context, channel)
            return cls(context, channel.load(sealapi.SecretKey(), context.seal, form, body))

    def to_bytes(self) -> bytes:
        """Export the secret in the clear: for the keyring, which encrypts it at once."""
        with MemoryFile() as channel:
            form = _key_form(self._context, channel)
            return frame(MAGIC, COHORT, form.strip(channel.save(self._key, form.size)))

    def public(self) -> bytes:
        """Return the public context, for the coordinator."""
        return context_bytes(COHORT)

    def __repr__(self) -> str:
        return f"<SecretKey of scheme {COHORT.name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CryptoError(
            "a secret key is never pickled or copied", fix="use to_bytes and encrypt the result"
        )


def _key_form(context: PublicContext, channel: MemoryFile) -> SealForm:
    """Learn how SEAL writes a secret key, from one made for the purpose."""
    key, words = sealapi.KeyGenerator(context.seal).secret_key(), 2 * COHORT.degree
    raw = channel.save(key, PLAINTEXT_HEAD + 8 * words)
    return SealForm("secret key", raw[:PLAINTEXT_HEAD], words)


def generate() -> SecretKey:
    """Make a cohort's key from the operating system's randomness."""
    context = make_context(COHORT)
    return SecretKey(context, sealapi.KeyGenerator(context.seal).secret_key())


def seal(key: SecretKey, slots: Slots) -> list[bytes]:
    """Seal integers mod the cohort's modulus: 7 bytes each, 65 for every 4096 (seeded)."""
    check_slots(slots)
    context, sealed = key._context, []
    encryptor = sealapi.Encryptor(context.seal, key._key)
    with MemoryFile() as channel:
        for start in range(0, slots.size, COHORT.degree):
            part = slots[start : start + COHORT.degree]
            fresh = encryptor.encrypt_symmetric(polynomial(context, channel, part))
            sealed.append(serialize(context, channel, fresh, part.size, seeded=True))
    return sealed


def open(key: SecretKey, parts: Sequence[bytes], count: int, contributors: int = 1) -> Slots:
    """Open the sum of `contributors` uploads: `count` integers in [0, modulus)."""
    used = widths(count)
    if not used or len(parts) != len(used):
        raise CryptoError(
            f"{count} slots need {len(used)} ciphertexts, not {len(parts)}",
            fix="check that the sum was asked for with the same names and shapes everywhere",
            field="parts",
        )
    context, opened, plain = key._context, np.zeros(count, np.uint64), sealapi.Plaintext()
    head, start = len(context.plain.head), 0
    with MemoryFile() as channel:
        for data, width in zip(parts, used, strict=True):
            sealed = read_sum(context, channel, data, width, contributors)
            key._decryptor.decrypt(sealed, plain)
            size = plain.coeff_count()  # SEAL omits zeros at the end
            raw = channel.save(plain, head + 8 * size)
            # coefficients after the integers were not sent, and open to noise
            integers = np.frombuffer(raw, "<u8", min(size, width), head)
            opened[start : start + integers.size] = integers
            start += width
    return opened


def is_fresh(key: SecretKey, parts: Sequence[bytes], count: int) -> bool:
    """Return True if an upload's ciphertexts carry no more noise than fresh ones.

    They must open to the same integers after every coefficient is moved, up and down, by the room
    that fresh noise leaves. SEAL's own measure looks at coefficients that were not sent, too.
    """
    (q, _) = sealapi.CoeffModulus.Create(COHORT.degree, list(COHORT.coefficient_bits))
    room = q.value() // (2 * COHORT.modulus) - FRESH
    opened = open(key, parts, count)
    for move in (room, q.value() - room):
        ciphertexts = zip(parts, widths(count), strict=True)
        changed = [part[:1] + moved(part[1:], used, move, q.value()) for part, used in ciphertexts]
        if not np.array_equal(open(key, changed, count), opened):
            return False
    return True


def noise_budget(key: SecretKey, part: bytes) -> int:
    """Measure the bits of noise that a full ciphertext can still take; at 0 it fails to open."""
    context = key._context
    with MemoryFile() as channel:
        sealed = parse(context, channel, part, COHORT.degree)
        return int(key._decryptor.invariant_noise_budget(sealed))


def rehearse(key: SecretKey, parties: int) -> int:
    """Seal, sum and open one full ciphertext per party; return the noise budget that is left.

    The key ceremony calls this for the declared cohort size. A sum that is not exact, or that
    leaves no budget, is a CryptoError.
    """
    check_cohort(COHORT, parties)
    highest = np.full(COHORT.degree, COHORT.modulus - 1, np.uint64)
    total = Sum(key._context, COHORT.degree)
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
