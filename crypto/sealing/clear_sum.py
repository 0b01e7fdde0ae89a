"""Sums without protection (`protect = "none"`), for comparison: float32 in the clear, both halves.

The same door, audiences, refusals and transcript as with protection; only the sealing is missing.
Integer accumulators make a total independent of the order in which parties answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.primitives import digest_of
from secure_fl.crypto.sealing.segments import check_bound, left_between_parts, segment_key
from secure_fl.errors import CohortError, CryptoError, Disagreement, WireError
from secure_fl.protocol.messages import (
    Confirm,
    Confirmed,
    Lost,
    Offer,
    Segment,
    SumId,
    Told,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import NOBODY, Group, Rule, Upload, Vector

COARSE = 2.0**24  # first limb: multiples of 2^-24, up to 2^38
FINE = 2.0**72  # second limb: the rest, to 2^-72
LARGEST = 2.0**30  # per party, so that 256 and more parties fit
CHUNK = 1 << 14  # values at a time: temporaries stay in the cache


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, size, CHUNK))


class ExactFloats:
    """Sums float32 vectors in two 64-bit integers per value: exact, whatever the order."""

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
            x -= coarse  # exact: what is left of the mantissa
            x *= FINE / COARSE
            np.rint(x, out=x)
            # whole numbers below 2^54 and 2^48: no conversion rounds
            self._coarse[part] += coarse.astype(np.int64)
            self._fine[part] += x.astype(np.int64)

    def total(self) -> NDArray[np.float32]:
        """The sum, rounded once."""
        found = np.empty(self.size, np.float32)
        for part in _parts(self.size):
            found[part] = self._coarse[part] / COARSE + self._fine[part] / FINE
        return found


def require_summable(values: NDArray[np.float32]) -> None:
    """Refuse what `ExactFloats` cannot add, before any of it is added."""
    for part in _parts(values.size):
        if not (np.abs(values[part]) < LARGEST).all():  # also false for NaN
            raise WireError("a clear vector holds NaN, infinity or values of 2^30 and more")


class ClearTotal:
    """The coordinator's half for `protect = "none"`."""

    masked = False

    def __init__(self) -> None:
        self._totals: dict[bytes, ExactFloats] = {}

    def add(self, sender: str, segments: Sequence[Segment], data: bytes) -> None:
        """Add a party's segments: all of them, or none if one cannot be read."""
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
        """Drop segments."""
        for key in keys:
            self._totals.pop(key, None)

    def check(self, sender: str, shares: UnmaskShares, survivors: Sequence[str]) -> None:
        """Clear sums have no masks: nobody is asked for shares."""
        raise WireError("a clear sum has no masks to remove", party=sender)

    def result(
        self, survivors: Sequence[str], shares: Mapping[str, UnmaskShares]
    ) -> Mapping[bytes, bytes]:
        """The totals."""
        return {key: total.total().tobytes() for key, total in self._totals.items()}

    def selves(self) -> Mapping[str, bytes]:
        """Nothing was masked."""
        return {}

    def lost(self, keys: Sequence[bytes]) -> dict[str, Lost]:
        """Nobody masked with anybody."""
        return {}


class ClearSums:
    """The party's half: little-endian float32, as federated learning is commonly run."""

    sent = b""

    def __init__(self, me: str) -> None:
        self.me = me

    def inquiry(self, coordinator: PublicIdentity) -> None:
        """Clear sums have no tags."""

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> ClearSumUnderWay:
        """Lay the vectors one after the other; float32 leaves nothing over to carry."""
        return ClearSumUnderWay(self.me, groups, rule, at)

    def next_keys(self, members: Sequence[str], told: Told | None = None) -> Offer | None:
        """No keys are needed."""
        return None

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """No keys are needed."""

    def unscaled(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        """Floats carry their own scale."""
        return ()

    def learn(self, sums: Mapping[str, NDArray[np.float64]]) -> None:
        """Floats carry their own scale."""

    def forget(self, names: Sequence[str]) -> None:
        """Floats carry their own scale."""

    def postpone(self, groups: Sequence[Group], rule: Rule) -> dict[str, NDArray[np.float64]]:
        """Nothing is carried in the clear, so nothing can wait."""
        raise left_between_parts(self.me)

    def leftover(self, name: str) -> Vector | None:
        """Float32 leaves nothing over."""
        return None


class ClearSumUnderWay:
    """One sum in the clear: there is no mask to remove between its upload and its opening."""

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
        self.unscaled: tuple[str, ...] = ()  # nothing has a scale here
        self._groups, self._opened = groups, False

    def settle(self, lists: Unmask) -> Confirm | None:
        """There is no mask to remove."""
        raise CohortError("the coordinator asked for masks that this run does not use")

    def shares(self, confirmed: Confirmed | None) -> UnmaskShares:
        """There is no mask to remove."""
        raise CohortError("the coordinator asked for masks that this run does not use")

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NOBODY
    ) -> dict[str, NDArray[np.float64]]:
        """Cut the totals into the vectors that were sent."""
        if self._opened:
            raise CohortError("a sum is opened once")
        self._opened = True
        opened: dict[str, NDArray[np.float64]] = {}
        for group, part in zip(self._groups, parts, strict=False):
            total = np.frombuffer(part, dtype="<f4").astype(np.float64)
            ends = np.cumsum([v.size for v in group.vectors.values()])
            opened |= dict(zip(group.vectors, np.split(total, ends[:-1]), strict=True))
        return opened


@lru_cache(maxsize=1 << 14)
def _fingerprint(data: bytes, context: bytes) -> bytes:
    """Made once for all parties of a process: each compares it for each, and it has no key."""
    return digest_of(b"secure-fl agree", context, data)


class ClearEnvelopes:
    """Values that are passed on, in the clear, and proofs that prove nothing: nobody has keys."""

    def __init__(self, me: str) -> None:
        self.me = me

    def seal(self, data: bytes, context: bytes) -> bytes:
        """In the clear."""
        return data

    def open(self, data: bytes, context: bytes) -> bytes:
        """In the clear."""
        return data

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """A plain digest."""
        return _fingerprint(data, context)

    def vouch(self, statement: bytes) -> bytes:
        """Name this party; anybody could."""
        return digest_of(b"secure-fl vouch", self.me.encode(), statement)

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        """Whether that party is named; anybody could name it."""
        return proof == digest_of(b"secure-fl vouch", party.encode(), statement)


class ClearTranscript:
    """Nothing is masked, so nothing that was seen is bound to anything."""

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        """Nothing is bound to it."""

    def turn(self) -> None:
        """Nothing is kept between sums."""

    def common(self) -> Mapping[str, Any]:
        """Nothing is kept between sums."""
        return {}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Nothing is kept between sums."""

    def scaling(self) -> Mapping[str, Any]:
        """There are no scales, and so no grid that could grow."""
        return {"grid": {}, "own": {}}

    def rescale(self, before: Mapping[str, Any]) -> None:
        """Nothing was scaled."""

    def state(self) -> Mapping[str, Any]:
        """Nothing is kept between sums."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept between sums."""
