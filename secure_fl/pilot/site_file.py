"""Writer of a hospital's `site.toml`, with comments on each line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from secure_fl.config.data import HUB
from secure_fl.crypto.keys.files import write_atomic
from secure_fl.errors import SettingsError
from secure_fl.policy.policy_file import is_fingerprint, load_site

if TYPE_CHECKING:
    from secure_fl.data.rows import Field
    from secure_fl.policy.policy_file import DataSet

LINE = re.compile(r"^rosters *= *\[[^\]\n]*\](?=[ \t]*(#.*)?$)", re.M)
TEMPLATE = """\
# Rules of {name}. A plan with anything that is not listed is refused.
# All fields: `secure-fl settings site`. Read at each start of `join`.
[site]
algorithms = {algorithms}
models = {models}  # "tiny", or a checkpoint's name exactly as a plan gives it
datasets = {datasets}
# The roster's fingerprint; `secure-fl site check` writes it after the comparison by phone.
{rosters}
until = {until}  # the last day, in UTC
max_rounds = {rounds}
max_epochs = {epochs}
{dp}
# Files of the records; never sent. dev and test may be fractions, such as 0.1.
[[data.set]]
name = {dataset}
train = {train}
dev = {dev}
test = {test}
{columns}

[keys]
folder = "keys"
"""
MADE_UP = """
[site.dp]
required = false  # these notes are synthetic
"""
REAL = """
[site.dp]
# DP-SGD is required, with these limits per patient.
max_epsilon = 1.0
unit = "patient"  # record ids are PATIENT/NOTE
"""

EXAMPLE = '# columns = { text = "note", label = "code", patient = "person" }  # if yours differ'
READ: tuple[Field, ...] = ("text", "tokens", "history", "label")


@dataclass(frozen=True, slots=True)
class Rules:
    """Values that a person gives for a site; the rest has strict defaults."""

    name: str
    algorithms: tuple[str, ...]
    models: tuple[str, ...]
    dataset: str
    train: str
    dev: str
    test: str
    until: date
    rounds: int = 10
    epochs: int = 3
    made_up: bool = False
    roster: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


def write_site(file: Path, rules: Rules) -> None:
    """Write a new file."""
    if file.exists():
        fix = "edit it, or use another folder"
        raise SettingsError("the file exists", file=str(file), fix=fix)
    text = TEMPLATE.format(
        name=rules.name,
        algorithms=json.dumps(rules.algorithms),
        models=json.dumps(rules.models),
        datasets=json.dumps([rules.dataset]),
        rosters=_rosters([rules.roster] if rules.roster else []),
        until=rules.until.isoformat(),
        rounds=rules.rounds,
        epochs=rules.epochs,
        dp=MADE_UP if rules.made_up else REAL,
        dataset=json.dumps(rules.dataset),
        train=json.dumps(rules.train),
        dev=_source(rules.dev),
        test=_source(rules.test),
        columns=_columns(rules.columns),
    )
    write_atomic(file, text.encode())


def set_roster(file: Path, fingerprint: str, replaces: str | None = None) -> list[str]:
    """Add this fingerprint to the file's `rosters` line, and return the entries that it removed.

    They are `replaces`, the fingerprint of the older roster, and entries that are no fingerprints.
    A file without this line is refused.
    """
    text = file.read_text()
    line = LINE.search(text)
    if line is None and fingerprint not in load_site(file).policy.rosters:
        what = "the approved roster could not be written: no line begins with rosters = ["
        fix = f"write {_rosters([fingerprint])} into [site], in one line"
        raise SettingsError(what, file=str(file), fix=fix, field="site.rosters")
    listed = [] if line is None else re.findall(r"""["']([^"'\n]*)["']""", line[0])
    kept = [
        one for one in listed if is_fingerprint(one) and one.split() != (replaces or "").split()
    ]
    if fingerprint.split() not in [one.split() for one in kept]:
        kept.append(fingerprint)
    if line is not None:
        text = f"{text[: line.start()]}{_rosters(kept)}{text[line.end() :]}"
    write_atomic(file, text.encode())
    return [one for one in listed if one not in kept]


def require_columns(data: DataSet) -> None:
    """Refuse training records without a readable column; only the first record is read."""
    from secure_fl.data.loaders import rows_of
    from secure_fl.data.rows import optional, required

    columns = data.columns
    if data.train is None or data.train.startswith(HUB):
        return
    for row in islice(rows_of(data.train, data.format), 1):
        found = [optional(row, name, columns) for name in READ]
        if all(value is None for value in found):
            required(row, "text", columns)
        optional(row, "patient", columns)


def _columns(columns: Mapping[str, str]) -> str:
    if not columns:
        return EXAMPLE
    pairs = ", ".join(f"{name} = {json.dumps(column)}" for name, column in columns.items())
    return f"columns = {{ {pairs} }}"


def _rosters(fingerprints: Sequence[str]) -> str:
    return f"rosters = {json.dumps(list(fingerprints))}"


def _source(given: str) -> str:
    try:
        share = float(given)
    except ValueError:
        return json.dumps(given)
    return repr(share) if 0 <= share < 1 else json.dumps(given)
