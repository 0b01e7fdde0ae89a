"""A coordinator's proposal: the shared part of a run's settings, as TOML, read strictly.

The id of its run is specified in docs/protocol-bytes.md 3.6. Every key stream and every proof of a
run is bound to its id. A coordinator that could repeat an id could repeat masks, so each party
contributes a nonce and computes the id itself:

    run = H(roster, plan, members, nonce of each)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from secure_fl.config import toml as config_toml
from secure_fl.config.build import algorithm_settings, plain
from secure_fl.config.toml import SettingsText, Table, odd_values
from secure_fl.config.validation import validate
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import CohortError, SettingsError
from secure_fl.federation.run_spec import RunSpec
from secure_fl.field_errors import sections
from secure_fl.policy.plan import Plan
from secure_fl.policy.rules import RUN_NAME
from secure_fl.thresholds import require_maskable

DATASET = "dataset"
NONCE = RUN = 16
RESTARTED = "restarted"  # code of a site whose process restarted since it joined

# Only the form in which plans are written: parsing any TOML could take hours for deep keys, lists
# over many lines or very long numbers.
MAX_ROWS = 1000
_TEXT = r'"(?:[^"\\\n]|\\.)*"'
_KEY = rf"(?:[A-Za-z0-9_-]{{1,200}}|{_TEXT})"
_VALUE = rf"(?:{_TEXT}|[-+.0-9A-Za-z_]{{1,40}})"
_ROW = re.compile(
    rf"(?:\[{_KEY}(?:\.{_KEY}){{0,2}}\]|\[\[{_KEY}(?:\.{_KEY}){{0,2}}\]\]"
    rf"|{_KEY} = (?:{_VALUE}|\[(?:{_VALUE}(?:, {_VALUE})*)?\]))?"
)


def write_plan(plan: Plan) -> str:
    """Write a plan as TOML, with all defaults."""
    tables = plain(plan)
    return config_toml.write({DATASET: tables.pop(DATASET), **tables}).lstrip()


def read_plan(text: str) -> Plan:
    """Read a received plan, only in the form that `write_plan` writes."""
    return _checked(plan_tables(text), SettingsText())


def plan_tables(text: str) -> Table:
    """Parse the text of a plan that comes from somebody else."""
    rows = text.split("\n")
    if len(rows) > MAX_ROWS:
        what = f"the plan has {len(rows)} lines; at most {MAX_ROWS} are allowed"
        raise SettingsError(what, fix="name fewer values, variables or tables")
    for number, row in enumerate(rows, start=1):
        if not _ROW.fullmatch(row):
            what = f"line {number} of the plan, as it is sent, is not in the form of a plan"
            raise SettingsError(what, fix="shorten the names and values in it")
    return config_toml.parse(text, None)


def load_plan(file: Path) -> Plan:
    """Read a plan that a person wrote: any TOML, if sites can read it as `write_plan` writes it.

    Errors name the line.
    """
    missing, instead = "check the path", "give the plan's TOML file"
    text = config_toml.read(file, "a plan", missing=missing, instead=instead)
    tables = config_toml.parse(text, str(file))
    plan = _checked(tables, SettingsText(str(file), config_toml.lines(text)))
    require_run_name(plan.run.name, str(file))
    try:
        plan_tables(write_plan(plan))
    except SettingsError as error:
        raise SettingsError(error.what, fix=error.fix, file=str(file)) from None
    return plan


def require_run_name(name: str, file: str | None = None) -> None:
    """Refuse a run's name that could lead out of the folder of runs or of approvals."""
    if RUN_NAME.fullmatch(name) is None:
        what = f"the name of a run is a file's name, not {name[:80]!r}"
        fix = "use 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first"
        raise SettingsError(what, fix=fix, field="run.name", file=file)


def _checked(tables: Table, where: SettingsText) -> Plan:
    """Validate a plan; unknown fields and other types are errors."""
    for key, value in odd_values(tables):
        raise where.error(f"{value}; no field takes that", key)
    if unknown := sorted(set(tables) - set(Plan.model_fields)):
        raise where.error("there is no such section in a plan", (unknown[0],))
    if not isinstance(tables.get("algorithm"), dict) or not isinstance(tables.get(DATASET), str):
        raise SettingsError("a plan names an [algorithm] and a dataset", fix="give both")
    parts: dict[str, Any] = {DATASET: tables[DATASET]}
    for name, field in Plan.model_fields.items():
        if name in ("algorithm", DATASET) or (field.default is None and name not in tables):
            continue
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise where.error("a section is a table", (name,))
        parts[name] = validate(next(sections(field.annotation)), table, (name,), where)
    cls = algorithm_settings(tables["algorithm"], where)
    parts["algorithm"] = validate(cls, tables["algorithm"], ("algorithm",), where)
    try:
        return Plan.model_validate(parts)
    except ValidationError as error:
        raise where.error("this is not a name of records", (DATASET,)) from error


def spec_of(plan: Plan, ledger: Path) -> RunSpec:
    """Make a run's specification from a plan, with the site's ledger for all runs.

    A plan cannot name a ledger (`policy.rules`), because a new name would be a new budget.
    """
    training, protection, place = plan.training, plan.protection, {"ledger": str(ledger)}
    if training.dp is not None:
        training = training.model_copy(update={"dp": training.dp.model_copy(update=place)})
    if protection.noise is not None:
        noise = protection.noise.model_copy(update=place)
        protection = protection.model_copy(update={"noise": noise})
    return replace(RunSpec.of(plan), training=training, protection=protection)


def run_id(roster: Roster, plan: str, nonces: Mapping[str, bytes]) -> bytes:
    """Compute the id of the run of these members under this plan."""
    parts = [b"secure_fl/1 run", roster.canonical(), plan.encode()]
    for name in sorted(nonces):
        parts += [name.encode(), nonces[name]]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()[:RUN]


def rules_of_roster(roster: Roster, plan: Plan, members: tuple[str, ...]) -> CoordinatorRules:
    """Derive the run's rules from the signed roster, not from the coordinator."""
    host = roster.host.name if roster.host is not None else None
    parties, least = [name for name in members if name != host], plan.protection.min_cohort
    threshold = max(roster.t, plan.protection.threshold or 0)
    if len(parties) < max(threshold, least):
        raise CohortError(
            f"{len(parties)} parties accepted; sums need {threshold}, and at least {least}",
            fix="wait for the others",
        )
    if plan.protection.mode != "none":
        require_maskable(len(parties))
    return CoordinatorRules(host, least, threshold, goes_back=False, spares=True)
