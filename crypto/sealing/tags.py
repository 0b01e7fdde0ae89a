"""Linear tags that expose a tampering coordinator.

Specified in docs/protocol-bytes.md 7.

    tag_i = Σ_j r_j · z_ij + s_i   mod t,      so that      Σ_i tag_i = Σ_j r_j · X_j + Σ_{i∈U} s_i

for the opened sum X of the contributors U. z_i = x_i + the masks that i shares with its peers: so a
reader of z_i, which reveals nothing about x_i, can check one upload (`blame.inquiry`). Without the
constants s_i, c·X with the tag c·Σ tag_i would pass for every c. One for each party also catches a
party that counts twice while another is dropped. Every member knows the tag key: a member that
conspires with the coordinator can forge (masks still protect inputs).

Products of two 44-bit integers exceed 64 bits. So a block is multiplied and added twice: mod 2^64,
and in floating point, which over 2^13 slots errs by less than 2^-40 of at most 2^101, whatever the
order of its additions. Only one integer is that near to the second and equal to the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from secure_fl.crypto.keys.identity import keyed_digest
from secure_fl.crypto.sealing.masking import (
    RemainingMasks,
    Slots,
    StreamId,
    parts,
    stream_key,
    uniform,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, TamperError
from secure_fl.protocol.messages import Lost, Salt

NO_SALTS: Mapping[str, Mapping[str, bytes]] = MappingProxyType({})
BITS = 44  # bits of the largest modulus
BLOCK = 8192  # slots: more of them wake BLAS threads, and the error grows


def make(
    key: bytes, slots: Slots, contributors: Collection[int], modulus: int, stream: StreamId
) -> int:
    """Compute the tag of slots without self masks, below `modulus`: of one member, or summed."""
    if slots.dtype != np.uint64 or not slots.size or int(slots.max()) >= modulus:
        raise CryptoError(
            "tags need a non-empty vector of slots below the modulus",
            fix="reduce the slots mod the scheme's modulus first",
            field="slots",
        )
    total = _constants(key, contributors, modulus, stream)
    for start, weights in parts(stream_key(key, stream, "tag"), slots.size, modulus):
        total += dot(slots[start : start + weights.size], weights, modulus)
    return total % modulus


def check(
    key: bytes,
    slots: Slots,
    tag: int,
    contributors: Collection[int],
    modulus: int,
    stream: StreamId,
) -> None:
    """Refuse opened slots that are not the sum of exactly these contributors' slots."""
    if tag != make(key, slots, contributors, modulus, stream):
        raise TamperError(
            f"the sum over {len(contributors)} contributors was changed in transit",
            fix="stop the run, and compare transcripts: the coordinator changed the total, or a "
            "contributor tagged its own input wrongly",
            sum=stream.sum,
            reason="wrong-sum",
        )


def check_sum(
    key: bytes,
    slots: Slots,  # opened, with the tag
    contributors: Collection[str],
    numbers: Mapping[str, int],  # every member of the run
    stream: StreamId,
    owners: Collection[str],  # of the segment, dropped or not; (): all
    left: RemainingMasks | None = None,  # shared with dropped parties
    salts: Mapping[str, Mapping[str, bytes]] = NO_SALTS,  # by contributor, of its masks with them
) -> None:
    """Check an opened total, whose tag contains masks shared with dropped parties."""
    tagged, tag, t = slots[:-1], int(slots[-1]), COHORT.modulus
    if left is not None and left.dropped:
        shared = left.shared(owners or tuple(left.dropped), salts, stream, tagged.size, t)
        tagged = (tagged + shared) % np.uint64(t)
        for party, by_peer in salts.items():
            by_number = {numbers[peer]: salt for peer, salt in by_peer.items()}
            tag -= bonds(key, numbers[party], by_number, t, stream)
    check(key, tagged, tag % t, [numbers[party] for party in contributors], t, stream)


def bonds(
    key: bytes, member: int, salts: Mapping[int, bytes], modulus: int, stream: StreamId
) -> int:
    """Compute the part of a member's tag that binds its masks' salts; equal ones cancel."""
    total = 0
    for peer, salt in salts.items():
        pair = f"{min(member, peer)} {max(member, peer)}".encode()
        secret = keyed_digest(key, salt, b"salt of " + pair)
        bond = int(uniform(stream_key(secret, stream, "tag salt"), 1, modulus)[0])
        total += bond if member < peer else -bond
    return total % modulus


def dot(left: Slots, right: Slots, modulus: int) -> int:
    """Multiply and add two vectors of integers below `modulus` < 2^44, exactly, mod `modulus`."""
    if not 1 < modulus <= 1 << BITS or left.shape != right.shape or left.ndim != 1:
        raise CryptoError(
            f"tags need two vectors of one length and a modulus of at most {BITS} bits",
            fix="use the modulus of the scheme",
        )
    starts = range(0, left.size, BLOCK)
    total, half = 0, 1 << 63
    for at in starts:
        a, b = left[at : at + BLOCK], right[at : at + BLOCK]
        low = int(np.dot(a, b))  # wraps
        near = int(np.dot(a.view(np.int64).astype(float), b.view(np.int64).astype(float)))
        total += near + (low - near + half) % (2 * half) - half  # `near` is at most 2^61 off
    return total % modulus


def _constants(key: bytes, members: Collection[int], modulus: int, stream: StreamId) -> int:
    """Add up the constants of `members`; member i's is the i-th integer of one stream."""
    if len(set(members)) != len(members) or not all(0 <= member < 1 << 20 for member in members):
        raise CryptoError(
            "contributors must be distinct member numbers below 2^20",
            fix="name each contributor once, by its number in the roster",
            field="contributors",
        )
    drawn = uniform(stream_key(key, stream, "tag members"), max(members, default=-1) + 1, modulus)
    # at most 2^20 members of 44 bits: their sum stays below 2^64
    return int(drawn[np.fromiter(members, np.int64)].sum(dtype=np.uint64)) % modulus


def salts_by_digest(by_peer: Mapping[str, bytes]) -> tuple[Salt, ...]:
    """Group the salts of masks with single peers for the wire: most often all are equal."""
    named: dict[bytes, list[str]] = {}
    for peer, digest in sorted(by_peer.items()):
        named.setdefault(digest, []).append(peer)
    return tuple(Salt(digest, tuple(names)) for digest, names in named.items())


def salt_of(salts: Sequence[Salt], peer: str) -> bytes:
    """Return the digest that is listed for this peer, if any."""
    return next((salt.digest for salt in salts if peer in salt.peers), b"")


def salts_with(
    lost: Mapping[str, Lost], place: int, owners: Collection[str]
) -> dict[str, dict[str, bytes]]:
    """Return the salts that contributors to a segment used for masks with lost parties."""
    salts = {peer: of.salts[place] for peer, of in lost.items() if place < len(of.salts)}
    return {
        party: {peer: by[party] for peer, by in salts.items() if party in by} for party in owners
    }
