"""Tiers and participants: each party's tier, and the parties that train in a round (lines 5-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from secure_fl.algorithms.inclusivefl.settings import Ladder
from secure_fl.algorithms.public_coins import sampled
from secure_fl.errors import SettingsError, TooFewParties
from secure_fl.party.cohort import Cohort

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

NO_TIER = -1  # the index of a party that holds no model


@dataclass(frozen=True, slots=True)
class Participants:
    """The parties of one round: public, and computed alike by every party."""

    ladder: Ladder  # of the tiers that have members
    members: Mapping[str, tuple[str, ...]]  # tier -> its parties that have not dropped out
    sample: frozenset[str]  # U_t: the parties that train (lines 5-6)
    before: frozenset[str]  # U_{t-1}
    min_cohort: int

    def training(self, tier: str) -> tuple[str, ...]:
        """U_t^j; empty if these are too few for a sum of their own (the tier skips the round)."""
        drawn = tuple(party for party in self.members.get(tier, ()) if party in self.sample)
        return drawn if len(drawn) >= self.min_cohort else ()

    @property
    def contributing(self) -> list[str]:
        """All parties that contribute to a sum, in order."""
        return sorted(party for tier in self.ladder.tiers for party in self.training(tier))

    def present(self, tiers: Sequence[str]) -> tuple[str, ...]:
        """Select the tiers that contribute in this round."""
        return tuple(tier for tier in tiers if self.training(tier))

    def teachers(self, tier: str) -> tuple[str, ...]:
        """List a tier's parties that trained in the last round and have not dropped out."""
        return tuple(party for party in self.members.get(tier, ()) if party in self.before)


@dataclass(frozen=True)
class TierMembers:
    """The tier of each party, and the ladder of the tiers that have members."""

    ladder: Ladder
    tier_of: Mapping[str, str]

    def draw(
        self, cohort: Cohort, seed: int, round: int, share: float, before: Iterable[str]
    ) -> Participants:
        """Draw a round's participants from public randomness."""
        here = [party for party in cohort.parties if party in self.tier_of]
        return Participants(
            self.ladder,
            {t: tuple(p for p in here if self.tier_of[p] == t) for t in self.ladder.tiers},
            sampled(seed, round, here, share, cohort.min_cohort),
            frozenset(before),
            cohort.min_cohort,
        )


async def exchange_tiers(cohort: Cohort, tier: str | None, ladder: Ladder) -> TierMembers:
    """Exchange the parties' tiers, which the contributors of each sum would reveal anyway."""
    mine = NO_TIER if tier is None else ladder.tiers.index(tier)
    shared = await cohort.share({"tier": np.array([mine])})
    indices = {party: int(values["tier"][0]) for party, values in shared.items()}
    for party, index in indices.items():
        if not NO_TIER <= index < len(ladder.tiers):
            raise SettingsError(f"this party sent the tier index {index}", party=party)
    tiers = {p: ladder.tiers[index] for p, index in indices.items() if index != NO_TIER}
    return TierMembers(ladder.only(tuple(tiers.values())), tiers)


def require_large_tiers(who: Participants, party: str) -> None:
    """Refuse a tier with too few members for a sum, before any training."""
    for tier, members in who.members.items():
        if 0 < len(members) < who.min_cohort:
            below = who.ladder.below(tier)
            join = f"give them tier {below!r}, whose model they can hold too"
            raise TooFewParties(
                f"tier {tier!r} has {len(members)} part{'y' if len(members) == 1 else 'ies'} "
                f"({', '.join(members)}), fewer than min_cohort ({who.min_cohort}), and a tier's "
                "sum is over its own members",
                fix=f"{join if below else 'add parties to this tier, the smallest'}; or lower "
                "protection.min_cohort knowingly: a sum over one hospital IS that hospital",
                party=party,
                field="algorithm.tiers",
            )


def tier_of(
    cohort: Cohort,
    site: Site,
    tiers: Sequence[str],
    shares: Mapping[str, float] | None = None,
) -> str:
    """Return the silo's own tier, or by default the tier of its place in the order of names.

    `shares` are the proportions of parties in each tier (None: equal). They count all parties at
    the start of the run, so a dropout does not change the tiers of others.
    """
    if site.silo.tier is not None:
        return _known(site.silo.tier, tiers, site.name)
    shares = dict.fromkeys(tiers, 1.0) if shares is None else shares
    for tier in shares:
        _known(tier, tiers, site.name)
    ordered = {tier: shares[tier] for tier in tiers if tier in shares}
    parties = sorted(party for party in cohort.roster if party != cohort.host)
    return dict(zip(parties, spread(ordered, len(parties)), strict=True))[site.name]


def spread(shares: Mapping[str, float], parties: int) -> list[str]:
    """List one tier per party, in the order of the shares, by largest remainders."""
    total = sum(shares.values())
    exact = {tier: parties * share / total for tier, share in shares.items()}
    counts = {tier: int(value) for tier, value in exact.items()}
    by_remainder = sorted(exact, key=lambda tier: counts[tier] - exact[tier])
    for tier in by_remainder[: parties - sum(counts.values())]:
        counts[tier] += 1
    return [tier for tier, count in counts.items() for _ in range(count)]


def _known(tier: str, tiers: Sequence[str], party: str) -> str:
    if tier not in tiers:
        raise SettingsError(
            f"there is no tier {tier!r}",
            fix=f"choose one of {', '.join(tiers)}, or add it to the algorithm's tiers",
            party=party,
            field="tier",
        )
    return tier
