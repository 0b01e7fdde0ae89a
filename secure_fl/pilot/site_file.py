"""Writes a hospital's `site.toml`, with comments that say what each line allows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from secure_fl.crypto.keys.files import write_atomic
from secure_fl.errors import SettingsError

LINE = re.compile(r"^rosters = \[[^\]\n]*\]$", re.M)
TEMPLATE = """\
# What a coordinator may ask of {name}. Everything that is not listed is refused.
# All fields: `secure-fl settings site`. Read anew whenever `join` starts.
[site]
algorithms = {algorithms}
models = {models}  # "tiny", or a checkpoint's name exactly as a plan gives it
datasets = {datasets}
# The roster's fingerprint; `secure-fl site check` writes it, when it was compared by telephone.
{rosters}
until = {until}  # the last day, in UTC
max_rounds = {rounds}
max_epochs = {epochs}
{dp}
# Where the records are; nobody else learns that. dev and test may be shares, such as 0.1.
[[data.set]]
name = {dataset}
train = {train}
dev = {dev}
test = {test}

[keys]
folder = "keys"
"""
MADE_UP = """
[site.dp]
required = false  # these notes are made up
"""
REAL = """
[site.dp]
# DP-SGD is required, with these limits for each patient.
max_epsilon = 1.0
unit = "patient"  # ids of records are PATIENT/NOTE
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked of a person who sets up a site; the rest has strict defaults."""

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


def write_site(file: Path, rules: Rules) -> None:
    """Write the file; nothing that is there is overwritten."""
    if file.exists():
        fix = "change it by hand, or take another folder"
        raise SettingsError("there is a policy already", file=str(file), fix=fix)
    text = TEMPLATE.format(
        name=rules.name,
        algorithms=json.dumps(rules.algorithms),
        models=json.dumps(rules.models),
        datasets=json.dumps([rules.dataset]),
        rosters=_rosters(rules.roster) if rules.roster else "rosters = []",
        until=rules.until.isoformat(),
        rounds=rules.rounds,
        epochs=rules.epochs,
        dp=MADE_UP if rules.made_up else REAL,
        dataset=json.dumps(rules.dataset),
        train=json.dumps(rules.train),
        dev=_source(rules.dev),
        test=_source(rules.test),
    )
    write_atomic(file, text.encode())


def set_roster(file: Path, fingerprint: str) -> None:
    """Allow the roster of this fingerprint, and no other, where the file has one line for that."""
    text = LINE.sub(_rosters(fingerprint), file.read_text(), count=1)
    write_atomic(file, text.encode())


def _rosters(fingerprint: str) -> str:
    return f'rosters = ["{fingerprint}"]'


def _source(given: str) -> str:
    return given if re.fullmatch(r"0?\.\d+", given) else json.dumps(given)
