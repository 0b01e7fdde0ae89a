"""A coordinator's proposal: the shared part of a run's settings, as TOML, read strictly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from secure_fl.config import toml as config_toml
from secure_fl.config.build import algorithm_settings, plain
from secure_fl.config.toml import Table, Text, odd_values
from secure_fl.config.validation import validate
from secure_fl.errors import SettingsError
from secure_fl.federation.run_spec import RunSpec, feature_sections
from secure_fl.field_errors import sections
from secure_fl.policy.plan import Plan
from secure_fl.policy.questions import Proposal, QuestionPlan
from secure_fl.policy.rules import RUN_NAME
from secure_fl.statistics.questions import of_tables

DATASET = "dataset"

# Only the form in which plans are written: parsing any TOML could take hours for deep keys, lists
# over many lines or very long numbers.
MAX_ROWS = 1000
_TEXT = r'"(?:[^"\\\n]|\\.)*"'
_KEY = rf"(?:[A-Za-z0-9_-]{{1,80}}|{_TEXT})"
_VALUE = rf"(?:{_TEXT}|[-+.0-9A-Za-z_]{{1,40}})"
_ROW = re.compile(
    rf"(?:\[{_KEY}(?:\.{_KEY}){{0,2}}\]|\[\[{_KEY}(?:\.{_KEY}){{0,2}}\]\]"
    rf"|{_KEY} = (?:{_VALUE}|\[(?:{_VALUE}(?:, {_VALUE})*)?\]))?"
)


def write_plan(plan: Proposal) -> str:
    """Write a plan as TOML, with all defaults."""
    tables = plain(plan)
    return config_toml.write({DATASET: tables.pop(DATASET), **tables}).lstrip()


def read_plan(text: str) -> Plan:
    """Read a received plan to train by; see `read_proposal`."""
    return _a_plan(read_proposal(text))


def load_plan(file: Path) -> Plan:
    """Load a plan to train by; see `load_proposal`."""
    return _a_plan(load_proposal(file))


def _a_plan(proposal: Proposal) -> Plan:
    if not isinstance(proposal, Plan):
        raise SettingsError("these are questions, not a plan", fix="give a plan")
    return proposal


def read_proposal(text: str) -> Proposal:
    """Read a received proposal, only in the form that `write_plan` writes."""
    rows = text.split("\n")
    if len(rows) > MAX_ROWS or not all(map(_ROW.fullmatch, rows)):
        raise SettingsError("this is not in the form of a plan")
    return _checked(config_toml.parse(text, None), Text())


def load_proposal(file: Path) -> Proposal:
    """Read a plan or questions that a person wrote: any TOML, and errors name the line."""
    missing, instead = "check the path", "give the plan's TOML file"
    text = config_toml.read(file, "a plan", missing=missing, instead=instead)
    tables = config_toml.parse(text, str(file))
    where = Text(str(file), config_toml.lines(text))
    if "question" in tables:
        asked = of_tables(tables.pop("question"), where)
        tables["questions"] = QuestionPlan.of(asked, dataset="any").questions
    proposal = _checked(tables, where)
    require_run_name(proposal.run.name, str(file))
    return proposal


def require_run_name(name: str, file: str | None = None) -> None:
    """Refuse a run's name that could lead out of the folder of runs or of approvals."""
    if RUN_NAME.fullmatch(name) is None:
        raise SettingsError(
            f"the name of a run is a file's name, not {name[:80]!r}",
            fix="use 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first",
            field="run.name",
            file=file,
        )


def _checked(tables: Table, where: Text) -> Proposal:
    """Validate a proposal; unknown fields and other types are errors."""
    for key, value in odd_values(tables):
        raise where.error(f"{value}; no field takes that", key)
    if "questions" in tables:
        return _questions(tables, where)
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


def _questions(tables: Table, where: Text) -> QuestionPlan:
    """Validate questions, both where they are written and where they are received."""
    plan = validate(QuestionPlan, tables, (), where)
    try:
        if plan.asked and len({one.name for one in plan.asked}) == len(plan.asked):
            return plan
    except (
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ) as error:  # WrongValue is a ValueError, too
        raise where.error("these are not questions", ("questions",)) from error
    raise where.error("there is no question, or two have one name", ("questions",))


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
    return RunSpec(
        plan.algorithm,
        plan.task,
        plan.model,
        training,
        protection,
        plan.run.seed,
        sections=feature_sections(plan),
    )
