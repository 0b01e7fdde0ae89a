"""Tiers and participants: each party's tier, and the parties that train in a round (lines 5-7)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from secure_fl.algorithms.inclusivefl.ladder import Ladder
from secure_fl.algorithms.public_coins import sampled
from secure_fl.errors import SettingsError, TooFewParties
from secure_fl.party.cohort import Cohort

if TYPE_CHECKING:
    from secure_fl.algorithms.layers import Part
    from secure_fl.learning.site import Site

FIRST = "parties"  # the name of the parties at the first start, in checkpoints
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
        """U_t^j; empty if these are too few for a sum of their own (the tier skips the round).

        A small tier never has a sum of its own, so it trains in any number.
        """
        drawn = tuple(party for party in self.members.get(tier, ()) if party in self.sample)
        return drawn if len(drawn) >= self.min_cohort or self.small(tier) else ()

    def small(self, tier: str) -> bool:
        """Return True if a tier has too few members for a sum of its own."""
        return len(self.members.get(tier, ())) < self.min_cohort

    def group(self, part: Part, tier: str) -> tuple[str, ...]:
        """List the tiers whose values of a part are summed with this tier's."""
        sharers = self.ladder.sharers(part)
        return sharers if tier in sharers else (tier,)

    def owners(self, part: Part, tier: str) -> tuple[str, ...]:
        """List the parties of these tiers."""
        return tuple(sorted(p for t in self.group(part, tier) for p in self.members.get(t, ())))

    def stays(self, part: Part, tier: str) -> bool:
        """Return True if a part has too few owners for a sum: each trains its own."""
        return len(self.owners(part, tier)) < self.min_cohort

    def summed(self, part: Part, tier: str) -> bool:
        """Return True if enough of a part's owners train in this round."""
        training = sum(len(self.training(other)) for other in self.group(part, tier))
        return training >= self.min_cohort

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


def of_tiers(ladder: Ladder, tiers: Mapping[str, str], min_cohort: int) -> Participants:
    """Return the parties of these tiers, all of which train."""
    ladder = ladder.only(tuple(tiers.values()))
    members = {t: tuple(p for p in sorted(tiers) if tiers[p] == t) for t in ladder.tiers}
    return Participants(ladder, members, frozenset(tiers), frozenset(), min_cohort)


def require_large_tiers(who: Participants, party: str | None) -> None:
    """Refuse a tier with too few members for a sum, before any training."""
    for tier, members in who.members.items():
        if members and who.small(tier):
            several = len(who.ladder.tiers) > 1
            raise too_few(
                who,
                tier,
                f"fewer than min_cohort ({who.min_cohort}), and a tier's sum is over its own "
                "members",
                'set algorithm.server_optimizer = "linear", whose sums are over several tiers'
                if several
                else "add parties to this tier",
                party,
            )


def require_shared_layers(who: Participants, party: str | None, parts: Collection[Part]) -> None:
    """Refuse a tier that would share no layer with enough parties, before any training.

    `parts`: the trained parts of this party's model; only its embeddings matter here.
    """
    for tier, members in who.members.items():
        layers = who.ladder.parts(tier, embeddings="embeddings" in parts)
        if members and all(who.stays(part, tier) for part in layers):
            raise too_few(
                who,
                tier,
                f"and shares no layer with min_cohort ({who.min_cohort}) hospitals: a tier shares "
                "the layers below its last one",
                "give the tiers more layers in algorithm.tiers",
                party,
            )


def too_few(who: Participants, tier: str, why: str, fix: str, party: str | None) -> TooFewParties:
    """Make the error about a tier with too few members."""
    members, below = who.members[tier], who.ladder.below(tier)
    join = f"; or give them tier {below!r}, whose model they can hold too" if below else ""
    return TooFewParties(
        f"tier {tier!r} has {len(members)} part{'y' if len(members) == 1 else 'ies'} "
        f"({', '.join(members)}), {why}",
        fix=f"{fix}{join}; or lower protection.min_cohort knowingly: a sum over one hospital IS "
        "that hospital",
        party=party,
        field="algorithm.tiers",
    )


def sharing(who: Participants, *, embeddings: bool, output: bool = True) -> list[dict[str, Any]]:
    """List the parts of the models, and the parties over which each is summed.

    Layers are counted from 1. "output": pooler and head.
    """
    parts: tuple[Any, ...] = who.ladder.parts(who.ladder.tiers[-1], embeddings=embeddings)
    parts += ("output",) if output else ()
    names = [f"layer {part + 1}" if isinstance(part, int) else part for part in parts]
    found = [_sums_of(who, "head" if part == "output" else part) for part in parts]
    return [{"part": name, **sums} for name, sums in zip(names, found, strict=True)]


def in_words(layers: Sequence[Mapping[str, Any]]) -> str:
    """Describe shared and local parts in a sentence for each kind."""
    kinds: dict[str, list[str]] = {}
    for one in layers:
        for group in one["sums"]:
            kinds.setdefault(f"summed over {', '.join(group)}", []).append(one["part"])
        if one["stay"]:
            kinds.setdefault(f"kept at {', '.join(one['stay'])}", []).append(one["part"])
    return "; ".join(f"{', '.join(parts)}: {kind}" for kind, parts in kinds.items())


def _sums_of(who: Participants, part: Part) -> dict[str, list[Any]]:
    """List the groups of parties that sum a part, and the parties at which it stays."""
    sums: set[tuple[str, ...]] = set()
    stay: set[str] = set()
    for tier, members in who.members.items():
        if isinstance(part, int) and part >= who.ladder.depths[tier]:
            continue
        if who.stays(part, tier):
            stay.update(members)
        else:
            sums.add(who.owners(part, tier))
    return {"sums": [list(group) for group in sorted(sums)], "stay": sorted(stay)}


def first_parties(cohort: Cohort) -> dict[str, list[str]]:
    """Return the parties at the first start of the run, for its checkpoints."""
    here = [party for party in cohort.roster if party != cohort.host]
    return cohort.saved(FIRST) or {"names": here}


def tier_of(
    cohort: Cohort, site: Site, tiers: Sequence[str], shares: Mapping[str, float] | None = None
) -> str:
    """Return the silo's own tier, or by default the tier of its place in the order of names.

    Places count all parties at the first start of the run, so neither a dropout nor a resumed run
    without some of them changes others' tiers.
    """
    parties = dict.fromkeys(first_parties(cohort)["names"])
    return tiers_of({**parties, site.name: site.silo.tier}, tiers, shares)[site.name]


def tiers_of(
    given: Mapping[str, str | None], tiers: Sequence[str], shares: Mapping[str, float] | None = None
) -> dict[str, str]:
    """Return the tier of each party: its own, or by default that of its place among the names.

    `shares` are the proportions of parties in each tier (None: equal).
    """
    shares = dict.fromkeys(tiers, 1.0) if shares is None else shares
    if placed := [name for name, own in given.items() if own is None]:
        for tier in shares:
            _known(tier, tiers, placed[0])
    ordered = {tier: shares[tier] for tier in tiers if tier in shares}
    by_place = dict(zip(sorted(given), spread(ordered, len(given)), strict=True)) if placed else {}
    return {
        name: by_place[name] if own is None else _known(own, tiers, name)
        for name, own in given.items()
    }


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
