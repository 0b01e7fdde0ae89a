"""Personal models in a site's policy: whether its votes and risk curves may enter sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan


class PersonalFields(Section):
    """The field of [site] about personal models."""

    compares: bool = True
    """This site may train models of its own after a run. Its vote on the served model, and its
    losses at grids of thresholds and temperatures, may enter sums."""


class PersonalRules(SiteRules[PersonalFields]):
    """The rule of a site about plans with [personal]."""

    fields = PersonalFields

    def broken(self, policy: PersonalFields, plan: Plan) -> Iterator[Violation]:
        """Check that models are compared only where the site allows it."""
        if cast(Any, plan).personal is not None and not policy.compares:
            fix = "set compares = true in [site]"
            yield Violation("site.compares", "[personal]", "no comparison with own models", fix)

    def sentences(self, policy: PersonalFields) -> Iterator[str]:
        """Describe whether the site compares models."""
        yield (
            "It may train models of its own after a run, and vote on whether the served one is "
            "better than training alone."
            if policy.compares
            else "It compares no models of its own with shared ones."
        )


PERSONAL_RULES = PersonalRules()
