"""Evaluations in a site's policy: shared scores, and models that are named by their digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan


class EvaluationFields(Section):
    """The field of [site] about evaluations."""

    share_scores: bool = False
    """Members of an evaluation may learn this site's own score of each model."""


class EvaluationRules(SiteRules[EvaluationFields]):
    """The rules of a site about evaluations."""

    fields = EvaluationFields

    def broken(self, policy: EvaluationFields, plan: Plan) -> Iterator[Violation]:
        """Check that all sites load the same models."""
        if not plan.algorithm.pinned:
            fix = (
                "name the digest of each in [[algorithm.models]]: secure-fl evaluate --invite does"
            )
            asked, allowed = "models by name alone", "models by name and digest"
            yield Violation("plan.digests", asked, allowed, fix)

    def sentences(self, policy: EvaluationFields) -> Iterator[str]:
        """Describe whether the site's own scores are shared."""
        if policy.share_scores:
            yield "Members of an evaluation learn this site's own score of each model."

    def limits(self, policy: EvaluationFields) -> Mapping[str, Any]:
        """Return whether the site's own scores are shared."""
        return {"share_scores": policy.share_scores}


EVALUATION_RULES = EvaluationRules()
