"""Encoding, streams, shares and tags (sections 5, 6 and 7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from vectors.reader.base import expand, keyed, labelled, require

T = 17592186028033
P = 2**130 - 5
Slots = NDArray[np.uint64]


class Codec:
    """The parameters of 5.1."""

    def __init__(self, bits: int, parties: int, extra: int) -> None:
        known = bits in (4, 6, 8, 12, 16, 24) and 1 <= parties <= 1 << 20 and extra >= 0
        require(known, "crypto:bits")
        self.parties, self.levels = parties, (1 << (bits - 1)) - 1
        self.offset = (1 << (bits + extra - 1)) - 1
        self.width = bits + extra + (parties - 1).bit_length()
        self.per_slot = 0
        field, largest = 2 * parties * self.offset, 0
        while (largest := largest + (field << (self.width * self.per_slot))) < T:
            self.per_slot += 1
        require(self.per_slot >= 1, "crypto:width")

    def slots(self, values: int) -> int:
        """The number of slots that hold so many values."""
        return -(-values // self.per_slot)


def quantized(
    bits: int, values: NDArray[np.float32], clip: float, draws: Sequence[int]
) -> list[int]:
    """The integers of 5.2, below 24 bits."""
    require(bool(np.isfinite(values).all()), "crypto:values")
    c = np.float32(clip)
    require(bool(0 <= c < np.inf), "crypto:clip")
    levels = (1 << (bits - 1)) - 1
    y = np.clip(values, -c, c) / (c if c > 0 else np.float32(1)) * np.float32(levels << 16)
    return [(int(k) + u) >> 16 for k, u in zip(np.rint(y), draws, strict=True)]


def pack(codec: Codec, integers: Sequence[int]) -> list[int]:
    """Fields of 5.3: of m slots, slot s holds the integers s, m + s, 2m + s ..."""
    require(all(-codec.offset <= i <= codec.offset for i in integers), "crypto:integers")
    slots = [0] * codec.slots(len(integers))
    for place, integer in enumerate(integers):
        shift = codec.width * (place // len(slots))
        slots[place % len(slots)] |= (integer + codec.offset) << shift
    return slots


def unpack(codec: Codec, slots: Slots, contributors: int, values: int) -> NDArray[np.int64]:
    """The sums of the integers."""
    fits = 1 <= contributors <= codec.parties and slots.size == codec.slots(values)
    require(fits, "crypto:slots")
    fields = [
        (slots >> np.uint64(codec.width * place)) & np.uint64((1 << codec.width) - 1)
        for place in range(codec.per_slot)
    ]
    return np.concatenate(fields)[:values].astype(np.int64) - contributors * codec.offset


def encode_wide(values: Sequence[float]) -> list[int]:
    """Five limbs of 20 bits a number, limb by limb (5.4)."""
    require(bool(values) and all(abs(v) <= 2.0**40 for v in values), "crypto:wide")
    whole = [round_half_even(v) + (1 << 80) for v in values]
    return [(number >> 20 * limb) & 0xFFFFF for limb in range(5) for number in whole]


def round_half_even(value: float) -> int:
    """A number in units of 2^-40: the whole part exactly, the rest to the nearest unit."""
    whole = int(np.floor(value))
    return (whole << 40) + int(np.rint((value - whole) * 2.0**40))


def decode_wide(slots: Slots, contributors: int) -> list[float]:
    """The sums of wide numbers; the whole part and the rest are added as floats."""
    require(slots.size % 5 == 0 and 1 <= contributors <= 1 << 20, "crypto:slots")
    limbs = slots.reshape(5, -1)
    sums = [sum(int(limb) << 20 * k for k, limb in enumerate(of)) for of in limbs.T]
    sums = [total - (contributors << 80) for total in sums]
    return [(total >> 40) + (total & (1 << 40) - 1) * 2.0**-40 for total in sums]


def decode(layout: Mapping[str, Any], slots: Slots, contributors: int) -> dict[str, list[float]]:
    """The sums of a segment's vectors (5.5); `layout` has bits, parties, extra, scale, fields."""
    exact = [f for f in layout["fields"] if f[2] is None]
    fixed = [f for f in layout["fields"] if f[2] is not None]
    scalars, opened = sum(f[1] for f in exact) + 2 * sum(f[3] for f in fixed), {}
    cut = 5 * scalars
    numbers = decode_wide(slots[:cut], contributors) if scalars else []
    for name, size, _, _ in exact:
        opened[name], numbers = numbers[:size], numbers[size:]
    if fixed:
        codec = Codec(layout["bits"], layout["parties"], layout["extra"])
        integers = unpack(codec, slots[cut:], contributors, sum(f[1] for f in fixed))
        for name, size, clip, _ in fixed:
            part, integers = integers[:size], integers[size:]
            step = float(np.float32(clip)) / codec.levels
            scaled = part / layout["scale"] if layout["scale"] else part * step
            opened[name] = scaled.tolist()
    return opened


def from_wire(data: bytes, count: int) -> Slots:
    """Slots of six bytes, low byte first (5.6)."""
    require(len(data) == 6 * count, "wire:size")
    raw = np.frombuffer(data, np.uint8).reshape(count, 6)
    slots = np.pad(raw, ((0, 0), (0, 2))).copy().view("<u8").reshape(-1)
    require(not count or int(slots.max()) < T, "wire:slots")
    return slots.astype(np.uint64)


# --- streams and masks (6.1 to 6.4) ---------------------------------------------------------------


def stream(secret: bytes, run: str, segment: str, number: int, purpose: str, length: int) -> Slots:
    """The integers of one stream, uniform below T."""
    require(0 <= number < 1 << 64, "crypto:sum")
    name = f"{run} {segment}".encode()
    numbers = b"".join(n.to_bytes(8, "big") for n in (len(name), 0, number, 0))
    key = expand(secret, b"secure_fl/1\0" + purpose.encode() + b"\0" + numbers + name)
    return uniform(key, length, T)


def uniform(key: bytes, length: int, modulus: int) -> Slots:
    """AES-256-CTR from zero; words whose low bits are not below the modulus are skipped."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    drawn = np.empty(0, np.uint64)
    bits = np.uint64((1 << (modulus - 1).bit_length()) - 1)
    while drawn.size < length:
        words = np.frombuffer(cipher.update(bytes(8 * (length - drawn.size))), "<u8") & bits
        drawn = np.concatenate((drawn, words[words < modulus]))
    return drawn


def mask_key(seed: bytes) -> X25519PrivateKey:
    """The mask key of a seed."""
    require(len(seed) == 16, "crypto:seed")
    return X25519PrivateKey.from_private_bytes(expand(seed, b"secure_fl/1\0mask key"))


def public(seed: bytes) -> bytes:
    """The public key of a mask key's seed."""
    return mask_key(seed).public_key().public_bytes_raw()


def half(seed: bytes, peer: int) -> bytes:
    """A member's half of the secret that it shares with a peer (6.2)."""
    return expand(seed, b"secure_fl/1\0half" + peer.to_bytes(8, "big"))


def linked(one: bytes, other: bytes) -> bytes:
    """The link of two halves (6.2)."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def mask_secret(key: X25519PrivateKey, peer: bytes, one: bytes, other: bytes) -> bytes:
    """The secret of a pair's masks (6.3)."""
    return pair_secret(key, peer) + min(one, other) + max(one, other)


def pair_secret(key: X25519PrivateKey, peer: bytes) -> bytes:
    """X25519, without points of low order."""
    require(len(peer) == 32, "crypto:point")
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        require(False, "crypto:point")
        raise


def added(*terms: Slots) -> Slots:
    """A sum of slots below T."""
    total = np.zeros_like(terms[0])
    for term in terms:
        total = (total + term) % np.uint64(T)
    return total


def minus(slots: Slots) -> Slots:
    """The negative, below T."""
    return (np.uint64(T) - slots) % np.uint64(T)


# --- Shamir's shares (6.5) ------------------------------------------------------------------------


def share(secret: bytes, coefficients: Sequence[int], holder: int) -> bytes:
    """f(holder); `coefficients`: of x, x², ..."""
    require(1 <= holder < 1 << 32, "crypto:holders")
    terms = (int.from_bytes(secret, "big"), *coefficients)
    return (sum(c * pow(holder, k, P) for k, c in enumerate(terms)) % P).to_bytes(17, "big")


def recover(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """f(0) from the first `threshold` holders."""
    require(1 <= threshold <= len(shares), "crypto:count")
    require(all(1 <= holder < 1 << 32 for holder in shares), "crypto:holders")
    chosen, secret = sorted(shares)[:threshold], 0
    for x in chosen:
        value = int.from_bytes(shares[x], "big")
        require(len(shares[x]) == 17 and value < P, "crypto:share")
        for y in chosen:
            if y != x:
                value = value * y * pow(y - x, -1, P) % P
        secret += value
    require(secret % P < 1 << 128, "crypto:secret")
    return (secret % P).to_bytes(16, "big")


# --- tags (7) -------------------------------------------------------------------------------------


def tag(key: bytes, slots: Slots, members: Collection[int], at: tuple[str, str, int]) -> int:
    """The tag of slots: of one member, or of several members' sum."""
    require(slots.size > 0 and int(slots.max()) < T, "crypto:slots")
    distinct = len(set(members)) == len(members) and all(0 <= m < 1 << 20 for m in members)
    require(distinct, "crypto:contributors")
    weights = stream(key, *at, "tag", slots.size)
    constants = stream(key, *at, "tag members", max(members, default=-1) + 1)
    products = sum(int(a) * int(b) for a, b in zip(slots, weights, strict=True))
    return (products + sum(int(constants[m]) for m in members)) % T


def bonds(key: bytes, member: int, salts: Mapping[int, bytes], at: tuple[str, str, int]) -> int:
    """The part of a member's tag that binds the salts of its masks with single peers."""
    total = 0
    for peer, salt in salts.items():
        pair = f"salt of {min(member, peer)} {max(member, peer)}".encode()
        bond = int(stream(keyed(key, salt, pair), *at, "tag salt", 1)[0])
        total += bond if member < peer else -bond
    return total % T


def segment_key(case: Mapping[str, Any], seen: bytes) -> bytes:
    """The digest of a segment's content, number and contributors (5.7)."""
    layout = "\n".join(f"{name} {size}" for name, size in case["vectors"])
    noise = case["noise"] and "{:.6g} {:.6g}".format(*case["noise"])
    number, of_round = case["at"]
    rules = f"{case['audience']} {case['carry']} {case['bound']} {noise} {number} {of_round}"
    owners, readers = "\n".join(case["owners"]), "\n".join(case["readers"])
    parts = (rules, layout, owners, readers)
    return labelled(b"secure-fl segment", seen, *(part.encode() for part in parts))


def note(now: dict[str, bytes], audience: str, *what: bytes) -> None:
    """An entry of the chain of an audience (5.8)."""
    now[audience] = labelled(b"secure-fl seen", now.get(audience, b""), *what)


def common(now: Mapping[str, bytes], wanted: Collection[str], audience: str) -> bytes:
    """The history that readers have in common; nothing is saved yet (5.8)."""
    fitting = ["\nall"]
    if audience == "parties":
        fitting += [a for a in now if a == "\nparties" or set(wanted) <= set(a.split("\n"))]
    chains = (labelled(b"secure-fl seen", a.encode(), b"", now[a]) for a in sorted(fitting))
    return labelled(b"secure-fl seen", *chains)
