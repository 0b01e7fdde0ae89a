"""Both halves of protected sums in one process, without a wire."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secure_fl.coordinator.sum_steps import CoordinatorRules, offers_to
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress, SecureSums
from secure_fl.federation.assembly import make_keys, privacy_layer
from secure_fl.protocol.messages import Audience, Offer, Unmask, UnmaskShares
from secure_fl.protocol.ports import BlindTotal, Group, OfferedKeys, Rule, TotalFor
from secure_fl.settings import ProtectionSettings
from secure_fl.thresholds import default_threshold

HOST = "host"


@dataclass(slots=True)
class Halves:
    """One run of sums: the half of every party, and the coordinator's."""

    protection: ProtectionSettings
    parties: Sequence[str]
    host: str | None = None
    keys: Mapping[str, PartyKeys] = field(default_factory=dict)  # drawn where none are given
    sums: dict[str, SecureSums] = field(default_factory=dict, init=False)
    offers: dict[str, Offer] = field(default_factory=dict, init=False)
    _total_for: TotalFor = field(init=False)

    def __post_init__(self) -> None:
        run = os.urandom(16)
        rules = CoordinatorRules(self.host, 2, default_threshold(len(self.parties)))
        self.keys = self.keys or make_keys(self.protection.mode, self.members, self.host)
        for seed, name in enumerate(self.members):
            half = privacy_layer(self.protection, self.keys[name], rules, run=run, seed=seed).sums
            assert isinstance(half, SecureSums)  # noqa: S101 - mode none is measured elsewhere
            self.sums[name] = half
        self._total_for = blind_totals(
            self.protection, self.members, host=self.host, threshold=rules.threshold, run=run
        )

    @property
    def members(self) -> tuple[str, ...]:
        """The parties, and the host if there is one."""
        return (*self.parties, *([self.host] if self.host else []))

    def offer(self, party: str) -> None:
        """Draw a party's keys of the next sum."""
        offer = self.sums[party].next_keys(self.members)
        if offer is not None:
            self.offers[party] = offer

    def accept(self, party: str) -> None:
        """Pass the others' keys to a party."""
        self.sums[party].accept(offers_to(party, self.offers), self.members)

    def total(self, audience: Audience) -> BlindTotal:
        """Begin a sum at the coordinator."""
        return self._total_for(audience, OfferedKeys(self.members, self.offers, 1))

    def reveal(self, under_way: SecureSumInProgress) -> UnmaskShares:
        """Reveal a party's shares when no party dropped out."""
        under_way.settle(Unmask(self.members, (), sum=under_way.upload.sum))
        return under_way.shares(None)

    def teach(self, groups: Mapping[str, Sequence[Group]], rule: Rule) -> None:
        """Give all parties the scales that a first sum of norms gives."""
        norms: dict[str, NDArray[np.float64]] = {}
        for name in self.parties:
            for group in self.sums[name].context.transcript.scales.unknown(groups[name], rule):
                for vector, norm in group.vectors.items():
                    norms[vector] = norms.get(vector, np.zeros(1)) + norm
        for half in self.sums.values():
            half.context.transcript.scales.learn(norms)
