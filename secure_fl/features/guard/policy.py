"""The guard in a site's policy: votes, sums over halves, and the site's own limit on growth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from secure_fl.features.guard.settings import GuardSettings
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan


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
        """Describe whether the site votes, and over how many sums may be."""
        yield (
            "It may vote on whether a round made the model worse."
            if policy.votes
            else "It votes on no round."
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
