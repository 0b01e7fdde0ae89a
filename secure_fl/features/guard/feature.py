"""The guard as a feature: its part in a run (checks, extra rounds, hook) and in a site's policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.errors import SettingsError
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.hooks import RoundHook
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.policy.plan import Plan


class GuardFeature(RunFeature):
    """The guard of a run that has a [guard] section."""

    section = "guard"

    def check(self, spec: RunSpec) -> None:
        """Refuse a guard that cannot test the algorithm's rounds, or cannot undo them."""
        guard, entry, algorithm = settings_of(spec), spec.entry, spec.algorithm
        if guard is None:
            return
        if entry.undoable is None:
            able = ", ".join(sorted(n for n, e in ALGORITHMS.items() if e.undoable is not None))
            raise SettingsError(
                f"[guard] cannot test and undo the rounds of {algorithm.name}",
                fix=f"remove [guard], or use one of {able}",
                field="guard",
            )
        if guard.search and (entry.partial_sums or algorithm.caveat):
            raise SettingsError(
                f"the guard cannot search under {algorithm.name}: its sums are over some of the "
                "parties already, or parties see more than sums",
                fix="set guard.search = false",
                field="guard.search",
            )
        if guard.most >= algorithm.rounds and not guard.again:
            raise SettingsError(
                f"{guard.most} refused rounds would be all {algorithm.rounds} of the run",
                fix="lower guard.most, or set guard.again = true",
                field="guard.most",
            )

    def check_members(self, spec: RunSpec, parties: int, min_cohort: int) -> None:
        """Refuse votes that one party decides alone, and halves that are too small to be summed.

        A share that needs all votes is never reached: a poisoning party votes for its own sums.
        """
        guard = settings_of(spec)
        if guard is None:
            return
        against = math.ceil(guard.share * parties - 1e-9)
        if not 2 <= against <= parties - 1:
            low, high = 1 / parties, (parties - 1) / parties
            raise SettingsError(
                f"a share of {guard.share:g} is {against} of {parties} votes: "
                + (
                    "one party alone could refuse every round"
                    if against < 2
                    else "never reached, because a poisoning party votes for its own rounds"
                ),
                fix=f"take a share above {low:.3g}, and at most {high:.3g}",
                field="guard.share",
            )
        if guard.search and (half := (parties - 1) // 2) < min_cohort:
            raise SettingsError(
                f"a search sums over halves, so over {half} of {parties} parties; min_cohort "
                f"is {min_cohort}",
                fix="set guard.search = false, or add parties",
                field="guard.search",
            )

    def extra_rounds(self, spec: RunSpec) -> int:
        """Return how many refused rounds may be repeated."""
        guard = settings_of(spec)
        return 0 if guard is None else guard.extra_rounds

    def statement(self, spec: RunSpec, rules: CoordinatorRules, parties: int) -> str:
        """Say what sums over half of the parties reveal, if the guard may search."""
        guard = settings_of(spec)
        if guard is None or not guard.search:
            return ""
        half, spare = (parties - 1) // 2, parties - rules.threshold
        return (
            f"After a refused round sums may be over {half} of the {parties} parties: they hold "
            f"against {max(0, half - 2)} colluders, and {max(0, half - spare - 2)} if the "
            "coordinator lies about who dropped out; over many of them members can learn each "
            "other's counts of records."
        )

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> RoundHook | None:
        """Make the guard of one party; the site's own cap on growth applies if it is lower."""
        from secure_fl.features.guard.guard import Guard
        from secure_fl.features.guard.judge import DevRecords

        settings, label = settings_of(spec), spec.entry.undoable
        if settings is None or label is None:
            return None
        guarded = spec.algorithm.undoable_label
        label = label if guarded is None else guarded
        judge, cap = DevRecords(site, label), limits.options.get("max_growth")
        least = spec.protection.min_cohort
        return Guard(settings, judge, site.recorder, spec.seed, cap, least)


def settings_of(spec: RunSpec) -> GuardSettings | None:
    """Return the [guard] section of a run, if it has one."""
    section = spec.sections.get("guard")
    return section if isinstance(section, GuardSettings) else None


GUARD = GuardFeature()


class GuardFields(Section):
    """The fields of [site] about the guard."""

    votes: bool = True
    """This site may vote on rounds, by its dev records; votes are summed under protection."""
    search: bool = False
    """After a refused round, sums may be over halves of the hospitals."""
    max_growth: Annotated[float, Field(gt=1)] | None = None
    """Limit on the ratio of squared norms between rounds. Above it this site votes against a round,
    whatever the plan says; plans then need [guard]."""


class GuardRules(SiteRules[GuardFields]):
    """The rules of a site about plans with and without [guard]."""

    fields = GuardFields

    def broken(self, policy: GuardFields, plan: Plan) -> Iterator[Violation]:
        """Check votes, searches and the limit on growth."""
        guard = section_of(plan)
        if guard is not None and not policy.votes:
            yield Violation("site.votes", "votes on rounds", "none", "set votes = true in [site]")
        if guard is not None and guard.search and not policy.search:
            fix = "set search = true in [site]"
            yield Violation("site.search", "sums over halves", "sums over all", fix)
        if guard is None and policy.max_growth is not None:
            fix = "ask for a plan with [guard], or remove max_growth from [site]"
            allowed = f"grids that grow at most {policy.max_growth:g} times between rounds"
            yield Violation("site.max_growth", "no [guard]", allowed, fix)

    def extra_rounds(self, plan: Plan) -> int:
        """Return how many refused rounds the plan repeats."""
        guard = section_of(plan)
        return 0 if guard is None else guard.extra_rounds

    def sentences(self, policy: GuardFields) -> Iterator[str]:
        """Describe if and how the site votes, and over how many parties sums may be."""
        yield (
            "It may vote on whether a round made the model worse."
            if policy.votes
            else "It votes on no round."
        )
        if policy.max_growth is not None:
            yield (
                "Plans must have [guard], and it votes against a round in which the grid of an "
                f"update grows more than {policy.max_growth:g} times."
            )
        if policy.search:
            yield "SUMS MAY BE OVER HALVES OF THE PARTIES, after a refused round."

    def limits(self, policy: GuardFields) -> Mapping[str, Any]:
        """Return the site's own limit on growth."""
        return {"max_growth": policy.max_growth}


def section_of(plan: Plan) -> GuardSettings | None:
    """Return the [guard] section of a plan, if it has one."""
    section: GuardSettings | None = cast(Any, plan).guard  # a field that the table adds
    return section


GUARD_RULES = GuardRules()
