"""What key holders may do: make keys, seal vectors and open sums.

Two audiences have unrelated key types: a cohort's `SecretKey` (members seal and open), and the
host's `HostSecretKey` with its `HostPublicKey` (parties seal, only the host opens). Offering one
where another is meant is a type error.

Opening is for holders alone, and refusing is itself a signal. BFV withstands chosen plaintexts, not
chosen ciphertexts: who may submit ciphertexts and watch which of them fail learns about the key.
After a TamperError stop the run and rotate the keys; never retry in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np
from tenseal import sealapi

from secure_fl.crypto.public import (
    PublicContext,
    Sum,
    context_bytes,
    make_context,
    parse,
    serialize,
)
from secure_fl.crypto.raw import MemoryFile, frame, key_layout, unframe
from secure_fl.crypto.scheme import (
    BFV,
    COHORT,
    HOST,
    Slots,
    check_cohort,
    check_slots,
)
from secure_fl.crypto.seeded import read_sum
from secure_fl.errors import CryptoError

Reader = Callable[[PublicContext, MemoryFile, bytes], Any]


class _Holder:
    """A secret key of one scheme: opaque, never printed, never pickled or copied."""

    __slots__ = ("_context", "_decryptor", "_key")
    _magic: bytes
    _scheme: BFV

    def __init__(self, context: PublicContext, key: Any) -> None:
        self._context = context
        self._key = key
        self._decryptor = sealapi.Decryptor(context.seal, key)

    @classmethod
    def _generate(cls) -> Self:
        context = make_context(cls._scheme)
        return cls(context, sealapi.KeyGenerator(context.seal).secret_key())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        context = make_context(cls._scheme)
        body = unframe(cls._magic, cls._scheme, data, "secret key")
        layout = key_layout(context.seal, cls._scheme, "secret key")
        with MemoryFile() as channel:
            return cls(context, channel.load(sealapi.SecretKey(), context.seal, layout, body))

    def to_bytes(self) -> bytes:
        """Give away the secret in the clear: for the keyring, which encrypts it at once."""
        layout = key_layout(self._context.seal, self._scheme, "secret key")
        with MemoryFile() as channel:
            return frame(self._magic, self._scheme, channel.dump(self._key, layout))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of scheme {self._scheme.name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CryptoError(
            "a secret key is never pickled or copied", fix="use to_bytes and encrypt the result"
        )


class SecretKey(_Holder):
    """The cohort's key: members seal with it and open sums with it. The coordinator has none."""

    __slots__ = ()
    _magic = b"SFLS"
    _scheme = COHORT

    def public(self) -> bytes:
        """Return the public context, for the coordinator."""
        return context_bytes(self._scheme)


class HostSecretKey(_Holder):
    """The host's own key: it opens what parties sealed to its public key."""

    __slots__ = ()
    _magic = b"SFLH"
    _scheme = HOST

    def public(self) -> HostPublicKey:
        """Draw a public key to seal to; calls differ, and all of them fit this secret."""
        key = sealapi.PublicKey()  # no seeded form: TenSEAL leaves SEAL's type for it unbound
        sealapi.KeyGenerator(self._context.seal, self._key).create_public_key(key)
        layout = key_layout(self._context.seal, self._scheme, "host public key")
        with MemoryFile() as channel:
            return HostPublicKey(channel.dump(key, layout))


class HostPublicKey:
    """Seals to the host and opens nothing."""

    __slots__ = ("_body", "_context", "_encryptor")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._context = make_context(HOST)
        seal = self._context.seal
        layout = key_layout(seal, HOST, "host public key")
        with MemoryFile() as channel:
            key = channel.load(sealapi.PublicKey(), seal, layout, body)
        self._encryptor = sealapi.Encryptor(seal, key)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        return cls(unframe(b"SFLP", HOST, data, "host public key"))

    def to_bytes(self) -> bytes:
        """Serialise the public key, for the signed roster."""
        return frame(b"SFLP", HOST, self._body)

    def context(self) -> bytes:
        """Return the public context that adds what is sealed to this key, for the coordinator."""
        return context_bytes(HOST)


def generate() -> SecretKey:
    """Make a cohort's key from the operating system's randomness."""
    return SecretKey._generate()


def generate_host() -> HostSecretKey:
    """Make a host's key."""
    return HostSecretKey._generate()


def seal(key: SecretKey, slots: Slots) -> list[bytes]:
    """Seal integers mod the cohort's modulus, 4096 in a ciphertext of 29 KB (seeded)."""
    encryptor = sealapi.Encryptor(key._context.seal, key._key)
    return _seal(key._context, COHORT, slots, encryptor.encrypt_symmetric, seeded=True)


def seal_to_host(key: HostPublicKey, slots: Slots) -> list[bytes]:
    """Seal integers mod the host's modulus so that only the host can open them; 57 KB each."""

    def encrypt(plain: Any) -> Any:
        key._encryptor.encrypt(plain, sealed := sealapi.Ciphertext())
        return sealed

    return _seal(key._context, HOST, slots, encrypt, seeded=False)


def open(key: SecretKey, parts: Sequence[bytes], count: int, contributors: int = 1) -> Slots:
    """Open the sum of what so many members sealed: `count` integers in [0, modulus)."""
    return _open(key, parts, count, partial(read_sum, contributors=contributors))


def open_host(key: HostSecretKey, parts: Sequence[bytes], count: int) -> Slots:
    """Open a sum of what parties sealed to this host: `count` integers in [0, modulus)."""
    return _open(key, parts, count, parse)


def noise_budget(key: SecretKey | HostSecretKey, part: bytes) -> int:
    """Measure the bits of noise a ciphertext can still take; at 0 it no longer opens."""
    with MemoryFile() as channel:
        return int(key._decryptor.invariant_noise_budget(parse(key._context, channel, part)))


def rehearse(key: SecretKey | HostSecretKey, parties: int) -> int:
    """Seal, sum and open one full ciphertext per party; return the noise budget that is left.

    The key ceremony calls this for the declared cohort size. A sum that is not exact, or that
    leaves no budget, is a CryptoError.
    """
    scheme = HOST if isinstance(key, HostSecretKey) else COHORT
    check_cohort(scheme, parties)
    highest = np.full(scheme.slots, scheme.modulus - 1, np.uint64)
    total = Sum(key._context)
    public = key.public() if isinstance(key, HostSecretKey) else None
    for _ in range(parties):
        if isinstance(key, SecretKey):
            total.add(seal(key, highest))
        elif public is not None:
            total.add(seal_to_host(public, highest))
    parts = total.result()
    left = noise_budget(key, parts[0])
    if left < 1 or np.any(_open(key, parts, scheme.slots, parse) != scheme.modulus - parties):
        raise CryptoError(
            f"a sum over {parties} parties does not open exactly with scheme {scheme.name}",
            fix="install the TenSEAL release named in constraints.txt, or form smaller cohorts",
        )
    return left


def _seal(
    context: PublicContext, scheme: BFV, slots: Slots, encrypt: Callable[[Any], Any], seeded: bool
) -> list[bytes]:
    check_slots(scheme, slots)
    encoder = sealapi.BatchEncoder(context.seal)
    plain, sealed = sealapi.Plaintext(), []
    with MemoryFile() as channel:
        for start in range(0, slots.size, scheme.slots):
            # lists convert three times faster than arrays at this binding
            encoder.encode(slots[start : start + scheme.slots].tolist(), plain)
            sealed.append(serialize(context, channel, encrypt(plain), seeded))
    return sealed


def _open(
    key: SecretKey | HostSecretKey, parts: Sequence[bytes], count: int, read: Reader
) -> Slots:
    width = key._scheme.slots
    if count < 1 or len(parts) != -(-count // width):
        raise CryptoError(
            f"{count} slots need {-(-count // width)} ciphertexts, not {len(parts)}",
            fix="check that the sum was asked for with the same names and shapes everywhere",
        )
    decode = sealapi.BatchEncoder(key._context.seal).decode_uint64  # canonical, never centred
    plain, opened = sealapi.Plaintext(), np.empty(len(parts) * width, np.uint64)
    with MemoryFile() as channel:
        for index, data in enumerate(parts):
            key._decryptor.decrypt(read(key._context, channel, data), plain)
            slots = opened[index * width : (index + 1) * width]
            slots[:] = np.fromiter(decode(plain), np.uint64, width)
    return opened[:count]
