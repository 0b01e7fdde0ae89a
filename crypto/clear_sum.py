"""Sums without protection (`protect = "none"`), for comparison: float32 in the clear.

The same door, audiences, refusals and transcript as with protection; only the sealing is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.primitives import digest_of
from secure_fl.errors import CohortError, CryptoError
from secure_fl.protocol.messages import (
    Confirm,
    Confirmed,
    Offer,
    Segment,
    SumId,
    Unmask,
    UnmaskShares,
)
from secure_fl.protocol.ports import Group, Rule, Sealed, Vector


def segment_key(group: Group, rule: Rule, at: SumId, seen: bytes = b"") -> bytes:
    """A digest of what a segment holds, of which sum, after what its parties have all seen.

    Parties that disagree are found out: to the coordinator theirs are different segments.
    """
    layout = "\n".join(f"{name} {vector.size}" for name, vector in group.vectors.items())
    owners, readers = "\n".join(group.owners), "\n".join(group.readers)
    # Who would add less noise than the others does not come together with them.
    noise = rule.noise and f"{rule.noise.scale:.6g} {rule.noise.reach:.6g}"
    rules = f"{rule.audience} {rule.carry} {rule.bound} {noise} {at[0]} {at[1]}"
    parts = (rules, layout, owners, readers)
    return digest_of(b"secure-fl segment", seen, *(part.encode() for part in parts))


def check_bound(group: Group, rule: Rule) -> None:
    """Refuse values beyond their public bound: they would be clipped without notice."""
    for name, vector in group.vectors.items():
        if rule.bound is not None and np.abs(vector).max(initial=0) > rule.bound:
            raise CryptoError(
                f"{name} holds values beyond the public bound of {rule.bound:g}",
                fix="clip them first, or name a larger bound",
            )


class ClearSum:
    """The party's half: little-endian float32, as federated learning is commonly run."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._groups: Sequence[Group] = ()

    def offer(self, members: Sequence[str]) -> Offer | None:
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

    def seal(self, groups: Sequence[Group], rule: Rule, at: SumId) -> Sealed:
        """Lay the vectors one after the other; float32 leaves nothing over to carry."""
        if rule.noise is not None:
            raise CryptoError(
                "noise belongs under masks: unprotected sums would show every party's own share",
                fix='set protection.mode = "he+secagg"',
            )
        self._groups, parts, segments = groups, [], []
        for group in groups:
            check_bound(group, rule)
            part = b""
            if self.me in group.owners:
                part = b"".join(v.astype("<f4").tobytes() for v in group.vectors.values())
            parts.append(part)
            segments.append(Segment(segment_key(group, rule, at), len(part), len(part) // 4))
        return Sealed(tuple(segments), b"".join(parts))

    def confirm(self, unmask: Unmask) -> Confirm | None:
        """There is no mask to remove."""
        raise CohortError("the coordinator asked for masks that this run does not use")

    def reveal(self, unmask: Unmask, confirmed: Confirmed | None) -> UnmaskShares:
        """There is no mask to remove."""
        raise CohortError("the coordinator asked for masks that this run does not use")

    def open(
        self, data: Sequence[bytes], survivors: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """Cut the totals into the vectors that were sent."""
        opened: dict[str, NDArray[np.float64]] = {}
        for group, part in zip(self._groups, data, strict=False):
            total = np.frombuffer(part, dtype="<f4").astype(np.float64)
            ends = np.cumsum([v.size for v in group.vectors.values()])
            opened |= dict(zip(group.vectors, np.split(total, ends[:-1]), strict=True))
        return opened

    def leftover(self, name: str) -> Vector | None:
        """Float32 leaves nothing over."""
        return None

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        """Nothing is masked."""

    def turn(self) -> None:
        """Nothing is kept between sums."""

    def envelope(self, data: bytes, context: bytes) -> bytes:
        """In the clear."""
        return data

    def unwrap(self, data: bytes, context: bytes) -> bytes:
        """In the clear."""
        return data

    def fingerprint(self, data: bytes, context: bytes) -> bytes:
        """A plain digest."""
        return digest_of(b"secure-fl agree", context, data)

    def vouch(self, statement: bytes) -> bytes:
        """Nobody has keys."""
        return digest_of(b"secure-fl vouch", self.me.encode(), statement)

    def vouched(self, party: str, statement: bytes, proof: bytes) -> bool:
        """Nobody has keys."""
        return proof == digest_of(b"secure-fl vouch", party.encode(), statement)

    def common(self) -> Mapping[str, Any]:
        """Nothing is kept between sums."""
        return {}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Nothing is kept between sums."""

    def state(self) -> Mapping[str, Any]:
        """Nothing is kept between sums."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept between sums."""
