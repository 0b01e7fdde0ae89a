"""Checks of `secure-fl site check`. No records and no updates leave this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.cli.doctor import Check, check_disk, check_kit
from secure_fl.data.partition import iid
from secure_fl.data.record_problems import problems, weighed
from secure_fl.data.silo import Silo
from secure_fl.data.splits import Splits
from secure_fl.engines.flare.diagnosis import diagnose
from secure_fl.errors import SecureFLError
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.approvals import Approving, ledger_warning
from secure_fl.pilot.kits import PLAN, Kit
from secure_fl.pilot.plan import read_plan, rules_of_roster, spec_of
from secure_fl.pilot.site_memory import records_of
from secure_fl.policy.model_size import check_size
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SiteFile
from secure_fl.policy.rules import Company, check

BACKDATED = timedelta(hours=1)  # certificates begin this long before their creation
MOCK_HOSPITALS = 3  # of a rehearsal


def examine(rules: SiteFile, kit: Kit, *, rehearse: bool) -> Iterator[Check]:
    """Check everything that could prevent this site from joining."""
    yield from check_kit(kit.folder)
    yield check_clock(kit)
    yield check_disk(rules.file.absolute().parent)
    yield _connection(kit)
    yield _budget(rules, kit)
    try:
        plan = _plan(kit)
    except (SecureFLError, UnicodeDecodeError) as error:  # the coordinator wrote the text
        what = f"the kit's plan cannot be read: {error}"
        yield Check("plan", "problem", what, "ask the coordinator for another kit")
        return
    if plan is None:
        fix = "ask the coordinator for `pilot init --plan`; else `join` checks the plan"
        yield Check("plan", "note", "the kit has no plan to check against the rules", fix)
        return
    yield _allowed(rules, kit, plan)
    yield from _approved(rules, kit, plan)
    yield from _records(rules, kit, plan, rehearsal=rehearse)


def check_clock(kit: Kit) -> Check:
    """Compare this machine's clock with the creation of its certificate."""
    now = datetime.now(UTC)
    created = kit.tls.validity()[0] + BACKDATED
    time_text = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < created:
        minutes = (created - now) // timedelta(minutes=1) + 1
        behind = f"at least {minutes} minutes behind the coordinator's"
        return Check("clock", "problem", f"{time_text}, {behind}", "synchronise it by NTP")
    return Check("clock", "ok", time_text)


def _connection(kit: Kit) -> Check:
    url = kit.connection.url
    if why := diagnose(url, kit.tls):
        return Check("connection", "note", why, "expected if the coordinator has not been started")
    return Check("connection", "ok", f"{url} accepts this kit's certificate")


def _budget(rules: SiteFile, kit: Kit) -> Check:
    """Report the privacy ledger: a new or different one is a fresh budget."""
    name = kit.connection.name
    try:
        other = ledger_warning(rules, name)
    except SecureFLError as error:
        return Check("budget", "problem", error.what, error.fix)
    if other is not None:
        return Check("budget", "note", *other)
    file, folder = rules.ledger / name / LEDGER, rules.file.absolute().parent
    text = f"{file.relative_to(folder) if file.is_relative_to(folder) else file}"
    return Check("budget", "ok", text if file.exists() else f"a run will begin {text}")


def _plan(kit: Kit) -> Plan | None:
    file = kit.folder / PLAN
    return read_plan(file.read_text()) if file.exists() else None


def _allowed(rules: SiteFile, kit: Kit, plan: Plan) -> Check:
    name = kit.connection.name
    try:
        check(rules.policy, plan, Company.of(kit.roster, name))
        check_size(rules.policy, plan, name)
    except SecureFLError as error:
        return Check("plan", "problem", error.what, error.fix)
    what = f"{plan.run.name}: {plan.algorithm.name}, {plan.algorithm.rounds} rounds; allowed"
    return Check("plan", "ok", what)


def _approved(rules: SiteFile, kit: Kit, plan: Plan) -> Iterator[Check]:
    me = kit.roster.member(kit.connection.name).identity
    try:
        missing = list(Approving(rules, me).missing(plan))
    except SecureFLError as error:
        yield Check("approval", "problem", error.what, error.fix)
        return
    if missing:
        what = f"{missing[0].asked}; needed: {missing[0].allowed}"
        fix = f"secure-fl site approve {rules.file} --plan {kit.folder / PLAN} --keys KEYS"
        yield Check("approval", "note", what, fix)


def _preflight(plan: Plan, silo: Silo) -> Iterator[Check]:
    splits = Splits(tuple(silo.train), tuple(silo.dev), tuple(silo.test))
    task, weights = plan.task, weighed(plan.task, plan.training)
    for problem in problems(silo.name, splits, task, weighed=weights):
        yield Check("records", "note", problem.what, problem.fix)


def _noise(rules: SiteFile, kit: Kit, plan: Plan, silo: Silo) -> Iterator[Check]:
    """Warn if shared noise is too large for hospitals with as many records as this one."""
    from secure_fl.federation.validation import noise_warning  # it loads torch

    try:
        asked = rules_of_roster(kit.roster, plan, kit.roster.names)
        parties = sum(name != asked.host for name in kit.roster.names)
        text = noise_warning(spec_of(plan, rules.ledger), silo, parties, asked.threshold)
    except SecureFLError as error:
        yield Check("noise", "problem", error.what, error.fix)
        return
    if text is not None:
        yield Check("noise", "note", text)


def _records(rules: SiteFile, kit: Kit, plan: Plan, *, rehearsal: bool) -> Iterator[Check]:
    try:
        silo = records_of(rules, kit.roster.member(kit.connection.name), plan)
    except SecureFLError as error:
        yield Check("records", "problem", error.what, error.fix)
        return
    counts = ", ".join(f"{len(getattr(silo, part))} {part}" for part in ("train", "dev", "test"))
    yield Check("records", "ok", f"{plan.dataset}: {counts}")
    yield from _preflight(plan, silo)
    if plan.training.dp is not None:
        yield from _noise(rules, kit, plan, silo)
    if not rehearsal:
        return
    if not can_rehearse(plan):
        yield Check("rehearsal", "note", f"skipped: {plan.algorithm.name} needs other sites")
        return
    try:
        seconds = rehearse(plan, silo, Path(rules.file).absolute().parent)
    except SecureFLError as error:
        yield Check("rehearsal", "problem", error.what, error.fix)
        return
    yield Check(
        "rehearsal",
        "ok",
        f"one round with three mock hospitals: {seconds:.1f} s, nothing was saved",
    )


def can_rehearse(plan: Plan) -> bool:
    """Return True if one site can rehearse: the algorithm needs no host and no other tiers."""
    entry = ALGORITHMS[plan.algorithm.name]
    return not entry.has_host and not entry.partial_sums


def rehearse(plan: Plan, silo: Silo, folder: Path) -> float:
    """Train one round of the plan on parts of these records; return its seconds.

    `folder`: parent of a temporary folder on the site's own disk. A temporary ledger is charged,
    and deleted with the folder. So the rehearsal spends no privacy budget and leaves nothing.
    """
    from secure_fl.federation.federation import Federation  # it loads torch

    parts = iid(silo.train, MOCK_HOSPITALS, np.random.default_rng(0))
    silos = [
        Silo(f"part-{n}", part, silo.dev, silo.test, public=silo.public)
        for n, part in enumerate(parts, 1)
    ]
    with TemporaryDirectory(dir=folder, prefix=".rehearsal-") as place:
        spec = spec_of(plan, Path(place) / "ledger")
        short = spec.algorithm.model_copy(update={"rounds": 1})
        federation = Federation.of_spec(
            replace(spec, algorithm=short), silos, Path(place) / "run", progress=False
        )
        started = time.perf_counter()
        federation.run()
        return time.perf_counter() - started
