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

from secure_fl.crypto.sealing.public import (
    MemoryFile,
    PublicContext,
    Sum,
    check_slots,
    context_bytes,
    frame,
    key_layout,
    make_context,
    moved,
    parse,
    polynomial,
    read_sum,
    serialize,
    unframe,
    widths,
)
from secure_fl.crypto.sealing.scheme import COHORT, Slots, check_cohort
from secure_fl.errors import CryptoError

MAGIC = b"SFLS"
FRESH = 32  # the most that fresh noise moves a coefficient: SEAL draws at most 21


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
    """Seal integers mod the cohort's modulus: 7 bytes each, 65 for every 4096 (seeded)."""
    check_slots(COHORT, slots)
    context, sealed = key._context, []
    encryptor = sealapi.Encryptor(context.seal, key._key)
    with MemoryFile() as channel:
        for start in range(0, slots.size, COHORT.degree):
            own = slots[start : start + COHORT.degree]
            fresh = encryptor.encrypt_symmetric(polynomial(context, channel, own))
            sealed.append(serialize(context, channel, fresh, own.size, seeded=True))
    return sealed


def open(key: SecretKey, parts: Sequence[bytes], count: int, contributors: int = 1) -> Slots:
    """Open the sum of what so many members sealed: `count` integers in [0, modulus)."""
    used = widths(COHORT, count)
    if not used or len(parts) != len(used):
        raise CryptoError(
            f"{count} slots need {len(used)} ciphertexts, not {len(parts)}",
            fix="check that the sum was asked for with the same names and shapes everywhere",
        )
    context, opened, plain = key._context, np.zeros(count, np.uint64), sealapi.Plaintext()
    head, start = len(context.plain.head), 0
    with MemoryFile() as channel:
        for data, width in zip(parts, used, strict=True):
            sealed = read_sum(context, channel, data, width, contributors)
            key._decryptor.decrypt(sealed, plain)
            found = plain.coeff_count()  # SEAL leaves out zeros at the end
            raw = channel.save(plain, head + 8 * found)
            # what is behind the integers was never sent, and opens to noise
            own = np.frombuffer(raw, "<u8", min(found, width), head)
            opened[start : start + own.size] = own
            start += width
    return opened


def is_fresh(key: SecretKey, parts: Sequence[bytes], count: int) -> bool:
    """Whether an upload's ciphertexts have no more noise than those that were just sealed.

    They open to the same where every coefficient is moved, up and down, by what fresh noise leaves
    free. SEAL's own measure looks at coefficients that were not sent, too.
    """
    (q, _) = sealapi.CoeffModulus.Create(COHORT.degree, list(COHORT.coefficient_bits))
    room = q.value() // (2 * COHORT.modulus) - FRESH
    found = open(key, parts, count)
    for move in (room, q.value() - room):
        each = zip(parts, widths(COHORT, count), strict=True)
        changed = [part[:1] + moved(part[1:], used, move, q.value()) for part, used in each]
        if not np.array_equal(open(key, changed, count), found):
            return False
    return True


def noise_budget(key: SecretKey, part: bytes) -> int:
    """Measure the bits of noise a full ciphertext can still take; at 0 it no longer opens."""
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
