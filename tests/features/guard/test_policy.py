"""Rules of a site about votes on rounds: each refuses alone, and its own field allows."""

from __future__ import annotations

import pytest

from secure_fl.policy.describe import describe
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import check
from tests.support.policy_plans import COMPANY, OPEN, POLICY, TODAY, plan, policy, refused


def guarded(**fields: object) -> Plan:
    return plan(sections={"guard": fields})


CASES = [
    ("site.votes", policy(votes=False, max_rounds=15), guarded(),
     "asked for votes on rounds; allowed: none", {"votes": True}),
    ("site.search", policy(max_rounds=15), guarded(search=True),
     "asked for sums over halves; allowed: sums over all", {"search": True}),
    ("site.max_growth", policy(max_growth=4.0), plan(),
     "asked for no [guard]; allowed: grids that grow at most 4 times", {"max_growth": None}),
    ("site.max_rounds", POLICY, guarded(),  # five may be repeated
     "asked for 15; allowed: 10 or less", {"max_rounds": 15}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "held", "asked", "said", "allowing"), CASES)
def test_a_rule_refuses_alone_and_its_own_field_allows(
    rule: str, held: SitePolicy, asked: Plan, said: str, allowing: dict[str, object]
) -> None:
    (found,) = refused(held, asked, COMPANY)
    assert found.rule == rule and said in str(found)
    assert rule.rpartition(".")[2] in found.fix and "[site]" in found.fix
    check(policy(held, **allowing), asked, COMPANY, today=TODAY)


def test_rounds_that_are_not_repeated_do_not_count() -> None:
    check(POLICY, guarded(again=False), COMPANY, today=TODAY)


@pytest.mark.parametrize("change", [{"votes": False}, {"search": True}])
def test_a_description_names_the_rule(change: dict[str, object]) -> None:
    assert describe(policy(OPEN, **change)) != describe(OPEN)
