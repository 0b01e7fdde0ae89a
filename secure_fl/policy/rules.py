"""Compares a coordinator's plan with the hospital's own policy.

    check(policy, plan, company)    before any program starts; raises PolicyRefusal

A rule reads the policy and the fields it is about, and nothing else: no field of a plan changes
what another field may be. All broken rules are told together, at the site; `policy` is all that
crosses the wire.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, get_args

from secure_fl.algorithms.base import Algorithm
from secure_fl.policy.plan import Plan, entry_of
from secure_fl.policy.site_rules import site_rules
from secure_fl.policy.violations import PolicyRefusal, Violation, at_least, at_most, listed, shown
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.thresholds import default_threshold

__all__ = ["Company", "PolicyRefusal", "Violation", "broken_rules", "check"]

if TYPE_CHECKING:
    from secure_fl.algorithms.base import Demands
    from secure_fl.crypto.keys.roster import Roster
    from secure_fl.policy.policy_file import DPLimits, NoiseLimits, SitePolicy

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Company:
    """The members, from the signed roster and not from the coordinator."""

    me: str
    members: tuple[str, ...]
    host: str | None
    threshold: int  # that the members signed
    fingerprint: str
    tier: str | None = None  # of this site, as it has signed it

    @classmethod
    def of(cls, roster: Roster, me: str) -> Company:
        """Take it from a roster; `Roster.verify` must have passed."""
        host = roster.host.name if roster.host else None
        tiers = {member.name: member.tier for member in roster.members}
        return cls(me, roster.names, host, roster.t, roster.fingerprint(), tiers.get(me))

    @property
    def parties(self) -> int:
        """How many contribute to sums."""
        return sum(name != self.host for name in self.members)


def check(policy: SitePolicy, plan: Plan, company: Company, *, today: date | None = None) -> None:
    """Raise PolicyRefusal with every rule that the plan breaks."""
    if broken := tuple(broken_rules(policy, plan, company, today or datetime.now(UTC).date())):
        raise PolicyRefusal(broken, party=company.me)


def broken_rules(
    policy: SitePolicy, plan: Plan, company: Company, today: date
) -> Iterator[Violation]:
    """Give every rule that a plan breaks."""
    yield from when_broken(policy, today)
    yield from who_broken(policy, company)
    yield from _what(policy, plan)
    yield from sums_broken(policy, plan.protection, company)
    yield from _how_much(policy, plan.algorithm.demands(plan.training, values=0), plan)
    yield from _tier(plan.algorithm, company)
    yield from _dp(policy.dp, plan)
    yield from _noise(policy.noise, plan, company)
    yield from _places(plan)


def when_broken(policy: SitePolicy, today: date) -> Iterator[Violation]:
    """Check the days on which this site takes part."""
    first, last = policy.not_before, policy.until
    if first is not None and today < first:
        fix = f"wait, or set not_before = {today} in [site]"
        yield Violation("site.not_before", f"a run on {today}", f"from {first} on", fix)
    if last is None or today > last:
        allowed = "no day, for none is named" if last is None else f"up to {last}"
        fix = "set until in [site] to the last day of the study"
        yield Violation("site.until", f"a run on {today}", allowed, fix)


def who_broken(policy: SitePolicy, company: Company) -> Iterator[Violation]:
    """Check the roster, and who is the host."""
    yield from listed("site.rosters", company.fingerprint, policy.rosters)
    if company.me not in company.members:
        fix = "join with a roster that this site has signed"
        members = ", ".join(map(shown, company.members))
        yield Violation("roster.members", shown(company.me), members, fix)
    if company.host == company.me:
        if not policy.may_be_host:
            fix = "set may_be_host = true in [site]"
            yield Violation("site.may_be_host", "this site as host", "only as a party", fix)
    elif company.host is not None:
        yield from listed("site.hosts", company.host, policy.hosts)


def _what(policy: SitePolicy, plan: Plan) -> Iterator[Violation]:
    name, caveat = plan.algorithm.name, plan.algorithm.caveat
    for found in listed("site.algorithms", name, policy.algorithms):
        entry = entry_of(name)
        if entry is None or entry.pools_data:
            fix = "nothing: no site can allow records in one place, or what is not installed"
            found = Violation(found.rule, found.asked, found.allowed, fix)
        yield found
    if caveat and name not in policy.caveats:
        fix = f"add {shown(name)} to caveats in [site]"
        yield Violation("site.caveats", shown(caveat, 200), "sums only", fix)
    yield from listed("site.datasets", plan.dataset, policy.datasets)
    for model in plan.algorithm.reads(plan.model):
        yield from listed("site.models", model, policy.models)
    if policy.frozen_embeddings and not plan.model.freeze_embeddings:
        fix = "set frozen_embeddings = false in [site]"
        yield Violation("site.frozen_embeddings", "embeddings that learn", "frozen ones", fix)
    for rules in site_rules():
        yield from rules.broken(policy, plan)
    if plan.run.record and not policy.recording:
        fix = "set recording = true in [site], for made-up records only"
        yield Violation("site.recording", "recorded views", "none", fix)


def sums_broken(
    policy: SitePolicy, asked: ProtectionSettings, company: Company
) -> Iterator[Violation]:
    """Check how sums are protected, and over how many they are."""
    modes = get_args(Protection)  # the weakest first
    enough = modes[modes.index(policy.protection) :]
    if asked.mode not in enough:
        fix = f'set protection = "{asked.mode}" in [site]'
        yield Violation("site.protection", asked.mode, " or ".join(enough), fix)
    yield from at_least("site.min_cohort", asked.min_cohort, policy.min_cohort)
    n = company.parties
    t = asked.threshold or max(default_threshold(n), company.threshold)
    least = math.ceil(policy.threshold_share * n - 1e-9)  # 0.56 of 25 are 14
    if (lower := min(t, company.threshold)) < least:  # a plan's own may not outlast the roster's
        fix = "lower threshold_share in [site], or let all members sign a higher threshold"
        yield Violation("site.threshold_share", f"{lower} of {n} parties", f"{least} or more", fix)
    if t < company.threshold:
        fix = "nothing here: ask for a plan without protection.threshold, or with an allowed one"
        yield Violation("roster.threshold", f"{t} of {n} parties", f"{company.threshold}", fix)
    if asked.bits not in policy.bits:
        allowed = ", ".join(map(str, policy.bits)) or "none"
        fix = f"add {asked.bits} to bits in [site]"
        yield Violation("site.bits", f"{asked.bits}", allowed, fix)


def _how_much(policy: SitePolicy, asked: Demands, plan: Plan) -> Iterator[Violation]:
    """Check rounds, passes, steps and batches against the limits; `size` checks the models."""
    again = sum(rules.extra_rounds(plan) for rules in site_rules())
    exchanges = asked.exchanges + again * math.ceil(asked.exchanges / plan.algorithm.rounds)
    yield from at_most("site.max_rounds", exchanges, policy.max_rounds)
    yield from at_most("site.max_epochs", asked.passes, policy.max_epochs)
    yield from at_most("site.max_steps", asked.steps, policy.max_steps)
    batch = asked.batch * plan.task.windows  # each is in memory as a record is
    yield from at_most("site.max_batch", batch, policy.max_batch)


def _tier(algorithm: Algorithm, company: Company) -> Iterator[Violation]:
    """Refuse tiers at a site to which the signed roster gives none: size is what it signed."""
    entry = entry_of(algorithm.name)
    by_tiers = entry is not None and entry.partial_sums
    if by_tiers and company.tier is None and company.me != company.host:
        fix = (
            f"make a roster with --tier {company.me}=TIER (`secure-fl keys roster`), that all sign"
        )
        yield Violation("roster.tier", f"{shown(algorithm.name)}, by tiers", "none: no tier", fix)


def _dp(limits: DPLimits, plan: Plan) -> Iterator[Violation]:
    dp, name = plan.training.dp, plan.algorithm.name
    entry = entry_of(name)
    covered = entry is not None and entry.dp_covers_all and plan.task.kind != "ranking"
    trains = entry is None or not entry.trains_nothing
    if limits.required and trains and (dp is None or not covered):
        asked = f"DP-SGD under {shown(name)}, which it cannot cover" if dp else "none"
        fix = "set required = false in [site.dp]"
        yield Violation("site.dp.required", asked, "DP-SGD that covers all that is sent", fix)
    if dp is None:
        return
    yield from _costs("site.dp", dp.epsilon, dp.target_epsilon, dp.delta, limits)
    if dp.noise == "shared":
        yield from at_least("site.dp.min_colluders", dp.colluders, limits.min_colluders)
    if limits.unit == "patient" and dp.unit != "patient":
        yield Violation("site.dp.unit", dp.unit, "patient", 'set unit = "record" in [site.dp]')


def _noise(limits: NoiseLimits, plan: Plan, company: Company) -> Iterator[Violation]:
    noise, name = plan.protection.noise, plan.algorithm.name
    elsewhere = company.host not in (None, company.me)
    entry = entry_of(name)
    covered = noise is not None and entry is not None and entry.opens_predictions
    if limits.required and elsewhere and not covered:
        asked = f"noise under {shown(name)}, which it cannot cover" if noise else "none"
        fix = "set required = false in [site.noise]"
        yield Violation("site.noise.required", asked, "noise on all that a host opens", fix)
    if noise is None:
        return
    yield from _costs("site.noise", noise.epsilon, noise.target_epsilon, noise.delta, limits)
    yield from at_least("site.noise.min_colluders", noise.colluders, limits.min_colluders)


def _places(plan: Plan) -> Iterator[Violation]:
    """A plan names no place on this site's disk: another ledger would be another budget."""
    dp, noise = plan.training.dp, plan.protection.noise
    named = {
        "run.folder": plan.run.folder is not None,
        "run.name": RUN_NAME.fullmatch(plan.run.name) is None,  # folders are called by it
        "training.dp.ledger": dp is not None and dp.ledger is not None,
        "protection.noise.ledger": noise is not None and noise.ledger is not None,
    }
    if found := [name for name, wrong in named.items() if wrong]:
        fix = "nothing here: where files lie is this site's affair; ask for a plan without it"
        yield Violation("plan.places", ", ".join(found), "no place, and a plain name", fix)


def _costs(
    section: str, ε: float, target: float | None, δ: float, limits: DPLimits | NoiseLimits
) -> Iterator[Violation]:
    yield from at_most(f"{section}.max_epsilon", ε, limits.max_epsilon)
    run, most = ε if target is None else target, limits.max_target_epsilon
    if most is not None:
        yield from at_most(f"{section}.max_target_epsilon", run, most)
    yield from at_most(f"{section}.max_delta", δ, limits.max_delta)
