"""Evaluation as a feature: the check of a run's settings, its results, and a site's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError
from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.federation.run_feature import RunFeature, require_hidden_noise
from secure_fl.federation.run_spec import RunSpec
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation, at_most
from secure_fl.settings import PositiveReal, Section

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.policy.plan import Plan


class EvaluationFeature(RunFeature):
    """The checks of a run that measures models and trains nothing."""

    section = "evaluation"

    def check(self, spec: RunSpec) -> None:
        """Refuse settings of training that have no effect in an evaluation."""
        if not isinstance(spec.algorithm, Evaluate):
            return
        if spec.algorithm.epsilon is not None:
            from secure_fl.features.evaluation.noise import require_kind

            require_kind(spec.task.kind)
            require_hidden_noise(spec)
        if spec.training.dp is not None:
            raise SettingsError(
                "an evaluation trains nothing, so DP-SGD protects nothing and spends nothing",
                fix="remove training.dp; epsilon in [algorithm] puts noise on the scores",
                field="training.dp",
            )
        if not spec.training.pooled_scores:
            raise SettingsError(
                "an evaluation is a sum of scores",
                fix="set training.pooled_scores = true",
                field="training.pooled_scores",
            )

    def report(self, spec: RunSpec, sites: Sequence[Site]) -> Mapping[str, Any]:
        """Return the findings of an evaluation, which are equal at all members."""
        if not isinstance(spec.algorithm, Evaluate):
            return {}
        return {self.section: sites[0].findings or None}


EVALUATION = EvaluationFeature()


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
