"""A hospital's policy: each rule broken and kept, and what no policy can allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config import load as config
from secure_fl.errors import SettingsError
from secure_fl.policy.describe import describe
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import DPLimits, NoiseLimits, OwnFields, SitePolicy
from secure_fl.policy.rules import Company, PolicyRefusal, check
from secure_fl.settings import ModelSettings
from tests.support.key_sites import signed, unsigned
from tests.support.policy_cases import CASES, Case
from tests.support.policy_plans import (
    COMPANY,
    FEDID,
    HOSTED,
    OPEN,
    OURS,
    OWN_HOST,
    POLICY,
    TODAY,
    plan,
    policy,
    refused,
)
from tests.support.raising import require


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_a_rule_refuses_alone_and_its_own_field_allows(case: Case) -> None:
    rule, held, asked, company, today, said, allowing = case
    (found,) = refused(held, asked, company, today=today)
    assert found.rule == rule
    assert said in str(found)
    section, _, field = rule.rpartition(".")
    assert field in found.fix and f"[{section}]" in found.fix
    check(policy(held, **allowing), asked, company, today=today)


def test_the_table_above_has_every_field_of_the_policy() -> None:
    # The last ones are about people: no plan asks for any.
    apart = ("dp", "noise", "approval", "retention_days")
    fields = {f"site.{name}" for name in OwnFields.model_fields if name not in apart}
    fields |= {f"site.dp.{name}" for name in DPLimits.model_fields}
    fields |= {f"site.noise.{name}" for name in NoiseLimits.model_fields}
    elsewhere = {"site.max_values", "site.dp.own_epsilon"}  # test_size; more noise, in a run
    assert {case[0] for case in CASES} | elsewhere == fields


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"folder": "/srv/other"}, "run.folder"),
        ({"run": "../../keys"}, "run.name"),
        ({"run": "run/../../keys"}, "run.name"),
        ({"dp__ledger": "/tmp/fresh"}, "training.dp.ledger"),  # noqa: S108
        ({"noise": True, "noise__ledger": "fresh"}, "protection.noise.ledger"),
    ],
)
def test_a_plan_names_no_place_under_any_policy(changes: dict[str, Any], shown: str) -> None:
    (found,) = refused(POLICY, plan(**changes), COMPANY)
    assert (found.rule, found.asked) == ("plan.places", shown)
    assert "nothing here" in found.fix


def test_the_signed_roster_s_threshold_is_not_a_coordinator_s_to_lower() -> None:
    held, asked = policy(threshold_share=0.51), plan(threshold=3)
    five = replace(COMPANY, members=("a", "b", "c", "d", "north"), threshold=4)
    (found,) = refused(held, asked, five)
    assert (found.rule, found.asked) == ("roster.threshold", "3 of 5 parties")
    assert found.allowed.startswith("4") and "protection.threshold" in found.fix
    check(held, plan(), replace(five, threshold=5), today=TODAY)  # the default follows the roster
    check(held, asked, replace(five, threshold=3), today=TODAY)  # 3 of 5 is all that was signed


def test_the_share_is_of_the_parties_without_the_host() -> None:
    four = replace(HOSTED, threshold=2)  # three parties and a host: 2 of 3, not 2 of 4
    asked = plan(name="fedid", threshold=2)
    check(policy(FEDID, threshold_share=2 / 3), asked, four, today=TODAY)
    (found,) = refused(policy(FEDID, threshold_share=0.67), asked, four)
    assert found.asked == "2 of 3 parties"


def test_a_share_of_a_round_number_is_that_number() -> None:
    held = policy(threshold_share=0.56)
    assert 0.56 * 25 > 14  # in binary
    many = replace(COMPANY, members=("north", *map(str, range(24))), threshold=14)
    check(held, plan(threshold=14), many, today=TODAY)
    (found,) = refused(held, plan(threshold=13), replace(many, threshold=13))
    assert found.allowed == "14 or more"


def test_a_plan_s_higher_threshold_does_not_stand_in_for_what_was_signed() -> None:
    held, signed_two = policy(threshold_share=0.9), replace(COMPANY, threshold=2)
    (found,) = refused(held, plan(threshold=3), signed_two)
    assert (found.rule, found.asked) == ("site.threshold_share", "2 of 3 parties")
    check(held, plan(threshold=3), COMPANY, today=TODAY)


def test_a_site_that_is_not_on_the_roster_takes_no_part() -> None:
    (found,) = refused(POLICY, plan(), replace(COMPANY, me="west"))
    assert (found.rule, found.asked) == ("roster.members", '"west"')
    assert found.allowed == '"east", "north", "south"'


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.partial_sums])
def test_a_tier_is_what_this_site_has_signed_and_not_its_place_in_a_list(name: str) -> None:
    held = policy(algorithms=(name,), dp={"required": False})
    asked = plan(name=name, dp=False)
    (found,) = refused(held, asked, replace(COMPANY, tier=None))
    assert found.rule == "roster.tier" and "--tier north=TIER" in found.fix
    check(held, asked, COMPANY, today=TODAY)
    roster = unsigned("east", "north", "south")
    of_north = [replace(m, tier="weak" if m.name == "north" else None) for m in roster.members]
    roster = replace(roster, members=tuple(of_north))
    assert Company.of(roster, "north").tier == "weak"
    assert Company.of(roster, "south").tier is None


def test_a_host_needs_no_noise_against_itself() -> None:
    held = policy(FEDID, may_be_host=True, noise={"required": True})
    check(held, plan(name="fedid"), OWN_HOST, today=TODAY)
    assert [b.rule for b in refused(held, plan(name="fedid"), HOSTED)] == ["site.noise.required"]


def test_nothing_is_allowed_until_it_is_named() -> None:
    rules = [found.rule for found in refused(SitePolicy(), plan(), COMPANY)]
    named = ["site.until", "site.rosters", "site.algorithms", "site.datasets", "site.models"]
    assert rules == named


def test_a_caveat_is_accepted_for_one_algorithm_only() -> None:
    held = policy(algorithms=("fedid", "fedkd"), caveats=("fedid",))
    (found,) = refused(held, plan(name="fedkd", factors="per_party"), COMPANY)
    assert found.rule == "site.caveats"
    check(held, plan(name="fedkd"), COMPANY, today=TODAY)


def test_records_in_one_place_cannot_be_allowed() -> None:
    with pytest.raises(SettingsError, match="fedavg"):
        SitePolicy(algorithms=("centralized",))
    (found,) = refused(POLICY, plan(name="centralized"), COMPANY)
    assert "records in one place" in found.fix


def test_an_algorithm_that_is_not_installed_is_refused() -> None:
    unknown = plan().model_copy(update={"algorithm": FedAvg.model_construct(name="newest")})
    rules = {found.rule: found.fix for found in refused(POLICY, unknown, COMPANY)}
    assert set(rules) == {"site.algorithms", "site.dp.required"}
    assert "what is not installed" in rules["site.algorithms"]


def test_a_refusal_names_all_rules_at_once_and_tells_the_wire_a_code() -> None:
    with pytest.raises(PolicyRefusal) as caught:
        check(POLICY, plan(min_cohort=1, record=True, rounds=99), COMPANY, today=TODAY)
    broken = {found.rule: (found.asked, found.allowed) for found in caught.value.broken}
    assert broken == {
        "site.min_cohort": ("1", "3 or more"),
        "site.recording": ("recorded views", "none"),
        "site.max_rounds": ("99", "10 or less"),
    }
    require(caught.value, *(f"\n  {found}" for found in caught.value.broken), party="north")
    assert caught.value.code == "policy"
    assert caught.value.exit_status == 3


def test_what_a_coordinator_wrote_cannot_speak_to_the_terminal() -> None:
    asked = plan(model="\x1b[2J\nsite.models: allowed\u202e" + "x" * 500)
    (found,) = refused(POLICY, asked, COMPANY)
    assert str(found).isprintable()
    assert len(found.asked) <= 60
    assert "\\u001b[2J\\nsite" in found.asked


def test_a_budget_that_is_no_number_is_refused() -> None:
    endless = plan(dp__epsilon=float("inf"))
    assert [b.rule for b in refused(POLICY, endless, COMPANY)] == ["site.dp.max_epsilon"]
    assert endless.training.dp is not None
    odd = endless.training.dp.model_copy(update={"epsilon": float("nan")})
    nan = endless.model_copy(update={"training": endless.training.model_copy(update={"dp": odd})})
    assert [b.rule for b in refused(POLICY, nan, COMPANY)] == ["site.dp.max_epsilon"]
    with pytest.raises(SettingsError):
        DPLimits(max_epsilon=float("inf"))


def test_a_plan_is_a_run_s_settings_without_data_and_audit_policy() -> None:
    text = '[data]\ncorpus = "ade"\n[algorithm]\nname = "fedavg"\nrounds = 2\n'
    found = Plan.of(config.loads(text), "notes")
    assert found.algorithm == FedAvg(rounds=2)
    assert (found.dataset, found.model) == ("notes", ModelSettings())
    assert "data" not in Plan.model_fields and "policy" not in Plan.model_fields


@pytest.mark.parametrize("section", ["site", "policy", "data", "keys"])
def test_a_plan_has_no_room_for_a_policy(section: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Plan.model_validate({"algorithm": FedAvg(), "dataset": "notes", section: {}})
    if section not in ("policy", "data"):  # these two a run's settings have; a plan takes neither
        with pytest.raises(SettingsError, match="there is no such section"):
            config.loads(f'[data]\ncorpus = "ade"\n[algorithm]\nname = "fedavg"\n[{section}]\n')


def test_company_is_what_the_signed_roster_says() -> None:
    roster = signed("clinic", "east", "north", "south", host="clinic")
    found = Company.of(roster, "north")
    fingerprint = roster.fingerprint()
    assert found == Company("north", roster.names, "clinic", 3, fingerprint, None)
    assert found.parties == 3
    check(policy(FEDID, rosters=(fingerprint,)), plan(name="fedid"), found, today=TODAY)


# --- a policy in sentences ------------------------------------------------------------------------


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


OTHER_VALUES: dict[str, Any] = {  # of fields without a case above; most are of features
    "max_values": 5,
    "retention_days": 5,
    "votes": False,
    "search": True,
    "max_growth": 5.0,
    "pooled_scores": False,
    "compares": False,
    "share_scores": True,
    "exact_evaluations": True,
    "max_evaluation_epsilon": 1.5,
    "total_evaluation_epsilon": 8.5,
    "means_to_coordinator": True,
}
SECTIONS = {"dp", "noise", "approval", "statistics"}


def test_a_field_of_any_feature_changes_the_description() -> None:
    fields = SitePolicy.model_fields.keys()
    assert fields <= OTHER_VALUES.keys() | SECTIONS | {name for case in CASES for name in case[-1]}
    found = {
        n: describe(policy(SitePolicy(), **{n: OTHER_VALUES[n]})) for n in fields & {*OTHER_VALUES}
    }
    assert [name for name, text in found.items() if text == describe(SitePolicy())] == []
