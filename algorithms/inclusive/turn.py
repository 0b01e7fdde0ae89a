"""Lines 5-7 of Algorithm 1: which party is in which tier, and who trains in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_fl.algorithms.inclusive.settings import Ladder
from secure_fl.algorithms.public_coins import sampled
from secure_fl.errors import SettingsError, TooFewParties
from secure_fl.party.cohort import Cohort

NOWHERE = -1  # the place of a party that holds no model


@dataclass(frozen=True, slots=True)
class Turn:
    """Who does what in one round: public, and computed alike by every party."""

    ladder: Ladder  # of the tiers that somebody is in
    members: Mapping[str, tuple[str, ...]]  # tier -> its parties that are still there
    sample: frozenset[str]  # U_t: the parties that train (lines 5-6)
    before: frozenset[str]  # U_{t-1}
    min_cohort: int

    def training(self, tier: str) -> tuple[str, ...]:
        """U_t^j; nobody if these are too few for a sum of their own (the tier sits out)."""
        drawn = tuple(party for party in self.members.get(tier, ()) if party in self.sample)
        return drawn if len(drawn) >= self.min_cohort else ()

    @property
    def trained(self) -> frozenset[str]:
        """All who contribute."""
        return frozenset(party for tier in self.ladder.tiers for party in self.training(tier))

    def present(self, tiers: Sequence[str]) -> tuple[str, ...]:
        """Those of these tiers that contribute in this round."""
        return tuple(tier for tier in tiers if self.training(tier))

    def teachers(self, tier: str) -> tuple[str, ...]:
        """The parties of a tier that trained in the last round and are still there."""
        return tuple(party for party in self.members.get(tier, ()) if party in self.before)


@dataclass(frozen=True)
class Peers:
    """The tiers that somebody is in, and who."""

    ladder: Ladder
    tier_of: Mapping[str, str]

    def turn(
        self, cohort: Cohort, seed: int, round: int, share: float, before: frozenset[str]
    ) -> Turn:
        """What everybody knows of a round."""
        here = [party for party in cohort.parties if party in self.tier_of]
        return Turn(
            self.ladder,
            {t: tuple(p for p in here if self.tier_of[p] == t) for t in self.ladder.tiers},
            sampled(seed, round, here, share, cohort.min_cohort),
            before,
            cohort.min_cohort,
        )


async def meet(cohort: Cohort, tier: str | None, ladder: Ladder) -> Peers:
    """Tell each other the tiers, which who contributes to which sum would show anyway."""
    mine = NOWHERE if tier is None else ladder.tiers.index(tier)
    told = await cohort.share({"tier": np.array([mine])})
    places = {party: int(values["tier"][0]) for party, values in told.items()}
    for party, place in places.items():
        if not NOWHERE <= place < len(ladder.tiers):
            raise SettingsError("this party is in a tier that there is not", party=party)
    found = {p: ladder.tiers[place] for p, place in places.items() if place != NOWHERE}
    return Peers(ladder.only(tuple(found.values())), found)


def require_large(turn: Turn, party: str) -> None:
    """Refuse a tier whose sums would be over too few, before anything is trained."""
    for tier, members in turn.members.items():
        if 0 < len(members) < turn.min_cohort:
            below = turn.ladder.below(tier)
            join = f"give them tier {below!r}, whose model they can hold as well"
            raise TooFewParties(
                f"tier {tier!r} has {len(members)} part{'y' if len(members) == 1 else 'ies'} "
                f"({', '.join(members)}), and a sum of its own would be over these; min_cohort is "
                f"{turn.min_cohort}",
                fix=f"{join if below else 'add parties to this tier, the smallest'}; or lower "
                "protection.min_cohort knowingly: a sum over one hospital IS that hospital",
                party=party,
                field="algorithm.tiers",
            )


class Drawn:
    """U_{t-1}: who trained in the last round."""

    def __init__(self) -> None:
        self.parties: frozenset[str] = frozenset()

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"parties": sorted(self.parties)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.parties = frozenset(state["parties"])
