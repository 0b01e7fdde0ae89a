"""`site check` writes the approved roster into the site's file, or says that it could not."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from secure_fl.errors import SettingsError
from secure_fl.pilot.site_file import Rules, set_roster, write_site
from secure_fl.policy.policy_file import load_site
from tests.support.raising import raises

FINGERPRINT = "36024 21874 54170 61298 79133 21908 34217 14091"
FILE = '[site]\nalgorithms = ["fedavg"]\n{line}\nuntil = 2030-01-01\n'


@pytest.mark.parametrize(
    "line",
    [
        "rosters = []",
        "rosters=[]",
        'rosters = ["1"]  # by phone',
        'rosters = [\n  "' + FINGERPRINT + '",\n]',
    ],
)
def test_the_roster_is_written(line: str, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(FILE.format(line=line))
    set_roster(file, FINGERPRINT)
    assert load_site(file).policy.rosters == (FINGERPRINT,)
    assert ("# by phone" in line) == ("# by phone" in file.read_text())


def test_rosters_of_other_pilots_stay_and_a_replaced_one_is_removed(tmp_path: Path) -> None:
    other, old = FINGERPRINT.replace("3", "4"), FINGERPRINT.replace("1", "2")
    file = tmp_path / "site.toml"
    file.write_text(FILE.format(line=f'rosters = ["{old}", "{other}"]  # by phone'))
    assert set_roster(file, FINGERPRINT) == []
    assert load_site(file).policy.rosters == (old, other, FINGERPRINT)
    assert set_roster(file, FINGERPRINT, replaces=old) == [old]
    assert set_roster(file, FINGERPRINT, replaces=FINGERPRINT.replace("1", "9")) == []
    assert load_site(file).policy.rosters == (other, FINGERPRINT)


@pytest.mark.parametrize("dev", [".1", "1e-1", "0", "0.10"])
def test_dev_and_test_are_shares_in_any_form(dev: str, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).touch()
    until = date(2030, 1, 1)
    write_site(file, Rules("n", ("fedavg",), ("tiny",), "notes", "a.csv", dev, "b.csv", until))
    (records,) = load_site(file).sets.values()
    assert (records.dev, records.test) == (float(dev), str(tmp_path / "b.csv"))


@pytest.mark.parametrize("line", ["", 'rosters = [\n  "' + FINGERPRINT[::-1] + '",\n]'])
def test_a_file_without_a_line_to_write_is_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(FILE.format(line=line))
    with raises(SettingsError, f'rosters = ["{FINGERPRINT}"]', field="site.rosters"):
        set_roster(file, FINGERPRINT)
