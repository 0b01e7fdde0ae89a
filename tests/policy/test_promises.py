"""What a policy promises holds for any plan, and no field of a plan moves another's verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import DPLimits, NoiseLimits, OwnFields, SitePolicy
from secure_fl.policy.rules import Company, PolicyRefusal, Violation, broken_rules, check
from tests.support.policy_plans import (
    AFTER,
    BEFORE,
    COMPANY,
    FOREIGN,
    HOSTED,
    LISTED,
    OPEN,
    OURS,
    OWN_HOST,
    TODAY,
    Flat,
    made,
    policy,
)

# What each rule may read of a plan. `name` is there where rules ask what an algorithm is; noise
# needs a mode that hides, and a target its budget, or there is no such plan at all.
_DP = {"dp", "dp.epsilon", "dp.target"}
_NOISE = {"noise", "mode", "noise.epsilon", "noise.target"}
READS: Mapping[str, set[str]] = {
    "site.algorithms": {"name"},
    "site.caveats": {"name", "factors", "feedback"},
    "site.datasets": {"dataset"},
    "site.models": {"model"},
    "site.frozen_embeddings": {"frozen"},
    "site.recording": {"record"},
    "site.protection": {"mode"},
    "site.min_cohort": {"min_cohort"},
    "site.threshold_share": {"threshold"},
    "roster.threshold": {"threshold"},
    "site.bits": {"bits"},
    "site.max_rounds": {"name", "rounds", "exchange", "steps"},
    "site.max_epochs": {"name", "epochs", "distill_epochs"},
    "site.max_steps": {"name", "steps", "exchange"},
    "site.max_batch": {"name", "batch", "dp", "dp.physical", "public_batch"},
    "roster.tier": {"name"},
    "site.dp.required": {"name", "dp", "kind"},
    "site.dp.max_epsilon": _DP,
    "site.dp.max_target_epsilon": _DP,
    "site.dp.max_delta": {"dp", "dp.delta"},
    "site.dp.unit": {"dp", "dp.unit"},
    "site.dp.min_colluders": {"dp", "dp.noise", "dp.colluders"},
    "site.noise.required": {"name", "noise", "mode"},
    "site.noise.max_epsilon": _NOISE,
    "site.noise.max_target_epsilon": _NOISE,
    "site.noise.max_delta": {"noise", "mode", "noise.delta"},
    "site.noise.min_colluders": {"noise", "mode", "noise.colluders"},
    "plan.places": {"folder", "run", "dp", "dp.ledger", "noise", "mode", "noise.ledger"},
}
OF_THE_COMPANY = {
    "site.not_before", "site.until", "site.rosters", "site.hosts", "site.may_be_host",
    "roster.members",
}  # fmt: skip
# The value that passes first, so that random plans often keep all rules but one or two.
POOL: Mapping[str, list[Any]] = {
    "name": ["fedavg", "fedkd", "fedid", "gong", "heterofl", "fetchsgd", "local", "centralized"],
    "rounds": [1],  # gong has no other; `more_rounds` below varies the rest
    "epochs": [3, 4],
    "steps": [None, 4, 101],
    "distill_epochs": [3, 7],
    "factors": ["joint", "per_party"],
    "feedback": ["none", "scalar"],
    "exchange": ["epoch", "gradient"],
    "kind": ["classification", "ner", "ranking"],
    "dataset": ["notes", "letters"],
    "model": ["tiny", "bert-base-uncased"],
    "frozen": [True, False],
    "batch": [16, 512],
    "public_batch": [None, 999],
    "mode": ["he+secagg", "secagg", "none"],
    "bits": [8, 24],
    "min_cohort": [3, 5, 2],
    "threshold": [None, 3, 2],
    "record": [False, True],
    "folder": [None, "/srv"],
    "run": ["run", "../run"],
    "dp": [True, False],
    "dp.epsilon": [1.0, 8.0],
    "dp.target": [None, 0.5, 2.0],
    "dp.delta": [1e-5, 1e-3],
    "dp.unit": ["patient", "record"],
    "dp.ledger": [None, "fresh"],
    "dp.physical": [None, 64, 300],
    "dp.noise": ["local", "shared"],
    "dp.colluders": [1, 0],
    "noise": [True, False],
    "noise.epsilon": [1.0, 8.0],
    "noise.target": [None, 0.5, 2.0],
    "noise.delta": [1e-5, 1e-3],
    "noise.colluders": [1, 0],
    "noise.ledger": [None, "fresh"],
}


@st.composite
def flats(draw: st.DrawFn) -> dict[str, Any]:
    changed = draw(st.sets(st.sampled_from(sorted(POOL)), max_size=6) | st.just(set(POOL)))
    flat = {n: draw(st.sampled_from(p)) if n in changed else p[0] for n, p in POOL.items()}
    flat["name"] = draw(st.sampled_from(POOL["name"]))
    if flat["name"] != "gong":
        flat["rounds"] = draw(st.sampled_from([1, 10, 11]))
    return flat


POLICIES = st.builds(
    SitePolicy,
    algorithms=st.sampled_from([tuple(LISTED), ("fedavg",), ()]),
    caveats=st.sampled_from([(), ("fedkd",), ("fedid",)]),
    protection=st.sampled_from(["he+secagg", "secagg", "none"]),
    min_cohort=st.sampled_from([2, 3, 4]),
    threshold_share=st.sampled_from([0.6, 2 / 3, 1.0]),
    bits=st.sampled_from([(8,), (8, 24), ()]),
    rosters=st.sampled_from([(OURS,), (OURS, FOREIGN), ()]),
    hosts=st.sampled_from([("clinic",), ()]),
    may_be_host=st.booleans(),
    datasets=st.sampled_from([("notes",), ("notes", "letters"), ()]),
    models=st.sampled_from([("tiny",), ("tiny", "bert-base-uncased"), ()]),
    frozen_embeddings=st.booleans(),
    max_rounds=st.sampled_from([10, 100]),
    max_epochs=st.sampled_from([3, 9]),
    max_steps=st.sampled_from([100, 200]),
    max_batch=st.sampled_from([256, 400]),
    recording=st.booleans(),
    not_before=st.sampled_from([None, BEFORE, TODAY, AFTER]),
    until=st.sampled_from([TODAY, AFTER, BEFORE, None]),
    dp=st.builds(
        DPLimits,
        required=st.booleans(),
        max_epsilon=st.sampled_from([1.0, 9.0]),
        max_target_epsilon=st.sampled_from([None, 1.0]),
        max_delta=st.sampled_from([1e-5, 0.01]),
        min_colluders=st.sampled_from([0, 1]),
        unit=st.sampled_from(["record", "patient"]),
    ),
    noise=st.builds(
        NoiseLimits,
        required=st.booleans(),
        max_epsilon=st.sampled_from([1.0, 9.0]),
        max_target_epsilon=st.sampled_from([None, 1.0]),
        max_delta=st.sampled_from([1e-5, 0.01]),
        min_colluders=st.sampled_from([0, 1]),
    ),
)


@st.composite
def policies(draw: st.DrawFn) -> SitePolicy:
    """An open policy with a few strict fields, or any."""
    strict = draw(POLICIES)
    taken = draw(
        st.sets(st.sampled_from(sorted(OwnFields.model_fields)), max_size=5)
        | st.just(set(OwnFields.model_fields))
    )
    return policy(OPEN, **{name: getattr(strict, name) for name in taken})


COMPANIES = st.sampled_from(
    [
        COMPANY,
        HOSTED,
        OWN_HOST,
        replace(COMPANY, fingerprint=FOREIGN),
        replace(COMPANY, threshold=2),
        replace(COMPANY, me="west"),
        replace(COMPANY, tier=None),
    ]
)


def restated(held: SitePolicy, asked: Plan, company: Company) -> dict[str, bool]:
    """Every promise of a policy, said once more from a plan's dump and by hand-made lists."""
    p = asked.model_dump(mode="json")
    name, a, s = p["algorithm"]["name"], p["algorithm"], p["protection"]
    dp, noise = p["training"]["dp"], s["noise"]
    n = len(set(company.members) - {company.host})
    t = s["threshold"] or {3: 3}[n]  # floor(2·3/3)+1 = 3
    exchanges = a["rounds"] * (a["steps"] if a.get("exchange") == "gradient" else 1)
    steps = 0 if a.get("exchange") == "epoch" else a.get("steps") or 0
    uncovered = name == "heterofl" or p["task"]["kind"] == "ranking"
    shows = (name == "fedkd" and a["factors"] == "per_party") or (
        name == "fedid" and a["feedback"] != "none"
    )
    opens_noised = noise is not None and name in {"fedid", "dsfl", "mhat", "feded"}
    order = ("none", "secagg", "he+secagg")

    def within(found: dict[str, Any], most: DPLimits | NoiseLimits) -> bool:
        target = found["target_epsilon"] or found["epsilon"]
        capped = most.max_target_epsilon is None or target <= most.max_target_epsilon
        return bool(
            found["epsilon"] <= most.max_epsilon and capped and found["delta"] <= most.max_delta
        )

    return {
        "began": held.not_before is None or held.not_before <= TODAY,
        "lasts": held.until is not None and TODAY <= held.until,
        "roster": company.fingerprint in held.rosters and company.me in company.members,
        "host": company.host is None
        or (held.may_be_host if company.host == company.me else company.host in held.hosts),
        "algorithm": name in held.algorithms and name != "centralized",
        "sums only": not shows or name in held.caveats,
        "records": p["dataset"] in held.datasets,
        "model": p["model"]["name"] in held.models,
        "embeddings": p["model"]["freeze_embeddings"] or not held.frozen_embeddings,
        "views": not p["run"]["record"] or held.recording,
        "sealed": order.index(s["mode"]) >= order.index(held.protection),
        "cohort": s["min_cohort"] >= held.min_cohort,
        "threshold": t >= company.threshold and company.threshold / n >= held.threshold_share,
        "bits": s["bits"] in held.bits,
        "rounds": exchanges <= held.max_rounds,
        "epochs": max(a["epochs"], a.get("distill_epochs") or 0) <= held.max_epochs,
        "steps": steps <= held.max_steps,
        "batch": min(p["training"]["batch_size"], (dp or {}).get("physical_batch") or 10**9)
        <= held.max_batch
        and (a.get("public_batch") or 0) <= held.max_batch
        and (name not in {"fedid", "gong"} or p["training"]["batch_size"] <= held.max_batch),
        "tier": name != "heterofl" or company.tier is not None or company.me == company.host,
        "dp": (dp is not None and not uncovered) or not held.dp.required,
        "dp limits": dp is None or within(dp, held.dp),
        "sharing": dp is None or dp["noise"] == "local" or dp["colluders"] >= held.dp.min_colluders,
        "unit": dp is None or dp["unit"] == "patient" or held.dp.unit == "record",
        "noise": opens_noised or company.host in (None, company.me) or not held.noise.required,
        "noise limits": noise is None
        or (within(noise, held.noise) and noise["colluders"] >= held.noise.min_colluders),
        "places": p["run"]["folder"] is None
        and ".." not in p["run"]["name"]
        and not (dp and dp["ledger"])
        and not (noise and noise["ledger"]),
    }


@settings(max_examples=150, deadline=None)
@given(held=policies(), flat=flats(), company=COMPANIES)
def test_accepted_means_that_every_promise_holds_and_refused_that_one_does_not(
    held: SitePolicy, flat: Flat, company: Company
) -> None:
    asked = made(flat)
    promises = restated(held, asked, company)
    broken = list(broken_rules(held, asked, company, TODAY))
    if all(promises.values()):
        assert broken == []
        check(held, asked, company, today=TODAY)
    else:
        assert broken, promises
        with pytest.raises(PolicyRefusal):
            check(held, asked, company, today=TODAY)


@settings(max_examples=120, deadline=None)
@given(held=policies(), mine=flats(), other=flats(), company=COMPANIES)
def test_fields_move_no_other_rule(
    held: SitePolicy, mine: Flat, other: Flat, company: Company
) -> None:
    def verdicts(flat: Flat) -> dict[str, Violation]:
        return {b.rule: b for b in broken_rules(held, made(flat), company, TODAY)}

    before = verdicts(mine)
    assert set(before) <= set(READS) | OF_THE_COMPANY
    for rule in [*READS, *OF_THE_COMPANY]:
        kept = READS.get(rule, set())
        mixed = {n: (mine if n in kept else other)[n] for n in POOL}
        if mixed["name"] == "gong":
            mixed["rounds"] = 1  # it has no other; `max_rounds` reads both
        assert verdicts(mixed).get(rule) == before.get(rule), rule


def test_the_two_properties_see_both_outcomes() -> None:
    """Else they would say nothing: many plans pass an open policy, and each rule is broken."""
    seen: dict[str, int] = {}
    passed = 0

    @settings(max_examples=900, deadline=None, database=None, derandomize=True)
    @given(held=policies(), flat=flats(), company=COMPANIES)
    def look(held: SitePolicy, flat: Flat, company: Company) -> None:
        nonlocal passed
        broken = list(broken_rules(held, made(flat), company, TODAY))
        passed += not broken
        for found in broken:
            seen[found.rule] = seen.get(found.rule, 0) + 1

    look()
    assert passed >= 15
    assert set(seen) == set(READS) | OF_THE_COMPANY
