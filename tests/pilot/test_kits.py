"""Kits: whole and of one pilot, or refused."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from secure_fl.cli import site_check
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.vault import Cost
from secure_fl.errors import KeyringError
from secure_fl.pilot import certificates
from secure_fl.pilot.kits import load_kit, write_kits
from tests.support.command_line import ran
from tests.support.local_pilot import plan_of
from tests.support.mutants import cut, flipped, longer
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.raising import raises


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kits of two pilots that share the names of their members: north, south, east."""
    folder, found = tmp_path_factory.mktemp("kits"), {}
    for pilot, hub, days in (("ours", "hub", 9.0), ("theirs", "hub2", 9.0), ("old", "hub", 9.0)):
        sites = [Identity.generate(name) for name in ("north", "south", "east")]
        cards = tuple(Member(s.name, "party", None, s.public) for s in sites)
        roster = make_roster(cards, Identity.generate(hub).public, days=days)
        if pilot == "old":
            past = datetime.now(UTC) - timedelta(days=2)
            roster = replace(roster, created=past, expires=past + timedelta(days=1))
        for site in sites:
            roster = roster.sign(site)
        for name, kit in write_kits(roster, folder / pilot, ("localhost",), 8002).items():
            found[f"{pilot} {name}"] = kit
    return found


def tampered(kit: Path, folder: Path, **files: Path | bytes) -> Path:
    """A copy of a kit with some files of other kits, or other contents."""
    copied = Path(shutil.copytree(kit, folder))
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        (copied / name.replace("_", ".")).write_bytes(data)
    return copied


def test_genuine_kits_load(kits):
    for who, kit in kits.items():
        if not who.startswith("old"):
            assert load_kit(kit).connection.name == who.split()[1]


def test_kits_that_are_not_whole_do_not_load(kits, tmp_path):
    ours, south, theirs = kits["ours north"], kits["ours south"], kits["theirs north"]
    connection = (ours / "connection.json").read_bytes()
    roster = (ours / "roster.json").read_bytes()
    wrong: dict[str, dict[str, Path | bytes]] = {
        "not listed": {"connection_json": connection.replace(b"north", b"west")},
        "coordinator is not": {"roster_json": theirs / "roster.json"},
        "certificate is of": {"connection_json": south / "connection.json"},
        "certificate is of 'south'": {
            "client_crt": south / "client.crt",
            "client_key": south / "client.key",
        },
        "not a kit's connection": {"connection_json": connection.replace(b"kit/1", b"kit/2")},
        "kit's connection": {"connection_json": connection[:-9]},
        "a kit's": {"connection_json": b"\xff\xfe" + connection},
        "kit's": {"connection_json": connection.replace(b'"north"', b"[" * 100_000)},
        "larger than": {"connection_json": connection + b" " * 2**24},
        "signature": {"roster_json": re.sub(rb'"north": "..', b'"north": "AA', roster)},
        "no signature": {"roster_json": roster.replace(b'"signatures"', b'"signature"')},
        "not a certificate": {"client_crt": b"-----BEGIN CERTIFICATE-----"},
    }
    for number, (what, files) in enumerate(wrong.items()):
        with pytest.raises(KeyringError) as caught:
            load_kit(tampered(ours, tmp_path / f"{number}", **files))
        found = str(caught.value)
        assert what in found or what in ("not listed", "no signature"), found
    dated = re.sub(rb'"created": "[^"]*', b'"created": "0001-01-01T00:00:00+05:00', roster)
    with raises(KeyringError, reason="dates"):
        load_kit(tampered(ours, tmp_path / "dated", roster_json=dated))
    with raises(KeyringError, reason="expired"):
        load_kit(kits["old north"])
    with raises(KeyringError, reason="missing"):
        load_kit(tampered(kits["ours hub"], tmp_path / "hub", connection_json=connection))


def test_a_foreign_roster_has_other_keys_for_this_site(kits):
    """It is whole, and of people with our names: this site's own keys are not on it."""
    mine = load_kit(kits["ours north"]).roster.member("north").identity
    load_kit(kits["ours north"]).roster.require(mine)
    with raises(KeyringError, reason="other-keys"):
        load_kit(kits["theirs north"]).roster.require(mine)


@pytest.mark.parametrize("name", ["connection.json", "roster.json"])
def test_damaged_files_of_a_kit_are_errors(kits, tmp_path, name):
    kit = Path(shutil.copytree(kits["ours north"], tmp_path / "kit"))
    genuine, rng = (kit / name).read_bytes(), random.Random(1)
    before, refused = load_kit(kit), 0
    for _ in range(600):
        damaged = rng.choice((flipped, flipped, cut, longer))(rng, genuine)
        (kit / name).write_bytes(damaged)
        try:
            found = load_kit(kit)
        except KeyringError:
            refused += 1
            continue
        assert found.roster.digest() == before.roster.digest()
        assert found.connection.name == "north" and found.connection.hub == "hub"
    assert refused > 400


# --- kits end: it is said when they are made, a fortnight before, and when it is over -----------


THE_HUB = Identity.generate("hub")


def roster(days: float = 365) -> Roster:
    sites = [Identity.generate(name) for name in ("north", "south", "east")]
    cards = tuple(Member(s.name, "party", None, s.public) for s in sites)
    made = make_roster(cards, THE_HUB.public, days=days)
    for site in sites:
        made = made.sign(site)
    return made


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
    shown = ran("doctor", "--kit", kits["north"]).output
    assert f"for north, valid until {day(min(kit_days, roster_days))}" in shown
    assert shown.count("last day of this kit's") == len(warned)


@pytest.mark.parametrize(("control", "noted"), [("cubic", True), ("bbr", False), (None, False)])
def test_a_kernel_that_slows_down_at_lost_packets_is_said(tmp_path, monkeypatch, control, noted):
    file = tmp_path / "control"
    if control is not None:  # else this system does not tell
        file.write_text(f"{control}\n")
    monkeypatch.setattr("secure_fl.engines.flare.diagnosis.CONGESTION", file)
    kits = write_kits(roster(), tmp_path, ("localhost",), 8443)
    shown = ran("doctor", "--kit", kits["north"]).output
    assert ("secure-fl.sysctl.conf" in shown) == noted


def test_what_is_over_is_refused_and_says_what_to_do(tmp_path, old):
    kits = write_kits(roster(), tmp_path, ("localhost",), 8443)
    for kit in kits.values():
        with pytest.raises(KeyringError, match=f"expired on {day(-1)}") as caught:
            load_kit(kit)
        assert "pilot init" in caught.value.fix
    old.undo()
    shown = ran("doctor", "--kit", kits["hub"], code=1).output
    assert "expired on" in shown and "pilot init" in shown


def test_a_clock_that_is_behind_is_told_apart(tmp_path, monkeypatch):
    kits = write_kits(roster(), tmp_path, ("localhost",), 8443)
    monkeypatch.setattr("secure_fl.pilot.kits.datetime", Earlier)
    with raises(KeyringError, "valid from", "clock"):
        load_kit(kits["north"])


@pytest.mark.parametrize("late", [timedelta(minutes=5), timedelta(days=1, minutes=5)])
def test_site_check_counts_whole_days_of_a_late_clock(tmp_path, monkeypatch, late):
    kit = load_kit(write_kits(roster(), tmp_path, ("localhost",), 8443)["north"])
    shown_time: datetime = kit.tls.validity()[0] + site_check.BACKDATED - late

    class Late(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return shown_time

    monkeypatch.setattr(site_check, "datetime", Late)
    shown = site_check.check_clock(kit)
    assert shown.status == "problem"
    assert f"at least {late // timedelta(minutes=1) + 1} minutes" in shown.found


@pytest.fixture
def trial(tmp_path: Path, old: pytest.MonkeyPatch) -> PilotFolders:
    names = ("north", "south", "east")
    return make_pilot_folders(
        tmp_path / "t", names, plan_of(), port=18443, size=8, cost=Cost(log_n=10)
    )


def test_join_and_coordinate_refuse_before_they_dial(trial):
    kit = ["--kit", trial.of("north") / "kit"]
    secret = ["--passphrase-file", trial.of("north") / "passphrase"]
    joined = ran("join", trial.of("north") / "site.toml", *kit, *secret, code=6)
    assert "expired on" in joined.output
    kit = ["--kit", trial.of(HUB) / "kit", "--keys", trial.of(HUB) / "keys"]
    secret = ["--passphrase-file", trial.of(HUB) / "passphrase"]
    out = trial.of(HUB) / "run"
    said = ran("coordinate", trial.plan, *kit, *secret, "--out", out, code=6).output
    assert "expired on" in said and not out.exists()


def test_a_coordinator_has_its_own_keys_and_kit(tmp_path: Path) -> None:
    """It waited an hour for hospitals that refused it."""
    names, cost = ("north", "south", "east"), Cost(log_n=10)
    made = make_pilot_folders(tmp_path / "t", names, plan_of(), port=18443, size=8, cost=cost)
    for keys, kit, said in (
        ("north", HUB, "the keys of 'north' are not those of the coordinator"),
        (HUB, "north", "the kit of 'north'"),
    ):
        secret = [
            "--keys",
            made.of(keys) / "keys",
            "--passphrase-file",
            made.of(keys) / "passphrase",
        ]
        out = ["--kit", made.of(kit) / "kit", "--out", tmp_path / "run", "--wait", 1]
        assert said in ran("coordinate", made.plan, *secret, *out, code=6).output
    assert not (tmp_path / "run").exists()
