"""The interface of optional features that add fields and rules to a site's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import create_model

from secure_fl.features import load
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan
    from secure_fl.settings import ModelSettings


F = TypeVar("F", bound=Section)  # the fields that a feature adds to [site]


class SiteRules(Generic[F]):
    """Base class of a feature's rules; every method adds nothing, and a feature overrides some.

    The policy that a method gets has the fields of all features.
    """

    fields: type[Section] = Section

    def broken(self, policy: F, plan: Plan) -> Iterator[Violation]:
        """Give every rule that a plan breaks."""
        return iter(())

    def extra_rounds(self, plan: Plan) -> int:
        """Return how many rounds the feature may add to the plan's."""
        return 0

    def trains(self, plan: Plan) -> Iterator[ModelSettings]:
        """Give the models that the feature trains after the plan's; max_values limits each."""
        return iter(())

    def sentences(self, policy: F) -> Iterator[str]:
        """Describe the rules; what is weaker than the default is in capitals."""
        return iter(())

    def limits(self, policy: F) -> Mapping[str, Any]:
        """Return the limits that apply inside a run, for `SiteLimits.options`."""
        return {}


def site_rules() -> tuple[SiteRules[Any], ...]:
    """Load the rules of all features, in the table's order."""
    return tuple(load("policy").values())


def with_feature_fields(base: type[Section]) -> type[Section]:
    """Add the fields of all features to those of a class, after its own."""
    added = (rules.fields for rules in reversed(site_rules()))
    extended = create_model(base.__name__, __base__=(*added, base), __module__=base.__module__)
    return extended
