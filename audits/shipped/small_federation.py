"""A federation of four parties in this process that only sums, under a coordinator that may lie.

Sessions, links, coordinator and sums are the installed program's; the lies are `lying`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from secure_fl.audits.shipped.lying import LyingEngine, LyingTotals, Trick
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.step import Rules
from secure_fl.coordinator.totals import blind_totals
from secure_fl.crypto.party_keys import PartyKeys
from secure_fl.errors import SecureFLError
from secure_fl.federation.assembly import COORDINATOR, connect, join_run
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.link import Link
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold

PARTIES = ("east", "north", "south", "west")
COLLUDER = PARTIES[1]  # within the bound of four parties that need three
SUMS, SIZE, BOUND = 2, 20, 16.0
CLOSE = 0.01  # of a right result: 16-bit values

Summed = tuple[tuple[str, ...], dict[str, list[float]]]  # over whom, and what


@dataclass(slots=True)
class Outcome:
    """What the parties got, and who noticed something."""

    results: dict[str, list[Summed]] = field(default_factory=dict)
    noticed: dict[str, str] = field(default_factory=dict)  # who -> the error's code

    @property
    def accepted(self) -> bool:
        """Whether any party took something wrong for its result."""
        return any(not right(found) for found in self.results.values())

    @property
    def clean(self) -> bool:
        """Whether every party has the right sums, and nobody complains."""
        return set(self.results) == set(PARTIES) and not self.accepted and not self.noticed


@dataclass(frozen=True, slots=True)
class Setting:
    """How the small federation is protected, with keys that many runs share."""

    mode: Protection
    keys: Mapping[str, PartyKeys]
    link: type[Link] = Link

    @classmethod
    def of(cls, mode: Protection, link: type[Link] = Link) -> Setting:
        """Draw keys for this mode."""
        return cls(mode, make_keys(mode, PARTIES, None), link)


def given(party: str, index: int) -> dict[str, float]:
    """The constants that a party's vectors hold in a sum; the last party has no "some"."""
    rank = PARTIES.index(party) + 1
    return {"all": rank + index} | ({"some": rank / 2.0} if party != PARTIES[-1] else {})


def right(found: Sequence[Summed]) -> bool:
    """Whether these are the true sums over all parties."""
    if len(found) != SUMS:
        return False
    for index, (survivors, values) in enumerate(found):
        for name, vector in values.items():
            total = sum(given(p, index).get(name, 0.0) for p in PARTIES)
            if len(vector) != SIZE or max(abs(value - total) for value in vector) > CLOSE:
                return False
        if survivors != PARTIES:
            return False
    return True


def play(setting: Setting, trick: Trick) -> Outcome:
    """Run the federation under a trick."""
    out = Outcome()
    rules = Rules(None, 2, default_threshold(len(PARTIES)))
    protection = ProtectionSettings(mode=setting.mode, bits=16, min_cohort=2)
    wires = connect(setting.keys, link=setting.link)

    async def program(cohort: Cohort) -> None:
        out.results[cohort.me] = await _sums(cohort)

    sessions = {
        name: join_run(program, setting.keys[name], link, rules, protection)
        for name, link in wires.parties.items()
    }
    totals = LyingTotals(blind_totals(protection, PARTIES, rules, wires.run), trick)
    engine = LyingEngine(sessions, wires.coordinator, trick)
    trick.conspire(setting.keys[COLLUDER], wires.run)
    lax = replace(rules, min_cohort=1)  # its own checks are not what parties rely on
    try:
        lead_run(wires.coordinator, engine, lax, protection, totals=totals.new).run()
    except SecureFLError as error:
        out.noticed[COORDINATOR] = error.code
    refused = {n: s.error.code for n, s in sessions.items() if s.error and not s.stopped}
    # the coordinator only stops because a party did
    out.noticed = refused | engine.refused or out.noticed
    return out


async def _sums(cohort: Cohort) -> list[Summed]:
    found: list[Summed] = []
    for index in range(SUMS):
        mine = given(cohort.me, index)
        values = {name: np.full(SIZE, value, np.float32) for name, value in mine.items()}
        opened = await cohort.sum(values, partial=True, bound=BOUND)
        found.append((cohort.survivors, {name: v.tolist() for name, v in opened.items()}))
    return found
