"""The rule of a site about scripts: a plan names everything that may be summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from secure_fl.features.scripts.algorithm import Script
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan


class ScriptFields(Section):
    """Limits on scripts; those on rounds and values are of all algorithms."""

    means_to_coordinator: bool = False
    """The coordinator may read the means of a script."""


class ScriptRules(SiteRules[ScriptFields]):
    """The rule of every site about scripts."""

    fields = ScriptFields

    def broken(self, policy: ScriptFields, plan: Plan) -> Iterator[Violation]:
        """Refuse a plan that does not limit what a script sums, or opens it to more readers."""
        if isinstance(plan.algorithm, Script) and plan.algorithm.values is None:
            fix = "name each value with its shape in [algorithm.values] of the plan"
            yield Violation("plan.values", "sums of anything", "named values with shapes", fix)
        asked = isinstance(plan.algorithm, Script) and plan.algorithm.means_to_coordinator
        if asked and not policy.means_to_coordinator:
            fix = "set means_to_coordinator = true in [site]"
            yield Violation("site.means_to_coordinator", "means", "none", fix)

    def sentences(self, policy: ScriptFields) -> Iterator[str]:
        """Describe whether the coordinator may read means."""
        if policy.means_to_coordinator:
            yield "THE COORDINATOR MAY READ THE MEANS of a script."


SCRIPT_RULES = ScriptRules()
