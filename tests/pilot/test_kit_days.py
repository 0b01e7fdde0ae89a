"""Kits end: it is said when they are made, a fortnight before, and when it is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from secure_fl.cli.main import main
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.roster_files import roster_bytes
from secure_fl.crypto.keys.vault import Cost
from secure_fl.errors import KeyringError
from secure_fl.pilot import certificates
from secure_fl.pilot.kits import load_kit, write_kits
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.raising import raises

THE_HUB = Identity.generate("hub")


def roster(days: float = 365) -> Roster:
    sites = [Identity.generate(name) for name in ("north", "south", "east")]
    cards = tuple(Member(s.name, "party", None, s.public) for s in sites)
    made = make_roster(cards, THE_HUB.public, days=days)
    for site in sites:
        made = made.sign(site)
    return made


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, list(map(str, arguments)), prog_name="secure-fl")
    assert done.exit_code == code, done.output
    return done


def day(days: float) -> str:
    return f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}"


class Earlier(datetime):
    """A clock that is 91 days behind."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) - timedelta(days=91)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Certificates are made 91 days ago."""
    monkeypatch.setattr(certificates, "datetime", Earlier)
    return monkeypatch


@pytest.mark.parametrize(("asked", "days"), [([], 90), (["--days", 30], 30)])
def test_init_says_the_last_days(tmp_path, asked, days):
    KeyRing(tmp_path / "keys", "correct horse battery", Cost(log_n=10)).create(THE_HUB)
    (tmp_path / "passphrase").write_text("correct horse battery")
    (tmp_path / "passphrase").chmod(0o600)
    (tmp_path / "roster.json").write_bytes(roster_bytes(roster()))
    for name in ("north", "south", "east"):
        (tmp_path / f"{name}.bundle").write_bytes(b"the dealer's")
    options = ["--host", "localhost", "-o", tmp_path / "kits", "--bundles", tmp_path, *asked]
    opened = ["--keys", tmp_path / "keys", "--passphrase-file", tmp_path / "passphrase"]
    said = run("pilot", "init", tmp_path / "roster.json", *options, *opened).output
    assert f"last day of the certificates: {day(days)}" in said
    assert f"last day of the roster: {day(365)}" in said


@pytest.mark.parametrize(
    ("kit_days", "roster_days", "warned"),
    [(90, 365, []), (13, 365, ["certificates"]), (90, 12.5, ["roster"]), (9, 9, ["both", "two"])],
)
def test_a_fortnight_before_it_is_said(tmp_path, kit_days, roster_days, warned):
    kits = write_kits(roster(roster_days), tmp_path, ("localhost",), 8443, days=kit_days)
    found = load_kit(kits["north"]).warnings()
    assert len(found) == len(warned)
    for text in found:
        assert "pilot init" in text or "keys roster --after" in text
    shown = run("doctor", "--kit", kits["north"]).output
    assert f"for north, valid until {day(min(kit_days, roster_days))}" in shown
    assert shown.count("last day of this kit's") == len(warned)


@pytest.mark.parametrize(("control", "noted"), [("cubic", True), ("bbr", False), (None, False)])
def test_a_kernel_that_slows_down_at_each_lost_packet_is_said(
    tmp_path, monkeypatch, control, noted
):
    file = tmp_path / "control"
    if control is not None:  # else this system does not tell
        file.write_text(f"{control}\n")
    monkeypatch.setattr("secure_fl.engines.flare.diagnosis.CONGESTION", file)
    kits = write_kits(roster(), tmp_path, ("localhost",), 8443)
    shown = run("doctor", "--kit", kits["north"]).output
    assert ("secure-fl.sysctl.conf" in shown) == noted


def test_what_is_over_is_refused_and_says_what_to_do(tmp_path, old):
    kits = write_kits(roster(), tmp_path, ("localhost",), 8443)
    for kit in kits.values():
        with pytest.raises(KeyringError, match=f"expired on {day(-1)}") as caught:
            load_kit(kit)
        assert "pilot init" in caught.value.fix
    old.undo()
    shown = run("doctor", "--kit", kits["hub"], code=1).output
    assert "expired on" in shown and "pilot init" in shown


def test_a_clock_that_is_behind_is_told_apart(tmp_path, monkeypatch):
    kits = write_kits(roster(), tmp_path, ("localhost",), 8443)
    monkeypatch.setattr("secure_fl.pilot.kits.datetime", Earlier)
    with raises(KeyringError, "valid from", "clock"):
        load_kit(kits["north"])


@pytest.fixture
def trial(tmp_path: Path, old: pytest.MonkeyPatch) -> PilotFolders:
    names = ("north", "south", "east")
    return make_pilot_folders(
        tmp_path / "t", names, plan_of(), port=18443, size=8, cost=Cost(log_n=10)
    )


def test_join_and_coordinate_refuse_before_they_dial(trial):
    kit = ["--kit", trial.of("north") / "kit"]
    secret = ["--passphrase-file", trial.of("north") / "passphrase"]
    joined = run("join", trial.of("north") / "site.toml", *kit, *secret, code=6)
    assert "expired on" in joined.output
    kit = ["--kit", trial.of(HUB) / "kit", "--keys", trial.of(HUB) / "keys"]
    secret = ["--passphrase-file", trial.of(HUB) / "passphrase"]
    out = trial.of(HUB) / "run"
    said = run("coordinate", trial.plan, *kit, *secret, "--out", out, code=6).output
    assert "expired on" in said and not out.exists()
