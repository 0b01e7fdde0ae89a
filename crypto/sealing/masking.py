"""Masks that cancel in a sum (Bonawitz et al., CCS 2017), and Shamir's shares of their seeds.

Specified in docs/protocol-bytes.md 6.

    mask of party i  =  self_i  +  Σ_{j > i} pair_ij  -  Σ_{j < i} pair_ij   mod t

A stream is AES-256-CTR, read as little-endian 64-bit words. The low bits of a word, as many as t
has, are a mask if they are below t, and are skipped otherwise. So masks are exactly uniform mod t
and depend on the key alone. (Measured: 8 bytes a candidate cost 1.0 ns of AES and no unpacking, 6
bytes 0.8 ns and 1.8 ns of unpacking.) PyCryptodome's `Shamir`, with which the tests compare, takes
50 to 200 times as long. Python's integers are not constant-time; an attacker that can time a
party's process can also read its memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_fl.crypto.keys import identity
from secure_fl.crypto.sealing.packing import Slots as Slots
from secure_fl.errors import CryptoError

Purpose = Literal["pair", "self", "host", "pad", "tag", "tag members", "tag salt"]

SEED_BYTES = 16
HALF_BYTES = 32
SHARE_BYTES = 17
PRIME = 2**130 - 5  # of the field of shares: above 2^128, and the one of Poly1305
WORDS = 8192  # words per block: they stay in the first cache levels
SHORT = 8192  # up to so many words in all, the streams of a mask are drawn side by side


class StreamId(NamedTuple):
    """Identifier of a key stream: its run, segment and sum. No two uses share it and a purpose.

    The segment's key is a digest of its layout, its owners and their common history.
    """

    run: str
    segment: str
    sum: int  # number of the sum in its run: no key serves two sums

    def info(self, purpose: Purpose) -> bytes:
        """Return HKDF's info: fixed-width numbers and a length, so that no two streams collide."""
        if not 0 <= self.sum < 1 << 64:
            raise CryptoError("sums are counted from 0", fix="pass the run's counter", field="sum")
        name = f"{self.run} {self.segment}".encode()
        numbers = (len(name), 0, self.sum, 0)  # zeros keep the streams of earlier releases
        return (
            b"secure_fl/1\0"
            + purpose.encode()
            + b"\0"
            + b"".join(number.to_bytes(8, "big") for number in numbers)
            + name
        )


def mask_key(seed: bytes) -> X25519PrivateKey:
    """Derive the mask key of a seed, once for all peers."""
    if len(seed) != SEED_BYTES:
        raise CryptoError("a mask key's seed has 16 bytes", fix="draw it at random", field="seed")
    return X25519PrivateKey.from_private_bytes(_derived(seed, b"secure_fl/1\0mask key"))


def public_key(seed: bytes) -> bytes:
    """Derive the X25519 public key (32 bytes) of a mask key's seed."""
    return mask_key(seed).public_key().public_bytes_raw()


def agree(key: X25519PrivateKey, peer: bytes) -> bytes:
    """Agree on the secret (32 bytes) that a mask key shares with the public key `peer`."""
    return identity.agree(
        key, peer, fix="stop the round: the peer or the coordinator substituted a key"
    )


def half(seed: bytes, peer: int) -> bytes:
    """Derive a party's half of the secret that it shares with a peer, given by its number."""
    return _derived(seed, b"secure_fl/1\0half" + peer.to_bytes(8, "big"))


def link(one: bytes, other: bytes) -> bytes:
    """Compute the XOR of two halves; with it, either half gives the other one."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def pair_secret(agreed: bytes, one: bytes, other: bytes) -> bytes:
    """Combine what X25519 agreed on with both halves, the lower one first."""
    return agreed + min(one, other) + max(one, other)


def stream_key(secret: bytes, stream: StreamId, purpose: Purpose) -> bytes:
    """Derive the AES-256 key of one stream from a secret of 16 bytes or more."""
    return _derived(secret, stream.info(purpose))


def uniform(key: bytes, length: int, modulus: int) -> Slots:
    """Expand a key to `length` integers, uniform in [0, modulus); a longer result extends it."""
    if length <= SHORT:
        row: Slots = _rows([key], length, modulus)[0]
        return row
    return _long(key, length, modulus)


def parts(key: bytes, length: int, modulus: int) -> Iterator[tuple[int, Slots]]:
    """Yield the integers of `uniform` in blocks, with the start of each; the buffer is reused."""
    if length <= SHORT:
        yield 0, uniform(key, length, modulus)
    else:
        yield from _blocks(key, length, modulus)


def add(slots: Slots, key: bytes, modulus: int) -> None:
    """Add a stream to slots below `modulus`, in place."""
    for start, block in parts(key, slots.size, modulus):
        add_slots(slots[start : start + block.size], block, modulus)


def add_slots(total: Slots, slots: Slots, modulus: int) -> None:
    """Add slots to a total, in place; all are below `modulus`."""
    for start in range(0, total.size, WORDS):
        part = total[start : start + WORDS]
        part += slots[start : start + WORDS]
        np.minimum(part, part - np.uint64(modulus), out=part)  # below 0 wraps to the top


def subtract(slots: Slots, key: bytes, times: int, modulus: int) -> None:
    """Subtract a stream so many times from slots below `modulus`, in place."""
    for start, block in parts(key, slots.size, modulus):
        block *= np.uint64(times)
        np.subtract(np.uint64(times * modulus), block, out=block)
        target = slots[start : start + block.size]
        target += block
        reduce(target, modulus)


def combine(plus: Sequence[bytes], minus: Sequence[bytes], length: int, modulus: int) -> Slots:
    """Sum the streams of the keys `plus`, less those of the keys `minus`, mod `modulus`."""
    most = (1 << 64) // modulus - 1  # terms that fit 64 bits without reduction
    if (len(plus) + len(minus)) * length <= SHORT:
        rows = _rows([*plus, *minus], length, modulus)
        np.subtract(np.uint64(modulus), rows[len(plus) :], out=rows[len(plus) :])
        short = np.zeros(length, np.uint64)
        for start in range(0, len(rows), most):
            short += rows[start : start + most].sum(axis=0, dtype=np.uint64)
            reduce(short, modulus)
        return short
    total = np.zeros(length, np.uint64)
    terms = 0
    signed = [(key, False) for key in plus] + [(key, True) for key in minus]
    for key, negative in signed:
        for start, block in _blocks(key, length, modulus):
            if negative:
                np.subtract(np.uint64(modulus), block, out=block)
            total[start : start + block.size] += block
        terms += 1
        if terms == most:
            reduce(total, modulus)
            terms = 1
    reduce(total, modulus)
    return total


def reduce(slots: Slots, modulus: int) -> None:
    """Reduce mod `modulus` in place; twice as fast as numpy's remainder."""
    for start in range(0, slots.size, WORDS):
        part = slots[start : start + WORDS]
        multiple = part // np.uint64(modulus)
        multiple *= np.uint64(modulus)
        part -= multiple


def pair_keys(
    member: int, pairs: Mapping[int, bytes], stream: StreamId
) -> tuple[list[bytes], list[bytes]]:
    """Derive the stream keys that `member` adds and subtracts, from its pair secrets by peer.

    The lower member adds and the higher one subtracts, so that the two cancel.
    """
    if member in pairs:
        what = f"member {member} cannot mask with itself"
        raise CryptoError(what, fix="pass its peers only", field="peers")
    info = stream.info("pair")
    plus = [_derived(pairs[peer], info) for peer in sorted(pairs) if member < peer]
    minus = [_derived(pairs[peer], info) for peer in sorted(pairs) if member > peer]
    return plus, minus


@dataclass(frozen=True, slots=True)
class RemainingMasks:
    """Seeds of the masks that remain in one sum.

    `numbers`: every member of the run, numbered from 1 in order of names. `publics`: the mask keys.
    `self_seeds`: seeds of the survivors' self masks; `dropped`: of the mask keys of dropped
    parties. `links`: for each dropped party, its links with the survivors.
    """

    numbers: Mapping[str, int]
    publics: Mapping[str, bytes]
    self_seeds: Mapping[str, bytes]
    dropped: Mapping[str, bytes]
    links: Mapping[str, Mapping[str, bytes]]

    def complete(self, dropped: Collection[str], survivors: Collection[str]) -> bool:
        """Return True if exactly these parties' seeds and links are here, and fit their keys."""
        return self.dropped.keys() == set(dropped) and all(
            len(seed) == SEED_BYTES
            and public_key(seed) == self.publics[party]
            and self.links[party].keys() == set(survivors)
            for party, seed in self.dropped.items()
        )

    def own(self, owners: Collection[str], stream: StreamId, length: int, modulus: int) -> Slots:
        """Return the sum of these owners' self masks in one segment."""
        keys = [stream_key(self.self_seeds[party], stream, "self") for party in owners]
        return combine(keys, [], length, modulus)

    def shared(
        self,
        owners: Collection[str],  # of the segment, dropped parties included
        salts: Mapping[str, Mapping[str, bytes]],  # by contributor and dropped party
        stream: StreamId,
        length: int,
        modulus: int,
    ) -> Slots:
        """Return the sum of the masks that contributors share with dropped owners."""
        plus, minus = list[bytes](), list[bytes]()
        for party, seed in self.dropped.items():
            if party not in owners:
                continue
            key, pairs = mask_key(seed), dict[int, bytes]()
            for peer, salted in salts.items():
                own = half(seed, self.numbers[peer])
                other = link(own, self.links[party][peer])
                secret = pair_secret(agree(key, self.publics[peer]), own, other)
                pairs[self.numbers[peer]] = secret + salted.get(party, b"")
            # A peer added the masks that the dropped party would have subtracted, and vice versa.
            added, subtracted = pair_keys(self.numbers[party], pairs, stream)
            plus += subtracted
            minus += added
        if not plus and not minus:
            return np.zeros(length, np.uint64)
        return combine(plus, minus, length, modulus)


def _derived(secret: bytes, info: bytes) -> bytes:
    """Derive 32 bytes by HKDF-SHA256 (RFC 5869) without a salt."""
    if len(secret) < SEED_BYTES:
        raise CryptoError("a mask's secret has at least 16 bytes", fix="draw it at random")
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def _cipher(key: bytes, modulus: int) -> CipherContext:
    """Return a key's AES-CTR stream from counter zero."""
    if len(key) != 32 or not 1 < modulus <= 1 << 62:
        raise CryptoError("a stream needs a 32-byte key", fix="derive it with stream_key")
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _rows(keys: Sequence[bytes], length: int, modulus: int) -> Slots:
    """Expand several keys side by side, a row each: for short streams, where calls cost most."""
    zeros = bytes(8 * length)
    stream = b"".join(_cipher(key, modulus).update(zeros) for key in keys)
    rows = np.frombuffer(stream, "<u8").reshape(len(keys), length) & np.uint64(
        (1 << (modulus - 1).bit_length()) - 1
    )
    if rows.max(initial=0) >= modulus:  # such a row needs more words: draw it again
        for row in np.flatnonzero((rows >= modulus).any(axis=1)).tolist():
            rows[row] = _long(keys[row], length, modulus)
    return rows


def _long(key: bytes, length: int, modulus: int) -> Slots:
    drawn = np.empty(length, np.uint64)
    for start, block in _blocks(key, length, modulus):
        drawn[start : start + block.size] = block
    return drawn


def _blocks(key: bytes, length: int, modulus: int) -> Iterator[tuple[int, Slots]]:
    """Yield start and content of consecutive blocks of a stream, in one reused buffer."""
    cipher, low_bits = _cipher(key, modulus), np.uint64((1 << (modulus - 1).bit_length()) - 1)
    zeros, stream = bytes(8 * WORDS), np.empty(WORDS, "<u8")
    start = 0
    while start < length:
        words = stream[: min(WORDS, length - start)]
        # the next block continues with the words that a short block did not use
        cipher.update_into(memoryview(zeros)[: words.nbytes], words.data.cast("B"))
        block = np.bitwise_and(words, low_bits, out=words)
        if block.max() >= modulus:
            block = block[block < modulus]
        yield start, block
        start += block.size


# --- Shamir's sharing of seeds --------------------------------------------------------------------


def share_secret(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Share `secret` among holders, given as distinct positive numbers; `threshold` suffice."""
    if len(secret) != SEED_BYTES:
        raise CryptoError("a shared secret has 16 bytes", fix="share a seed and derive the rest")
    _check_holders(holders)
    if not 1 <= threshold <= len(holders):
        raise CryptoError(
            f"{len(holders)} holders can never bring {threshold} shares together",
            fix="choose a threshold between 1 and the number of holders",
            field="threshold",
        )
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))  # highest power first, the secret last
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in coefficients:
            value = (value * holder + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES, "big")
    return shares


def recover_secret(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Recover the secret from at least `threshold` shares."""
    if threshold < 1 or len(shares) < threshold:
        raise CryptoError(
            f"{len(shares)} shares are too few, {threshold} are needed",
            fix="wait for more parties, or stop the round: nothing has been revealed",
            field="count",
        )
    _check_holders(list(shares))
    chosen = sorted(shares)[:threshold]  # more than `threshold` are not needed
    secret = 0
    for holder, weight in zip(chosen, _weights(tuple(chosen)), strict=True):
        value = int.from_bytes(shares[holder], "big")
        if len(shares[holder]) != SHARE_BYTES or value >= PRIME:
            what = f"the share of holder {holder} is malformed"
            raise CryptoError(what, fix=_FIX, field="share")
        secret += value * weight
    secret %= PRIME
    if secret >> 8 * SEED_BYTES:
        raise CryptoError("these shares do not belong to one secret", fix=_FIX, field="secret")
    return secret.to_bytes(SEED_BYTES, "big")


@lru_cache(maxsize=256)  # public; in a sum the same holders answer for all owners
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Compute Π_{j≠i} x_j / (x_j - x_i) for each holder i."""
    # the same as Π_j x_j / (x_i · Π_{j≠i} (x_j - x_i)), and one inversion serves all holders
    below = [x * prod(y - x for y in holders if y != x) % PRIME for x in holders]
    before = list(accumulate(below, lambda a, b: a * b % PRIME, initial=1))
    rest = prod(holders) * pow(before[-1], -1, PRIME) % PRIME
    weights = []
    for product, factor in zip(reversed(before[:-1]), reversed(below), strict=True):
        weights.append(rest * product % PRIME)
        rest = rest * factor % PRIME
    return tuple(reversed(weights))


_FIX = "stop the round: a party or the coordinator mixed up or changed shares"


def _check_holders(holders: Sequence[int]) -> None:
    # holder 0 would hold the secret itself
    if len(set(holders)) != len(holders) or not all(1 <= x < 1 << 32 for x in holders):
        raise CryptoError(
            "holders of shares must be distinct numbers from 1",
            fix="use the roster's member numbers",
            field="holders",
        )
