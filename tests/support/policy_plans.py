"""Plans and policies for tests: one flat table, of which each test changes what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.crypto.keys.identity import spoken
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import DPLimits, NoiseLimits, SitePolicy
from secure_fl.policy.rules import Company, PolicyRefusal, Violation, check

TODAY = date(2026, 6, 1)
OURS, FOREIGN = spoken(b"ours"), spoken(b"foreign")
COMPANY = Company("north", ("east", "north", "south"), None, 3, OURS, "small")
HOSTED = replace(COMPANY, members=("clinic", *COMPANY.members), host="clinic")
OWN_HOST = replace(HOSTED, me="clinic")
POLICY = SitePolicy(
    algorithms=("fedavg",), rosters=(OURS,), datasets=("notes",), models=("tiny",), until=TODAY
)

# A plan as one flat table, so that tests can mix fields of two plans at will.
Flat = Mapping[str, Any]
PLAN: Flat = {
    "name": "fedavg",
    "rounds": 10,
    "epochs": 3,
    "steps": None,
    "distill_epochs": 3,
    "factors": "joint",
    "feedback": "none",
    "exchange": "epoch",
    "kind": "classification",
    "dataset": "notes",
    "model": "tiny",
    "frozen": True,
    "pooled_scores": True,
    "batch": 16,
    "public_batch": None,
    "mode": "he+secagg",
    "bits": 8,
    "min_cohort": 3,
    "threshold": None,
    "record": False,
    "folder": None,
    "run": "run",
    "dp": True,
    "dp.epsilon": 1.0,
    "dp.target": None,
    "dp.delta": 1e-5,
    "dp.unit": "patient",
    "dp.ledger": None,
    "dp.physical": None,
    "dp.noise": "local",
    "dp.colluders": 1,
    "noise": False,
    "noise.epsilon": 1.0,
    "noise.target": None,
    "noise.delta": 1e-5,
    "noise.colluders": 1,
    "noise.ledger": None,
}


def made(flat: Flat) -> Plan:
    """The plan of a flat table; what no valid plan can hold together is left out."""
    kind = ALGORITHMS[flat["name"]].settings
    own = (
        *("rounds", "epochs", "steps", "distill_epochs", "factors", "feedback", "exchange"),
        "public_batch",
    )
    algorithm = {name: flat[name] for name in own if name in kind.model_fields}
    if flat["name"] == "fedkd":  # steps are counted, and accepted, with one exchange for each
        algorithm["steps"] = (flat["steps"] or 1) if flat["exchange"] == "gradient" else 10
    protection: dict[str, Any] = {n: flat[n] for n in ("mode", "bits", "min_cohort", "threshold")}
    if flat["noise"] and flat["mode"] != "none":
        protection["noise"] = budget(flat, "noise") | {"colluders": flat["noise.colluders"]}
    own_dp = {n: flat[f"dp.{n}"] for n in ("unit", "noise", "colluders")}
    own_dp["physical_batch"] = flat["dp.physical"]
    dp = budget(flat, "dp") | own_dp if flat["dp"] else None
    return Plan.model_validate(
        {
            "run": {"name": flat["run"], "record": flat["record"], "folder": flat["folder"]},
            "task": {"kind": flat["kind"]},
            "model": {"name": flat["model"], "freeze_embeddings": flat["frozen"]},
            "training": {
                "dp": dp,
                "batch_size": flat["batch"],
                "pooled_scores": flat.get("pooled_scores", True),
            },
            "protection": protection,
            "algorithm": kind(**algorithm),
            "dataset": flat["dataset"],
            **flat.get("sections", {}),  # of optional features
        }
    )


def budget(flat: Flat, of: str) -> dict[str, Any]:
    target, ε = flat[f"{of}.target"], flat[f"{of}.epsilon"]
    return {
        "epsilon": ε,
        "delta": flat[f"{of}.delta"],
        "target_epsilon": target if target is not None and target <= ε else None,
        "ledger": flat[f"{of}.ledger"],
    }


def plan(**changes: Any) -> Plan:
    return made({**PLAN} | {name.replace("__", "."): value for name, value in changes.items()})


def policy(base: SitePolicy = POLICY, **changes: Any) -> SitePolicy:
    nested = {
        n: getattr(base, n).model_copy(update=changes.pop(n))
        for n in ("dp", "noise")
        if isinstance(changes.get(n), dict)
    }
    return SitePolicy(**{n: getattr(base, n) for n in SitePolicy.model_fields} | nested | changes)


def refused(*args: Any, today: date = TODAY) -> tuple[Violation, ...]:
    with pytest.raises(PolicyRefusal) as caught:
        check(*args, today=today)
    return caught.value.broken


FEDID = policy(algorithms=("fedid",), noise={"required": False}, hosts=("clinic",))
BEFORE, AFTER = date(2026, 5, 31), date(2026, 6, 2)


LISTED = [name for name in ALGORITHMS if name != "centralized"]


OPEN = SitePolicy(
    algorithms=tuple(LISTED),
    caveats=("fedkd", "fedid"),
    protection="none",
    min_cohort=1,
    threshold_share=0.6,
    bits=(8, 24),
    rosters=(OURS, FOREIGN),
    hosts=("clinic",),
    may_be_host=True,
    datasets=("notes", "letters"),
    models=("tiny", "bert-base-uncased"),
    frozen_embeddings=False,
    max_rounds=1111,
    max_epochs=9,
    max_steps=200,
    max_batch=1000,
    max_values=10**12,
    recording=True,
    until=TODAY,
    dp=DPLimits(required=False, max_epsilon=9.0, max_delta=0.01, unit="record"),
    noise=NoiseLimits(required=False, max_epsilon=9.0, max_delta=0.01, min_colluders=0),
)
