"""A policy in sentences, for whoever answers for the records; what is weaker is in capitals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from secure_fl.policy.policy_file import DPLimits, NoiseLimits, SitePolicy
from secure_fl.policy.site_rules import site_rules


def describe(policy: SitePolicy) -> list[str]:
    """Say a policy in sentences, one rule or two in each."""
    return [*_participation(policy), *_work(policy), *_privacy(policy), *_records(policy)]


def _participation(policy: SitePolicy) -> Iterator[str]:
    first = f" from {policy.not_before}" if policy.not_before else ""
    if policy.until is None:
        yield f"No run is allowed{first}: the policy names no last day (until)."
    else:
        yield f"Runs are allowed{first} up to {policy.until}, in UTC."
    rosters = "; ".join(policy.rosters)
    yield (
        f"This site takes part with these rosters: {rosters}."
        if rosters
        else ("This site takes part with no roster yet (rosters).")
    )
    yield f"The host may be: {_listed(policy.hosts, 'no other site')}; this site " + (
        "may be the host." if policy.may_be_host else "may not be the host."
    )


def _work(policy: SitePolicy) -> Iterator[str]:
    yield f"Algorithms: {_listed(policy.algorithms)}. Models: {_listed(policy.models)}."
    yield f"Programs may train on these sets of records: {_listed(policy.datasets)}."
    yield (
        f"A run has at most {policy.max_rounds} rounds; in each, at most {policy.max_epochs} "
        f"passes over the records, and {policy.max_steps} steps where steps are counted."
    )
    yield (
        f"It trains at most {policy.max_values:,} values, on at most {policy.max_batch} records "
        "at once."
    )
    yield f"May show parties more than sums: {_listed(policy.caveats)}."
    yield "Embeddings stay frozen." if policy.frozen_embeddings else "Embeddings may learn."
    for rules in site_rules():
        yield from rules.sentences(policy)
    yield (
        "VIEWS MAY BE RECORDED: they are as secret as the records."
        if policy.recording
        else "No view is recorded."
    )


def _privacy(policy: SitePolicy) -> Iterator[str]:
    yield (
        f"Sums are protected by {policy.protection} at least, over at least {policy.min_cohort} "
        f"parties and a share of {policy.threshold_share:.4g} of all, "
        f"with {_listed([str(bits) for bits in policy.bits])} bits."
    )
    if policy.protection != "he+secagg":
        yield f"{policy.protection} IS WEAKER THAN THE DEFAULT, he+secagg."
    if policy.min_cohort < 3:
        yield f"A SUM OVER {policy.min_cohort} SHOWS WHAT EACH CONTRIBUTED."
    dp, noise = policy.dp, policy.noise
    each = "patient" if dp.unit == "patient" else "record or patient"
    own = (
        ""
        if dp.own_epsilon is None
        else (f" This site adds so much noise that a run costs it ε = {dp.own_epsilon} at most.")
    )
    yield _limits(f"DP-SGD per {each}", dp) + (
        f" Shared noise holds against {dp.min_colluders} or more colluding parties.{own}"
    )
    yield _limits("Noise on what another site opens as the host", noise) + (
        f" It holds against {noise.min_colluders} or more colluding parties."
    )


def _records(policy: SitePolicy) -> Iterator[str]:
    if (rule := policy.approval) is not None:
        yield (
            f"A plan, and these rules, are approved by {rule.least} of {len(rule.by)} keys before "
            "anything runs."
        )
    if (days := policy.retention_days) is not None:
        yield f"Runs may be kept for {days} days after their last event."


def _limits(what: str, limits: DPLimits | NoiseLimits) -> str:
    must = "is required" if limits.required else "IS NOT REQUIRED"
    target = limits.max_target_epsilon
    run = "" if target is None else f", and the run's target at most {target}"
    return (
        f"{what} {must}; where it is used, its budget is at most ε = {limits.max_epsilon} "
        f"at δ = {limits.max_delta} or less{run}."
    )


def _listed(names: Sequence[str], nobody: str = "none") -> str:
    return ", ".join(names) or nobody
