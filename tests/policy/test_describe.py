"""A policy says what it allows in sentences, and leaves no field out."""

from __future__ import annotations

from typing import Any

import pytest

from secure_fl.policy.describe import describe
from secure_fl.policy.policy_file import SitePolicy
from tests.support.policy_cases import CASES
from tests.support.policy_plans import FEDID, OPEN, OURS, policy


def test_a_policy_describes_itself() -> None:
    assert describe(SitePolicy())[0].startswith("No run is allowed")
    text = "\n".join(describe(policy(FEDID, protection="secagg", min_cohort=2, recording=True)))
    for said in (
        "2026-06-01",
        OURS,
        "clinic",
        "fedid",
        "tiny",
        "0.6667",
        "per patient",
        "ε = 1",
        "secagg IS WEAKER",  # what is unusual is loud
        "MAY BE RECORDED",
        "SUM OVER 2",
        "NOT REQUIRED",
    ):
        assert said in text


@pytest.mark.parametrize("change", [case[-1] for case in CASES], ids=str)
def test_a_description_leaves_no_field_out(change: dict[str, Any]) -> None:
    changed = policy(OPEN, **change)
    strict = policy(SitePolicy(), **change)
    assert changed == OPEN or describe(changed) != describe(OPEN)
    assert strict == SitePolicy() or describe(strict) != describe(SitePolicy())
