"""At the coordinator: from revealed shares to what is left of the masks in a sum.

Bonawitz et al., CCS 2017: a survivor's self mask is still in the sum, and so are the masks that
survivors shared with parties that dropped out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from secure_fl.crypto import masking, sharing
from secure_fl.crypto.masking import Slots, StreamId
from secure_fl.crypto.seen import salt_of
from secure_fl.errors import CryptoError
from secure_fl.protocol.messages import Salt, UnmaskShares


@dataclass(frozen=True, slots=True)
class RemainingMasks:
    """The seeds of the masks that do not cancel, recovered from the survivors' shares."""

    numbers: Mapping[str, int]  # every member of the run, numbered from 1 in order of names
    publics: Mapping[str, bytes]  # the mask keys of all who began the sum
    selves: Mapping[str, bytes] = field(repr=False)  # the survivors' self seeds
    gone: Mapping[str, bytes] = field(repr=False)  # the dropped parties' mask seeds

    @classmethod
    def recover(
        cls,
        numbers: Mapping[str, int],
        threshold: int,
        publics: Mapping[str, bytes],
        survivors: Sequence[str],
        shares: Mapping[str, UnmaskShares],
    ) -> RemainingMasks:
        """Combine what the survivors revealed, by holder."""
        seeds = {numbers[holder]: shared.seeds for holder, shared in shares.items()}
        keys = {numbers[holder]: shared.keys for holder, shared in shares.items()}
        selves = {party: _recovered(party, threshold, seeds) for party in survivors}
        dropped = sorted(set(publics) - set(survivors))
        gone = {party: _recovered(party, threshold, keys) for party in dropped}
        for party, seed in gone.items():
            if masking.public_key(seed) != publics[party]:
                raise CryptoError("the shares of a dropped party's key are wrong", party=party)
        return cls(numbers, publics, selves, gone)

    def masks(
        self,
        owners: Sequence[str],  # of the segment, as the parties counted on them
        salts: Mapping[str, Sequence[Salt]],  # of the masks of all whose input is in the segment
        stream: StreamId,
        length: int,
        modulus: int,
    ) -> Slots:
        """What is left of the masks in one segment's sum, to be subtracted."""
        plus = [masking.self_key(self.selves[party], stream) for party in salts]
        minus: list[bytes] = []
        for gone, seed in self.gone.items():
            if gone not in owners:
                continue
            mask_key = masking.mask_key(seed)
            pairs = {
                self.numbers[party]: masking.salted(
                    masking.agree(mask_key, self.publics[party]), salt_of(salted, gone)
                )
                for party, salted in salts.items()
            }
            # The dropped party's view of a pair, sign turned round: what its peer had added.
            theirs, ours = masking.pair_keys(self.numbers[gone], pairs, stream)
            plus += ours
            minus += theirs
        return masking.combine(plus, minus, length, modulus) if length else np.zeros(0, np.uint64)


def _recovered(party: str, threshold: int, shares: Mapping[int, Mapping[str, bytes]]) -> bytes:
    """One party's secret, from the shares of it by the numbers of their holders."""
    held = {number: about[party] for number, about in shares.items() if party in about}
    try:
        return sharing.combine(held, threshold)
    except CryptoError as error:
        raise error.at(party=party) from error
