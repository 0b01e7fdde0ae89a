"""Which tier a party is in: by its silo, or by its place in the roster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from secure_fl import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.algorithms.inclusivefl.participants import spread, tier_of
from secure_fl.data.silo import Silo
from secure_fl.errors import SettingsError
from secure_fl.events import EventLog
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.party.cohort import Cohort
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from secure_fl.testing.hospitals import LABELS, silos

TIERS = ("weak", "strong")


def asked(
    parties: list[Silo],
    lose: Mapping[str, int] | None = None,
    host: str | None = None,
    **options: Any,
) -> Federated:
    """Every party's tier, if it is none of these that are lost."""

    def program(silo: Silo) -> Program:
        async def run(cohort: Cohort) -> str:
            task = make_task(TaskSettings(labels=LABELS))
            site = Site(silo, task, ModelSettings(), TrainingSettings(), 0, EventLog(silo.name))
            return tier_of(cohort, site, TIERS, options.get("shares"))

        return run

    async def hosting(cohort: Cohort) -> None:
        return None

    programs: dict[str, Program] = {silo.name: program(silo) for silo in parties}
    programs |= {} if host is None else {host: hosting}
    return federate(
        programs, host=host, engine=lambda sessions: LossyEngine(sessions, lose or {}), catch=True
    )


def test_tiers_by_shares() -> None:
    assert spread({"weak": 7, "medium": 2, "strong": 1}, 10) == ["weak"] * 7 + ["medium"] * 2 + [
        "strong"
    ]
    assert spread({"weak": 1, "medium": 1, "strong": 1}, 4) == ["weak", "weak", "medium", "strong"]
    assert len(spread({"a": 0.5, "b": 0.3, "c": 0.2}, 7)) == 7


@pytest.mark.parametrize("shares", [None, {"strong": 1.0, "weak": 1.0}])
@pytest.mark.parametrize("host", [None, "a-host"])
def test_who_is_lost_moves_nobody_to_another_tier(host: str | None, shares: Any) -> None:
    parties = silos(4, 24)
    every = {"hospital-1": "weak", "hospital-2": "weak"}
    every |= {"hospital-3": "strong", "hospital-4": "strong"}
    found = asked(parties, host=host, shares=shares).results
    assert {party: tier for party, tier in found.items() if party != host} == every
    left = asked(parties, {"hospital-1": 1}, host, shares=shares).results
    del every["hospital-1"]  # of three, the second would be among the weak
    assert {party: tier for party, tier in left.items() if party != host} == every


def test_a_silos_own_tier_is_the_first_to_count() -> None:
    first, *others = silos(3, 24)
    found = asked([replace(first, tier="strong"), *others]).results
    assert found == {"hospital-1": "strong", "hospital-2": "weak", "hospital-3": "strong"}


def test_shares_of_a_tier_that_there_is_not() -> None:
    out = asked(silos(3, 24), shares={"weak": 1.0, "huge": 1.0})
    refusal = out.sessions["hospital-1"].error
    assert isinstance(refusal, SettingsError) and "no tier 'huge'" in str(refusal)
