"""The masks that do not cancel in a sum: self masks, and what survivors masked with the lost.

Bonawitz et al., CCS 2017. Both follow from seeds, which the coordinator recovers from the shares
that survivors reveal, and which their owners are bound to since they dealt the shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from secure_fl.crypto import masking, sharing
from secure_fl.crypto.masking import Slots, StreamId
from secure_fl.crypto.primitives import commit
from secure_fl.errors import CryptoError
from secure_fl.protocol.messages import Lost, Offer, UnmaskShares


@dataclass(frozen=True, slots=True)
class RemainingMasks:
    """The seeds of the masks that are left in one sum.

    `numbers`: every member of the run, numbered from 1 in order of names. `publics`: the mask keys.
    `selves`: seeds of the survivors' self masks; `gone`: of the mask keys of those who were lost.
    """

    numbers: Mapping[str, int]
    publics: Mapping[str, bytes]
    selves: Mapping[str, bytes]
    gone: Mapping[str, bytes]

    @classmethod
    def recovered(
        cls,
        numbers: Mapping[str, int],
        threshold: int,
        offers: Mapping[str, Offer],  # of all who began the sum
        survivors: Collection[str],
        shares: Mapping[str, UnmaskShares],  # what survivors revealed, by holder
        step: tuple[str, int],  # the run, the sum's number
    ) -> RemainingMasks:
        """Recover the seeds, and refuse those that their owners are not bound to."""
        seeds: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
        for party, offer in offers.items():
            alive = party in survivors
            about = {n: s.seeds if alive else s.keys for n, s in shares.items()}
            held = {
                numbers[n]: revealed[party] for n, revealed in about.items() if party in revealed
            }
            try:
                secret = sharing.combine(held, threshold)
                bound = (
                    commit(secret, *step, party) == offer.seed
                    if alive
                    else masking.public_key(secret) == offer.public
                )
            except CryptoError as error:
                raise error.at(party=party) from error
            if not bound:  # each share is one that it dealt
                raise CryptoError("what this party dealt are no shares of its secrets", party=party)
            seeds[not alive][party] = secret
        return cls(numbers, {p: offer.public for p, offer in offers.items()}, *seeds)

    def own(self, owners: Collection[str], stream: StreamId, length: int, modulus: int) -> Slots:
        """The self masks of these in one segment's sum, added up."""
        keys = [masking.stream_key(self.selves[party], stream, "self") for party in owners]
        return masking.combine(keys, [], length, modulus)

    def shared(
        self,
        owners: Collection[str],  # of the segment, as the parties counted on them
        salts: Mapping[str, Mapping[str, bytes]],  # by contributor, of its masks with the lost
        stream: StreamId,
        length: int,
        modulus: int,
    ) -> Slots:
        """What contributors masked with those of the owners who were lost, added up."""
        plus, minus = list[bytes](), list[bytes]()
        for gone, seed in self.gone.items():
            if gone not in owners:
                continue
            mask_key = masking.mask_key(seed)
            pairs = {
                self.numbers[party]: masking.agree(mask_key, self.publics[party])
                + salted.get(gone, b"")
                for party, salted in salts.items()
            }
            # The dropped party's view of a pair, sign turned round: what its peer had added.
            theirs, ours = masking.pair_keys(self.numbers[gone], pairs, stream)
            plus += ours
            minus += theirs
        if not plus and not minus:
            return np.zeros(length, np.uint64)
        return masking.combine(plus, minus, length, modulus)


def salts_with(
    lost: Mapping[str, Lost], place: int, owners: Collection[str]
) -> dict[str, dict[str, bytes]]:
    """The salts that contributors to a segment, by its place, used for masks with the lost."""
    told = {gone: one.salts[place] for gone, one in lost.items() if place < len(one.salts)}
    return {
        party: {gone: by[party] for gone, by in told.items() if party in by} for party in owners
    }
