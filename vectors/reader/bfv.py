"""Decryption of BFV ciphertexts (section 8), without a library of lattices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vectors.reader.base import Refused, require
from vectors.reader.numbers import Slots, T

N, Q = 4096, 18014398509309953
PSI = 2104035327373  # the least root of order 2N
FULL, SEEDED = 2, 3
MOST_SEEDS = 16
Words = NDArray[Any]
IV = (
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
)  # fmt: skip
SIGMA = [
    [int(digit, 16) for digit in row]
    for row in (
        "0123456789abcdef ea489fd61c02b753 b8c052fdae367194 7931dcbe265a40f8 905724afe1bc683d "
        "2c6a0b834d75fe19 c51fed4a0763928b db7ec13950f4862a 6fe9b308c2d714a5 a2847615fb9e3cd0"
    ).split()
]


def words(data: bytes, count: int) -> Words:
    """Coefficients in three planes: low 32, middle 16 and high 8 bits (8.2)."""
    low = np.frombuffer(data, "<u4", count).astype(np.uint64)
    middle = np.frombuffer(data, "<u2", count, 4 * count).astype(np.uint64)
    high = np.frombuffer(data, "u1", count, 6 * count).astype(np.uint64)
    found: Words = low | middle << np.uint64(32) | high << np.uint64(48)
    return found


def _blocks(block: bytes) -> bytes:
    """BLAKE2Xb's 64 output blocks of one hash (RFC 7693; parameters of BLAKE2X)."""
    nodes = np.arange(64, dtype=np.uint64)
    parameters = [np.full(64, 64 | 64 << 32, np.uint64), nodes | np.uint64(4096 << 32)]
    parameters += [np.full(64, 64 << 8, np.uint64)] + [np.zeros(64, np.uint64)] * 5
    h = [np.uint64(iv) ^ p for iv, p in zip(IV, parameters, strict=True)]
    m = [np.uint64(word) for word in np.frombuffer(block + bytes(64), "<u8")]
    v = [*h, *(np.full(64, iv, np.uint64) for iv in IV)]
    v[12], v[14] = v[12] ^ np.uint64(64), ~v[14]
    for number in range(12):
        s = SIGMA[number % 10]
        for i in range(8):
            a, b = i % 4, 4 + (i + i // 4) % 4
            c, d = 8 + (i + i // 4 * 2) % 4, 12 + (i + i // 4 * 3) % 4
            for x, (r1, r2) in ((m[s[2 * i]], (32, 24)), (m[s[2 * i + 1]], (16, 63))):
                v[a] = v[a] + v[b] + x
                v[d] = _rotated(v[d] ^ v[a], r1)
                v[c] = v[c] + v[d]
                v[b] = _rotated(v[b] ^ v[c], r2)
    out = np.stack([h[i] ^ v[i] ^ v[i + 8] for i in range(8)], axis=1)
    return out.astype("<u8").tobytes()


def _rotated(x: Words, by: int) -> Words:
    return x >> np.uint64(by) | x << np.uint64(64 - by)


def expanded(seed: bytes) -> Words:
    """The uniform second half of a ciphertext, from its seed (8.4)."""
    stream, limit = bytearray(), 2**64 - 1 - (2**64 - 1) % Q - 1

    def word(start: int) -> int:
        while len(stream) < start + 8:
            counter = (len(stream) // 4096).to_bytes(8, "little")
            root = hashlib.blake2b(counter, key=seed, digest_size=64, node_offset=4096 << 32)
            stream.extend(_blocks(root.digest()))
        return int.from_bytes(stream[start : start + 8], "little")

    spare, drawn = 8 * N, []  # rejected words are drawn again after all others
    word(spare - 8)
    for start in range(0, 8 * N, 8):
        drawn.append(word(start))
        while drawn[-1] >= limit:
            drawn[-1], spare = word(spare), spare + 8
    return np.array(drawn, object) % Q


@cache
def _roots(inverse: bool) -> Words:
    base = pow(PSI, -1, Q) if inverse else PSI
    return np.array([pow(base, int(f"{i:012b}"[::-1], 2), Q) for i in range(N)], object)


def forward(x: Words) -> Words:
    """The negacyclic transform, in bit-reversed order (8.5)."""
    x, m = x.copy(), 1
    while m < N:
        x = x.reshape(m, 2, -1)
        right = x[:, 1] * _roots(False)[m : 2 * m, None] % Q
        x = np.stack(((x[:, 0] + right) % Q, (x[:, 0] - right) % Q), axis=1)
        m *= 2
    return x.reshape(-1)


def backward(x: Words) -> Words:
    """The inverse of `forward`."""
    x, m = x.copy(), N // 2
    while m:
        x = x.reshape(m, 2, -1)
        left, right = (x[:, 0] + x[:, 1]) % Q, (x[:, 0] - x[:, 1]) % Q
        x = np.stack((left, right * _roots(True)[m : 2 * m, None] % Q), axis=1)
        m //= 2
    return x.reshape(-1) * pow(N, -1, Q) % Q


def secret_key(data: bytes) -> Words:
    """The key's first half: its transform modulo Q (8.5)."""
    require(data[:6] == b"SFLS\x01\x01" and len(data) == 6 + 7 * 2 * N, "crypto:form")
    return words(data[6:], 2 * N)[:N].astype(object)


def opened(key: Words, parts: Sequence[bytes], count: int, contributors: int) -> Slots:
    """The integers of a sum of so many uploads (8.6)."""
    widths = [min(N, count - start) for start in range(0, count, N)]
    require(len(parts) == len(widths) > 0, "crypto:parts")
    integers = [_open(key, *one, contributors) for one in zip(parts, widths, strict=True)]
    return np.concatenate(integers)


def _open(key: Words, data: bytes, used: int, contributors: int) -> Slots:
    kind, body = data[:1], data[1:]
    if kind == bytes([FULL]):
        require(len(body) == 7 * (used + N), "crypto:form")
        both = words(body, used + N)
        require(int(both.max()) < Q and bool(both[used:].any()), "crypto:form")
        first, second = both[:used].astype(object), both[used:].astype(object)
    elif kind == bytes([SEEDED]):
        fits = 1 <= contributors <= MOST_SEEDS and len(body) == 7 * used + 64 * contributors
        require(fits, "crypto:form")
        half = words(body, used)
        require(int(half.max()) < Q, "crypto:form")
        seeds = [body[start : start + 64] for start in range(7 * used, len(body), 64)]
        first, second = half.astype(object), np.sum([expanded(s) for s in seeds], axis=0) % Q
    else:
        raise Refused("crypto:form")
    phase = (first + backward(forward(second) * key % Q)[:used]) % Q
    return ((2 * T * phase + Q) // (2 * Q) % T).astype(np.uint64)


def cut(data: bytes, count: int) -> list[bytes]:
    """Ciphertexts, each after its length in 4 bytes (8.2)."""
    parts, start = [], 0
    require(len(data) >= 64 * (count // N), "wire:parts")
    for _ in range(0, count, N):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        parts.append(data[start + 4 : end])
        start = end
    require(start == len(data), "wire:parts")
    return parts
