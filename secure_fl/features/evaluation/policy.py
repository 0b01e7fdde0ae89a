"""Evaluations in a site's policy: noise on scores, shared scores, and models named by digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation, at_most
from secure_fl.settings import PositiveReal, Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan


class EvaluationFields(Section):
    """The fields of [site] about evaluations."""

    share_scores: bool = False
    """Members of an exact evaluation may learn this site's own score of each model."""

    exact_evaluations: bool = False
    """Evaluations may sum counts of test records without noise. A model that is made for one record
    then shows whether it is here, and its label."""

    max_evaluation_epsilon: PositiveReal = 1.0
    """Largest ε per test record of one evaluation (δ = 1e-6)."""

    total_evaluation_epsilon: PositiveReal = 8.0
    """Largest ε per test record of all evaluations together; the ledger counts them."""


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
        if not isinstance(plan.algorithm, Evaluate):
            return
        if plan.algorithm.epsilon is not None:
            yield from at_most(
                "site.max_evaluation_epsilon", plan.algorithm.epsilon, policy.max_evaluation_epsilon
            )
        elif not policy.exact_evaluations:
            fix = (
                "give epsilon in [algorithm] (secure-fl evaluate --invite does), or set "
                "exact_evaluations = true in [site]"
            )
            yield Violation("site.exact_evaluations", "exact scores", "scores with noise", fix)

    def sentences(self, policy: EvaluationFields) -> Iterator[str]:
        """Describe the noise on scores, and whether the site's own scores are shared."""
        yield (
            "Scores of evaluations have noise: at most ε = "
            f"{policy.max_evaluation_epsilon:g} per test record in one evaluation and "
            f"{policy.total_evaluation_epsilon:g} in all."
        )
        if policy.exact_evaluations:
            yield "EXACT SCORES ARE ALLOWED: a model made for one test record shows its label."
        if policy.share_scores:
            yield "Members of an exact evaluation learn this site's own score of each model."

    def limits(self, policy: EvaluationFields) -> Mapping[str, Any]:
        """Return whether the site's own scores are shared, and the budget of evaluations."""
        return {
            "share_scores": policy.share_scores,
            "total_evaluation_epsilon": policy.total_evaluation_epsilon,
        }


EVALUATION_RULES = EvaluationRules()
