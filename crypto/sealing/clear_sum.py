"""Sums without protection (mode "none"), for comparison: float32 in the clear, at both ends.

Audiences, refusals and transcript are those of protected sums; only the sealing is missing. Integer
accumulators make a total independent of the order of the uploads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.keys.identity import PublicIdentity, digest_of
from secure_fl.crypto.sealing.packing import check_bound, segment_key
from secure_fl.errors import CohortError, CryptoError, Disagreement, WireError
from secure_fl.protocol.messages import (
    Confirm,
    Confirmed,
    Lost,
    Offer,
    Segment,
    SumId,
    SumInput,
    SurvivorStatement,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import NONE_LOST, Arrays, Group, Rule, Upload

COARSE = 2.0**24  # first limb: multiples of 2^-24, up to 2^38
FINE = 2.0**72  # second limb: the rest, to 2^-72
LARGEST = 2.0**30  # per party, so that 256 and more parties fit
CHUNK = 1 << 14  # values at a time: temporaries stay in the cache


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, size, CHUNK))


class ExactFloats:
    """Exact sum of float32 vectors in two 64-bit integers per value."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._coarse = np.zeros(size, dtype=np.int64)
        self._fine = np.zeros(size, dtype=np.int64)

    def add(self, values: NDArray[np.float32]) -> None:
        """Add one party's vector."""
        for part in _parts(values.size):
            x = values[part].astype(np.float64)
            x *= COARSE
            coarse = np.rint(x)
            x -= coarse  # exact: the rest of the mantissa
            x *= FINE / COARSE
            np.rint(x, out=x)
            # integers below 2^54 and 2^48: the conversion is exact
            self._coarse[part] += coarse.astype(np.int64)
            self._fine[part] += x.astype(np.int64)

    def total(self) -> NDArray[np.float32]:
        """Return the sum, rounded once."""
        total = np.empty(self.size, np.float32)
        for part in _parts(self.size):
            total[part] = self._coarse[part] / COARSE + self._fine[part] / FINE
        return total


def require_summable(values: NDArray[np.float32]) -> None:
    """Refuse values that `ExactFloats` cannot add, before any of them is added."""
    for part in _parts(values.size):
        if not (np.abs(values[part]) < LARGEST).all():  # also false for NaN
            raise WireError("a clear vector holds NaN, infinity or values of 2^30 and more")


class ClearTotal:
    """The coordinator's half of a sum in the clear."""

    masked = False

    def __init__(self) -> None:
        self._totals: dict[bytes, ExactFloats] = {}

    def admit(self, sender: str, upload: SumInput) -> None:
        pass

    def require_consistent(self, survivors: Collection[str]) -> None:
        pass

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        values = np.frombuffer(data, dtype="<f4") if len(data) % 4 == 0 else None
        if values is None or sum(s.size for s in segments) != len(data):
            raise WireError("a sum's segments do not fit their bulk", party=sender)
        require_summable(values)
        start = 0
        for segment in segments:
            if not segment.size:  # this party only reads the sum
                continue
            end = start + segment.size // 4
            total = self._totals.setdefault(segment.key, ExactFloats(end - start))
            if segment.size % 4 or total.size != end - start:
                raise Disagreement("this party lays out a sum differently", party=sender)
            total.add(values[start:end])
            start = end

    def forget(self, keys: Collection[bytes]) -> None:
        for key in keys:
            self._totals.pop(key, None)

    def check(self, sender: str, shares: UnmaskShares, survivors: Sequence[str]) -> None:
        raise WireError("a clear sum has no masks to remove", party=sender)

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        return {key: total.total().tobytes() for key, total in self._totals.items()}

    def self_mask_seeds(self) -> Mapping[str, bytes]:
        return {}

    def lost(self, keys: Sequence[bytes]) -> dict[str, Lost]:
        return {}


class ClearSums:
    """The party's half of sums in the clear: little-endian float32, which needs no scales."""

    def __init__(self, me: str) -> None:
        self.me = me

    def inquiry(self, coordinator: PublicIdentity, lists: bytes) -> None:
        """Return None: sums in the clear have no tags."""

    def upload(self, number: int) -> bytes:
        return b""

    def next_keys(self, members: Sequence[str], statement: SurvivorStatement | None = None) -> None:
        """Return None: no keys are needed."""

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        pass

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> ClearSumInProgress:
        return ClearSumInProgress(self.me, groups, rule, at)


class ClearSumInProgress:
    """One sum in the clear: no masks are removed between upload and opening."""

    def __init__(self, me: str, groups: Sequence[Group], rule: Rule, at: SumId) -> None:
        if rule.noise is not None:
            raise CryptoError(
                "noise belongs under masks: unprotected sums would show every party's own share",
                fix='set protection.mode = "he+secagg"',
            )
        parts, segments = [], []
        for group in groups:
            if rule.bound is not None:
                check_bound(group, rule.bound)
            part = b""
            if me in group.owners:
                part = b"".join(v.astype("<f4", copy=False).data for v in group.vectors.values())
            parts.append(part)
            segments.append(Segment(segment_key(group, rule, at), len(part), len(part) // 4))
        self.upload = Upload(tuple(segments), b"".join(parts))
        self.layouts = (None,) * len(groups)
        self.unscaled: tuple[str, ...] = ()  # floats have no scale
        self._groups, self._opened = groups, False

    def settle(self, lists: Unmask) -> Confirm | None:
        raise _no_masks()

    def shares(self, confirmed: Confirmed | None) -> UnmaskShares:
        raise _no_masks()

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NONE_LOST
    ) -> Arrays:
        if self._opened:
            raise CohortError("a sum is opened once")
        self._opened = True
        opened: Arrays = {}
        for group, part in zip(self._groups, parts, strict=False):
            total = np.frombuffer(part, dtype="<f4").astype(np.float64)
            ends = np.cumsum([v.size for v in group.vectors.values()])
            opened |= dict(zip(group.vectors, np.split(total, ends[:-1]), strict=True))
        return opened


def _no_masks() -> CohortError:
    return CohortError("the coordinator asked for masks that this run does not use")


@lru_cache(maxsize=1 << 14)
def _fingerprint(data: bytes, context: bytes) -> bytes:
    """Compute a digest once for all parties of a process, since it has no key."""
    return digest_of(b"secure-fl agree", context, data)


class ClearEnvelopes:
    """Values in the clear, and proofs that prove nothing: nobody has keys."""

    def __init__(self, me: str) -> None:
        self.me = me

    def seal(self, data: bytes, context: bytes) -> bytes:
        return data

    def open(self, data: bytes, context: bytes) -> bytes:
        return data

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        return _fingerprint(data, context)

    def vouch(self, statement: bytes) -> bytes:
        return digest_of(b"secure-fl vouch", self.me.encode(), statement)

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        return proof == digest_of(b"secure-fl vouch", party.encode(), statement)
