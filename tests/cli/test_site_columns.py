"""A site names the columns of its records, and wrong ones are reported by `site init`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

from secure_fl.data.loaders import load
from secure_fl.learning.dp.scope import sampling_units
from secure_fl.policy.policy_file import load_site
from secure_fl.settings import DPSettings
from tests.support.command_line import ran, run

CSV = "note,harm,person\nrash after tablets,ade,p1\nno complaints,none,p2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECURE_FL_PASSPHRASE", "a long passphrase of words")
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    Path("north.csv").write_text(CSV, encoding="utf-8")
    return tmp_path


def init(*options: str, train: str = "north.csv") -> Result:
    return run("site", "init", "north", "--dataset", "notes", "--train", train, *options)


def test_columns_that_nobody_can_read_are_refused_and_nothing_is_left() -> None:
    found = init()
    assert found.exit_code == 2
    assert "no such column; columns: note, harm, person" in found.stderr
    assert "[[data.set]]" in found.stderr and "--column text=..." in found.stderr
    assert not Path("site.toml").exists() and not Path("keys").exists()


def test_named_columns_are_written_and_read() -> None:
    found = init("--column", "text=note", "--column", "label=harm", "--column", "patient=person")
    assert found.exit_code == 0, found.output
    (records,) = load_site("site.toml").sets.values()
    assert (records.columns.text, records.columns.patient) == ("note", "person")
    ran("site", "init", "x", "--column", "words=note", code=2)


def test_made_up_notes_can_have_patients(folder: Path) -> None:
    ran("data", "make", "ade", "--out", "made", "--size", "24", "--patients")
    parts = [load(f"made/hospital-1/{part}.jsonl", "classification") for part in ("train", "test")]
    train, test = ({one.id.partition("/")[0] for one in part} for part in parts)
    assert not train & test
    per_patient = DPSettings(epsilon=8.0, unit="patient")
    units = sampling_units(parts[0], per_patient, "hospital-1")
    assert sum(map(len, units)) == 24 and {len(unit) for unit in units} == {1, 2, 3}
