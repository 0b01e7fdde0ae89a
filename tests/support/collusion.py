"""What a coordinator and colluding parties can work out of one masked sum, with all they hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

import numpy as np

from secure_fl.coordinator.sum_steps import offers_to
from secure_fl.crypto.keys.identity import Channel, Identity
from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.errors import SecureFLError
from secure_fl.protocol.messages import Offer, UnmaskShares

MODULUS = COHORT.modulus
LENGTH = 3
STREAM = StreamId("run", "segment", 1)


def names(n: int) -> tuple[str, ...]:
    return tuple(f"p{i:02d}" for i in range(n))


@cache
def identities(n: int) -> dict[str, Identity]:
    return {name: Identity.generate(name) for name in names(n)}


@cache
def channels(n: int) -> dict[str, dict[str, Channel]]:
    sites = identities(n)
    return {
        a: {b: Channel(sites[a], sites[b].public, b"run") for b in sites if a != b} for a in sites
    }


class MaskedStep:
    """One masked sum of n parties: their secrets, their inputs, and what they sent."""

    def __init__(
        self,
        n: int,
        threshold: int,
        *,
        views: Mapping[str, tuple[str, ...]] | None = None,
        run: str = "run",
        quorum: int | None = None,  # below the threshold: the checks this file attacks are off
    ) -> None:
        self.n, self.names, self.sites = n, names(n), identities(n)
        self.threshold = threshold
        self.numbers = {name: number for number, name in enumerate(self.names, 1)}
        self.run = run
        self.keys = {name: self.keys_of(name) for name in self.names}
        self.offers = {name: keys.offer() for name, keys in self.keys.items()}
        for keys in self.keys.values():  # shares are split; what is left are the checks
            keys.threshold = threshold if quorum is None else quorum
        self.publics = {name: offer.public for name, offer in self.offers.items()}
        self.views = {name: (views or {}).get(name, self.names) for name in self.names}
        for name, keys in self.keys.items():
            keys.accept(self.for_(name, self.views[name]), self.views[name])
        rng = np.random.default_rng(n)
        self.inputs = {
            name: rng.integers(0, MODULUS, LENGTH, dtype=np.uint64) for name in self.names
        }
        self.sent = {name: self._masked(name) for name in self.names}

    def keys_of(self, name: str, ends: Mapping[str, Channel] | None = None) -> StepKeys:
        """Fresh keys of one party."""
        parties, ends = frozenset(self.names), ends or channels(self.n)[name]
        return StepKeys(name, None, self.run, 1, parties, self.numbers, self.threshold, ends)

    def for_(self, name: str, view: Collection[str]) -> dict[str, Offer]:
        """The offers of the parties in view, as the coordinator hands them to this one."""
        return offers_to(name, {p: self.offers[p] for p in self.names if p in view})

    def tell(
        self, gone: Mapping[str, Collection[str]], colluders: Collection[str] = ()
    ) -> dict[str, UnmaskShares]:
        """What each honest party reveals when it is told that these parties are gone.

        Colluders sign every list; honest parties sign the one they were told.
        """
        statements: dict[str, bytes] = {}
        for party, dropped in gone.items():
            survivors = [p for p in self.views[party] if p not in dropped]
            try:
                statements[party] = self.keys[party].settle(survivors, sorted(dropped))
            except SecureFLError:
                continue
        reveals = {}
        cards = {name: site.public for name, site in self.sites.items()}
        for party, statement in statements.items():
            signers = [p for p, other in statements.items() if other == statement]
            signatures = {p: self.sites[p].sign(statement) for p in (*signers, *colluders)}
            try:
                reveals[party] = self.keys[party].reveal(signatures, cards)
            except SecureFLError:
                continue
        return reveals

    def exposed(
        self, colluders: Collection[str], reveals: Mapping[str, UnmaskShares]
    ) -> dict[str, Slots]:
        """The inputs of honest parties that the coordinator and the colluders can compute."""
        keys = self._known(colluders, reveals, "keys")
        seeds = self._known(colluders, reveals, "seeds")
        found = {}
        for party in set(seeds) - set(colluders):
            peers = set(self.views[party]) - {party}
            if party in keys or peers <= set(keys):
                found[party] = self._unmasked(party, peers, seeds[party], keys)
        return found

    def _masked(self, name: str) -> Slots:
        mask = self.keys[name].mask(self.views[name], STREAM, LENGTH, MODULUS, for_host=False)
        return (self.inputs[name] + mask) % np.uint64(MODULUS)

    def _known(
        self, colluders: Collection[str], reveals: Mapping[str, UnmaskShares], kind: str
    ) -> dict[str, bytes]:
        numbers, which = self.numbers, ("keys", "seeds").index(kind)
        shares: dict[str, dict[int, bytes]] = {name: {} for name in self.names}
        for colluder in colluders:
            for party, held in self.keys[colluder]._held.items():
                shares[party][numbers[colluder]] = held[which]
        for holder, reveal in reveals.items():
            for party, share in getattr(reveal, kind).items():
                shares[party][numbers[holder]] = share
        known = {}
        for party, some in shares.items():
            if party in colluders:
                mine = self.keys[party]
                known[party] = mine._mask_seed if kind == "keys" else mine._self_seed
            elif len(some) >= self.threshold:
                known[party] = masking.recover_secret(some, self.threshold)
        return known

    def _unmasked(
        self, party: str, peers: Collection[str], seed: bytes, keys: Mapping[str, bytes]
    ) -> Slots:
        numbers = self.numbers
        secrets = {}
        for peer in peers:
            known, other = (party, peer) if party in keys else (peer, party)
            half = masking.half(keys[known], numbers[other])
            both = half, masking.link(half, self.keys[party].links[peer])
            agreed = masking.agree(masking.mask_key(keys[known]), self.publics[other])
            secrets[numbers[peer]] = masking.pair_secret(agreed, *both)
        plus, minus = masking.pair_keys(numbers[party], secrets, STREAM)
        mask = masking.combine(
            [*plus, masking.stream_key(seed, STREAM, "self")], minus, LENGTH, MODULUS
        )
        return (self.sent[party] + (np.uint64(MODULUS) - mask)) % np.uint64(MODULUS)
