"""The largest model of a plan counts personal models."""

from __future__ import annotations

from typing import Any

from secure_fl.features.personal.settings import PersonalSettings
from secure_fl.policy.model_size import check_size, trained_values, values_asked
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import PolicyRefusal
from secure_fl.settings import AdapterSettings, ModelSettings
from tests.support.local_pilot import plan_of
from tests.support.raising import raises


def test_the_adapter_of_a_personal_model_counts() -> None:
    """Its rank is a plan's, and no sum limits it: it is never sent."""
    lora = ModelSettings(adapter=AdapterSettings(rank=4, targets="linear"))
    values, shared = trained_values(lora), trained_values(ModelSettings())
    fields: dict[str, Any] = {"method": "adapter", "rank": 4}
    asked = plan_of(personal=PersonalSettings(**fields), model=ModelSettings())
    assert values_asked(asked) == max(values, shared)
    large = PersonalSettings(**fields | {"rank": 10**6})
    asked = asked.model_copy(update={"personal": large})
    with raises(PolicyRefusal, "site.max_values", party="north"):
        check_size(SitePolicy(), asked, "north")
    head = large.model_copy(update={"method": "head"})  # which has no rank
    check_size(SitePolicy(), asked.model_copy(update={"personal": head}), "north")
