"""At the coordinator: from revealed shares to what is left of the masks in a sum.

Bonawitz et al., CCS 2017: a survivor's self mask is still in the sum, and so are the masks that
survivors shared with parties that dropped out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from secure_fl.crypto import masking, sharing
from secure_fl.crypto.circle import Circle
from secure_fl.crypto.masking import Place, Slots
from secure_fl.crypto.seen import salt_of
from secure_fl.errors import CryptoError
from secure_fl.protocol.messages import Salt, UnmaskShares


def unmasking(
    circle: Circle,
    run_keys: Mapping[str, bytes],
    survivors: Sequence[str],
    reveals: Mapping[str, UnmaskShares],
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """At the coordinator: the survivors' self seeds and the dropped parties' mask seeds."""
    seeds = _shares(circle, {holder: reveal.seeds for holder, reveal in reveals.items()})
    selves = {p: _recover(circle, p, seeds) for p in survivors}
    touched = {q for p in survivors for q in circle.neighbours[p]} & set(run_keys)
    halves = _shares(circle, {holder: reveal.keys for holder, reveal in reveals.items()})
    keys = {p: _recover(circle, p, halves) for p in sorted(touched - set(survivors))}
    for party, seed in keys.items():
        if masking.public_key(seed) != run_keys[party]:
            raise CryptoError("the shares of a dropped party's key are wrong", party=party)
    return selves, keys


def _shares(
    circle: Circle, reveals: Mapping[str, Mapping[str, bytes]]
) -> dict[str, dict[int, bytes]]:
    """What was revealed, by the party it is about, then by its holder's number."""
    found: dict[str, dict[int, bytes]] = {}
    for holder, shares in reveals.items():
        for party, share in shares.items():
            found.setdefault(party, {})[circle.numbers[holder]] = share
    return found


def _recover(circle: Circle, party: str, shares: Mapping[str, Mapping[int, bytes]]) -> bytes:
    try:
        return sharing.combine(shares.get(party, {}), circle.shares_needed(party))
    except CryptoError as error:
        raise error.at(party=party) from error


def remaining_masks(
    circle: Circle,
    selves: Mapping[str, bytes],
    keys: Mapping[str, bytes],
    publics: Mapping[str, bytes],
    owners: Sequence[str],
    salts: Mapping[str, Sequence[Salt]],
    place: Place,
    length: int,
    modulus: int,
) -> Slots:
    """What is left of the masks in a sum over the surviving owners, to be subtracted.

    `salts`: what each of them salted its mask with a peer with.
    """
    plus = [masking.self_key(selves[p], place) for p in owners]
    minus: list[bytes] = []
    among = set(owners)
    for gone, seed in keys.items():
        mask_key = masking.mask_key(seed)
        pairs = {
            circle.numbers[p]: masking.salted(
                masking.agree(mask_key, publics[p]), salt_of(salts.get(p, ()), gone)
            )
            for p in circle.neighbours[gone]
            if p in among
        }
        # The dropped party's view of a pair, with the sign turned round: what its peer had added.
        theirs, ours = masking.pair_keys(circle.numbers[gone], pairs, place)
        plus += ours
        minus += theirs
    return masking.combine(plus, minus, length, modulus) if length else np.zeros(0, np.uint64)
