"""The party's half of all protected sums of a run: it begins each, and draws the keys of the next.

`SecureSums.begin` gives a `SumUnderWay` (`sum_under_way`), which owns the keys of that sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.blame.evidence import Bound
from secure_fl.crypto.blame.inquiry import Inquiry
from secure_fl.crypto.keys.identity import PublicIdentity, channel
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.scheme import COHORT, check_cohort
from secure_fl.crypto.sealing.segments import left_between_parts, needs_masks
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.sum_under_way import SumContext, SumUnderWay
from secure_fl.crypto.sealing.transcript import Transcript
from secure_fl.errors import CohortError
from secure_fl.protocol.messages import (
    Audience,
    Offer,
    SumId,
    Told,
)
from secure_fl.protocol.ports import Group, Rule, Vector
from secure_fl.thresholds import require_maskable


class SecureSums:
    """Begins all sums of one run at one party, and draws the keys of the next one."""

    def __init__(
        self,
        keys: PartyKeys,
        run: bytes,
        transcript: Transcript,
        digest_key: bytes,
        *,
        host: str | None,
        threshold: int,
        masks: bool,
    ) -> None:
        members = sorted({keys.identity.name, *keys.peers})
        numbers = {name: number for number, name in enumerate(members, 1)}
        parties = len(members) - (host is not None)
        if keys.cohort is not None:
            check_cohort(COHORT, parties)
        require_maskable(parties)
        self.context = SumContext(
            keys.identity.name, keys, digest_key, transcript, run.hex(), host, numbers, parties
        )
        self._threshold, self._masks = threshold, masks
        self._channels = {
            name: channel(keys.identity, card, b"secure-fl run " + run)
            for name, card in keys.peers.items()
            if masks and name != keys.identity.name
        }
        self._index = 0  # sums are counted from 1
        self._keys: StepKeys | None = None  # of the sum that begins next
        self._drawn: StepKeys | None = None  # offered, and not yet answered
        self.sent = b""  # what was sent of the sum that began last
        self._bounds: Mapping[str, Bound] | None = None  # of those who began it

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> SumUnderWay:
        """Encode, noise, tag, mask and encrypt every group, with keys that serve this sum alone."""
        if rule.audience == Audience.HOST and not self._masks:
            raise needs_masks()
        keys, self._keys = self._keys, None
        if self._masks and keys is None:
            raise CohortError("no keys are left for this sum", party=self.context.me)
        self._index += keys is None  # with masks, the keys' exchange has counted this sum
        index = self._index if keys is None else keys.index
        under_way = SumUnderWay(self.context, index, keys, groups, rule, at)
        self.sent = under_way.upload.data
        self._bounds = None if keys is None else keys.bounds
        return under_way

    def inquiry(self, coordinator: PublicIdentity) -> Inquiry | None:
        """A look at the sum that began last; None without masks, where uploads are values."""
        if self._bounds is None:
            return None
        context = self.context
        return Inquiry(context.keys, coordinator, context.me, context.host, self._bounds)

    # --- keys of the next sum -------------------------------------------------------------------

    def next_keys(self, members: Sequence[str], told: Told | None = None) -> Offer | None:
        """Draw the next sum's keys, and seal them under what this party was told last."""
        if not self._masks:
            return None
        context = self.context
        if context.me not in members or not set(members) <= set(context.numbers):
            raise CohortError(
                "the coordinator names other members than the roster", party=context.me
            )
        self._index += 1
        self._drawn = StepKeys(
            context.keys.identity,
            context.keys.peers,
            context.host,
            context.run,
            self._index,
            frozenset(members) - {context.host},
            context.numbers,
            self._threshold,
            self._channels,
        )
        return self._drawn.offer(told)

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Take the other members' keys for the next sum."""
        self._keys, self._drawn = self._drawn, None
        if self._keys is not None:
            others = {party: offer for party, offer in offers.items() if party != self.context.me}
            self._keys.accept(others, members)

    # --- scales ---------------------------------------------------------------------------------

    def unscaled(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        """The norms of vectors whose scale nobody knows yet."""
        return self.context.transcript.scales.unknown(groups, rule)

    def learn(self, sums: Mapping[str, NDArray[np.float64]]) -> None:
        """Take the scales out of the sum of those norms."""
        self.context.transcript.scales.learn(sums)

    def forget(self, names: Sequence[str]) -> None:
        """Drop scales that other parties to these sums do not know."""
        for name in names:
            self.context.transcript.scales.rms.pop(name, None)

    def postpone(self, groups: Sequence[Group], rule: Rule) -> dict[str, NDArray[np.float64]]:
        """Zeros in place of sums that were not opened; what is carried is left over, whole."""
        if not rule.carry:
            raise left_between_parts(self.context.me)
        scales, zeros = self.context.transcript.scales, dict[str, NDArray[np.float64]]()
        for group in groups:
            for name, vector in group.vectors.items():
                zeros[name] = np.zeros(vector.size)
                if self.context.me in group.owners:
                    scales.leftovers[name] = scales.whole(name, vector, rule)
        return zeros

    def leftover(self, name: str) -> Vector | None:
        """What the last carried value of this name left over, for the caller to carry instead."""
        return self.context.transcript.scales.leftovers.pop(name, None)
