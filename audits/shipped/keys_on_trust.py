"""Swaps keys where a party trusts them: the swapper gets its input without masks.

One masked sum of three parties at the level of `crypto.step_keys`. The coordinator tells one party
a key of its own in place of all others' keys; a party that believes it masks with streams that the
coordinator can draw too. Its self mask comes off in every sum, by the shares that the others hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from secure_fl.audits.shipped.tricks import swapped
from secure_fl.crypto import masking, sharing
from secure_fl.crypto.identity import Identity, channel
from secure_fl.crypto.masking import StreamId
from secure_fl.crypto.scheme import COHORT
from secure_fl.crypto.step_keys import StepKeys
from secure_fl.errors import SecureFLError
from secure_fl.protocol.messages import Offer

NAMES, RUN, LENGTH, THRESHOLD = ("a", "b", "c"), "audit", 16, 2
STREAM = StreamId(RUN, "segment", 1)
VICTIM = NAMES[0]


class OnTrust(StepKeys):
    """Planted: a party that believes whatever keys it is told."""

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Take the keys without opening what the others sealed for this party."""
        self._members = frozenset(members)
        self._publics.update({party: offer.public for party, offer in offers.items()})


def input_read(keys_of_victim: type[StepKeys], *, swap: bool) -> tuple[bool, str]:
    """Play it; whether the coordinator reads the victim's input, and the error that stopped it."""
    step, seed = _Step(keys_of_victim), masking.new_seed()
    told = step.told(VICTIM)
    if swap:
        told = swapped(told, masking.public_key(seed))
    try:
        step.keys[VICTIM].accept(told, NAMES)
        sent = step.send(VICTIM)
    except SecureFLError as error:
        return False, error.code
    for party in NAMES[1:]:
        step.keys[party].accept(step.told(party), NAMES)
    guess = step.unmask(sent, seed)
    return bool(np.array_equal(guess, step.input)), ""


class _Step:
    """Keys of one sum, the victim's input, and the coordinator's attempt to read it."""

    def __init__(self, keys_of_victim: type[StepKeys]) -> None:
        sites = {name: Identity.generate(name) for name in NAMES}
        self.numbers = {name: number for number, name in enumerate(NAMES, 1)}
        self.keys = {}
        for name in NAMES:
            peers = {p: channel(sites[name], sites[p].public, b"audit") for p in NAMES if p != name}
            make = keys_of_victim if name == VICTIM else StepKeys
            self.keys[name] = make(
                name, None, RUN, 1, frozenset(NAMES), self.numbers, THRESHOLD, peers
            )
        self.offers = {name: keys.offer() for name, keys in self.keys.items()}
        self.input = np.arange(LENGTH, dtype=np.uint64)

    def told(self, name: str) -> dict[str, Offer]:
        """What a party is told of the others."""
        others = {p: offer for p, offer in self.offers.items() if p != name}
        return {p: Offer(o.public, {name: o.shares[name]}) for p, o in others.items()}

    def send(self, name: str) -> masking.Slots:
        """The party's input under its masks."""
        mask = self.keys[name].mask(NAMES, STREAM, LENGTH, COHORT.modulus, for_host=False)
        return (self.input + mask) % np.uint64(COHORT.modulus)

    def unmask(self, sent: masking.Slots, seed: bytes) -> masking.Slots:
        """Take off the masks of the coordinator's own key, and the self mask by others' shares."""
        mine = masking.mask_key(seed)
        secret = masking.agree(mine, self.offers[VICTIM].public)
        pairs = {self.numbers[p]: secret for p in NAMES if p != VICTIM}
        plus, minus = masking.pair_keys(self.numbers[VICTIM], pairs, STREAM)
        plus.append(masking.self_key(self._self_seed([p for p in NAMES if p != VICTIM]), STREAM))
        mask = masking.combine(plus, minus, LENGTH, COHORT.modulus)
        modulus = np.uint64(COHORT.modulus)
        return (sent + (modulus - mask)) % modulus

    def _self_seed(self, holders: Collection[str]) -> bytes:
        """Recover the victim's self mask from the shares that the others reveal after every sum."""
        shares = {}
        for name in holders:
            self.keys[name].settle(NAMES, ())
            shares[self.numbers[name]] = self.keys[name].reveal({}, {}).seeds[VICTIM]
        return sharing.combine(shares, THRESHOLD)
