"""Pooled scores in a site's policy: whether its counts may enter sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.policy.plan import Plan


class ScoreFields(Section):
    """The field of [site] about sums of scores."""

    pooled_scores: bool = True
    """This site's dev and test counts may enter sums over all hospitals."""


class ScoreRules(SiteRules[ScoreFields]):
    """The rule of a site about sums of scores."""

    fields = ScoreFields

    def broken(self, policy: ScoreFields, plan: Plan) -> Iterator[Violation]:
        """Check that scores are summed only where the site allows it."""
        if plan.training.pooled_scores and not policy.pooled_scores:
            fix = "set pooled_scores = true in [site]"
            yield Violation("site.pooled_scores", "sums of scores", "scores that stay here", fix)

    def sentences(self, policy: ScoreFields) -> Iterator[str]:
        """Describe whether counts are summed."""
        yield (
            "Counts of right answers on dev and test records may be summed with the others'."
            if policy.pooled_scores
            else "Scores on dev and test records stay here."
        )


SCORE_RULES = ScoreRules()
