"""The interface of optional features that add fields and rules to a site's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from secure_fl.features import load
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.policy_file import SitePolicy
    from secure_fl.policy.rules import Plan


class SiteRules:
    """Base class of a feature's rules; every method adds nothing, and a feature overrides some."""

    fields: type[Section] = Section  # with the fields that it adds to [site]

    def broken(self, policy: SitePolicy, plan: Plan) -> Iterator[Violation]:
        """Give every rule that a plan breaks."""
        return iter(())

    def extra_rounds(self, plan: Plan) -> int:
        """Return how many rounds the feature may add to the plan's."""
        return 0

    def sentences(self, policy: SitePolicy) -> Iterator[str]:
        """Describe the rules; what is weaker than the default is in capitals."""
        return iter(())

    def limits(self, policy: SitePolicy) -> Mapping[str, Any]:
        """Return the limits that apply inside a run, for `SiteLimits.options`."""
        return {}


def site_rules() -> tuple[SiteRules, ...]:
    """Load the rules of all features, in the table's order."""
    return tuple(load("policy").values())


def with_feature_fields(base: type[Section]) -> type[Section]:
    """Add the fields of all features to those of a class, after its own."""
    added = (rules.fields for rules in reversed(site_rules()))
    extended = create_model(base.__name__, __base__=(*added, base), __module__=base.__module__)
    return extended
