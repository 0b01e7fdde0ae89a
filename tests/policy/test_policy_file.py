"""A hospital's file: read whole, or refused with its line and field."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from secure_fl.errors import SettingsError
from secure_fl.policy.policy_file import SitePolicy, load_site
from secure_fl.policy.rules import check
from tests.support.policy_plans import COMPANY, OURS, TODAY, plan, policy, refused
from tests.support.raising import raises

FILE = f"""\
[site]
algorithms = ["fedavg"]
rosters = ["{OURS}"]
datasets = ["notes"]
models = ["tiny"]
not_before = 2026-05-01
until = 2026-12-31

[site.dp]
max_epsilon = 2

[[data.set]]
name = "notes"
train = "records/notes.csv"
dev = 0.2

[keys]
folder = "secrets"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "notes.csv").write_text("text,label\n")
    (tmp_path / "site.toml").write_text(FILE)
    return tmp_path / "site.toml"


def faulty(file: Path, old: str = "", new: str = "") -> SettingsError:
    assert old in FILE
    file.write_text(FILE.replace(old, new, 1))
    with raises(SettingsError, file=str(file)) as caught:
        load_site(file)
    return caught.value


def test_a_site_s_file_becomes_policy_files_and_keys(site: Path) -> None:
    found = load_site(str(site))
    assert found.policy == policy(
        not_before=date(2026, 5, 1), until=date(2026, 12, 31), dp={"max_epsilon": 2.0}
    )
    assert found.sets["notes"].train == str(site.parent / "records/notes.csv")
    assert found.sets["notes"].dev == 0.2
    assert found.keys == site.parent / "secrets"
    check(found.policy, plan(dp__epsilon=2.0), COMPANY, today=TODAY)


def test_a_file_with_an_empty_policy_allows_nothing(site: Path) -> None:
    site.write_text("[site]\n")
    found = load_site(site)
    assert found.policy == SitePolicy()
    assert (dict(found.sets), found.keys) == ({}, site.parent / "keys")
    assert refused(found.policy, plan(), COMPANY)


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "said"),
    [
        ("[site]", "[sight]", 1, "sight", "no such section"),
        ("models", "modells", 5, "site.modells", "no such field"),
        ("max_epsilon = 2", "max_epsilon = '2'", 10, "site.dp.max_epsilon", "allowed: a number"),
        ("max_epsilon = 2", "max_epsilon = inf", 10, "site.dp.max_epsilon", "found inf"),
        ("max_epsilon = 2", "required = 0", 10, "site.dp.required", "allowed: true or false"),
        ("max_epsilon = 2", "epsilon = 2", 10, "site.dp.epsilon", "no such field"),
        ('["fedavg"]', '["any"]', 2, "site.algorithms.1", 'found "any"; allowed: fedavg, fedadam'),
        ('["fedavg"]', '["centralized"]', 2, "site.algorithms.1", "allowed: fedavg, fedadam"),
        ('["fedavg"]', '"fedavg"', 2, "site.algorithms", "allowed: a list"),
        (OURS, "12345", 3, "site.rosters.1", "allowed: eight groups of five digits"),
        (OURS, f"{OURS}0", 3, "site.rosters.1", "allowed: eight groups of five digits"),
        ("2026-12-31", "2026-12-31T10:00:00", 7, "site.until", "a day, as in 2027-03-31"),
        ("2026-12-31", '"soon"', 7, "site.until", "a day, as in 2027-03-31"),
        ("2026-12-31", "20261231", 7, "site.until", "a day, as in 2027-03-31"),
        ('["notes"]', '["letters"]', 4, "site.datasets.1", "no files of that name"),
        ("dev = 0.2", "dev = 2026-01-01", 15, "data.set.1.dev", "found the date"),
        ("notes.csv", "gone.csv", 14, "data.set.1.train", "there is no such file"),
        ("dev = 0.2", 'public = "gone.csv"', 15, "data.set.1.public", "there is no such file"),
        ("dev = 0.2", "trian = 1", 15, "data.set.1.trian", "no such field"),
        ("[keys]", "[kys]", 17, "kys", "did you mean keys?"),
    ],
)
def test_faults_name_line(site: Path, old: str, new: str, line: int, field: str, said: str) -> None:
    error = faulty(site, old, new)
    assert (error.where["line"], error.where["field"]) == (line, field)
    assert said in str(error)


def test_a_file_without_a_policy_is_refused(site: Path) -> None:
    site.write_text('[keys]\nfolder = "secrets"\n')
    with raises(SettingsError, field="site") as caught:
        load_site(site)
    assert caught.value.where == {"file": str(site), "field": "site"}
    site.write_text("site = 1\n")
    with raises(SettingsError, line=1, field="site"):
        load_site(site)


def test_two_names_for_the_same_records_would_be_two_budgets(site: Path) -> None:
    again = '[[data.set]]\nname = "other"\ntrain = "records/../records/notes.csv"\n\n[keys]'
    error = faulty(site, "[keys]", again)
    assert (error.where["line"], error.where["field"]) == (19, "data.set.2.train")
    assert "these are the records of 'notes'" in error.what
    twice = faulty(site, "[keys]", '[[data.set]]\nname = "notes"\ntrain = "site.toml"\n\n[keys]')
    assert (twice.where["line"], twice.where["field"]) == (18, "data.set.2.name")


def made_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


UNREADABLE: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "there is no such file"),
    (lambda file: file.write_bytes(b"[site]\n\xff"), "byte 8 is not UTF-8"),
    (lambda file: file.write_bytes(b"#" * (1 << 20) + b"\n"), "too long for a policy"),
    (made_a_folder, "cannot be read"),
    (lambda file: file.write_text("[site\n"), "not TOML"),
]


@pytest.mark.parametrize(("spoil", "said"), UNREADABLE)
def test_unreadable_files_say_why(site: Path, spoil: Callable[[Path], object], said: str) -> None:
    spoil(site)
    with pytest.raises(SettingsError, match=said):
        load_site(site)


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_policy_that_everybody_may_change_is_none(site: Path) -> None:
    site.chmod(0o646)
    with pytest.raises(SettingsError, match="everybody on this machine may change it"):
        load_site(site)
    site.chmod(0o644)
    load_site(site)
