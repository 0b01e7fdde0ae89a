"""Kits: whole and of one pilot, or refused."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, make_roster
from secure_fl.errors import KeyringError
from secure_fl.pilot.kits import load_kit, write_kits
from tests.support.mutants import cut, flipped, longer
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
        "larger than": {"connection_json": connection + b" " * 2**23},
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
