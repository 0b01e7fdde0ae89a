"""The rule of a site about sums of scores: it refuses alone, and its own field allows."""

from __future__ import annotations

from secure_fl.policy.describe import describe
from secure_fl.policy.rules import check
from tests.support.policy_plans import COMPANY, OPEN, TODAY, plan, policy, refused


def test_scores_are_summed_only_where_the_site_allows_it() -> None:
    held, asked = policy(pooled_scores=False), plan(pooled_scores=True)
    (found,) = refused(held, asked, COMPANY)
    assert found.rule == "site.pooled_scores"
    assert "asked for sums of scores; allowed: scores that stay here" in str(found)
    assert "pooled_scores" in found.fix and "[site]" in found.fix
    check(policy(held, pooled_scores=True), asked, COMPANY, today=TODAY)
    check(held, plan(pooled_scores=False), COMPANY, today=TODAY)


def test_a_description_names_the_rule() -> None:
    assert describe(policy(OPEN, pooled_scores=False)) != describe(OPEN)
