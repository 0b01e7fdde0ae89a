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
    """No fields: limits on rounds and values are those of all algorithms."""


class ScriptRules(SiteRules[ScriptFields]):
    """The rule of every site about scripts."""

    fields = ScriptFields

    def broken(self, policy: ScriptFields, plan: Plan) -> Iterator[Violation]:
        """Refuse a plan that does not limit what a script sums."""
        if isinstance(plan.algorithm, Script) and plan.algorithm.values is None:
            fix = "name each value with its shape in [algorithm.values] of the plan"
            yield Violation("plan.values", "sums of anything", "named values with shapes", fix)


SCRIPT_RULES = ScriptRules()
