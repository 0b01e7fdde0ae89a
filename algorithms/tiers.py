"""Which tier a party belongs to: how large a model its hospital can hold.

And the settings by which InclusiveFL and HeteroFL say alike how tiers are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from secure_fl.errors import SettingsError
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort

Share = Annotated[float, Field(gt=0)]
Weights = Literal["users", "samples"]  # what a mean counts


def tier_of(
    cohort: Cohort,
    site: Site,
    tiers: Sequence[str],
    shares: Mapping[str, float] | None = None,
) -> str:
    """The silo's own tier; without one, that of its place among the parties in order of names.

    `shares` say how many parties of each tier there are, as proportions (None: alike). All that
    the run began with count: whoever is lost, the others stay in their tiers.
    """
    if site.silo.tier is not None:
        return _known(site.silo.tier, tiers, site.name)
    shares = dict.fromkeys(tiers, 1.0) if shares is None else shares
    for tier in shares:
        _known(tier, tiers, site.name)
    wanted = {tier: shares[tier] for tier in tiers if tier in shares}
    parties = sorted(party for party in cohort.roster if party != cohort.host)
    return dict(zip(parties, spread(wanted, len(parties)), strict=True))[site.name]


def spread(shares: Mapping[str, float], parties: int) -> list[str]:
    """One tier per party, in the order of the shares; what is left over goes by remainder."""
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
