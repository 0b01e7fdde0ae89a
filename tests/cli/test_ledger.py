"""`secure-fl ledger`: shows, verifies, exports, and never changes a byte of spending."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from secure_fl.crypto.keys.roster_files import card_bytes
from secure_fl.crypto.privacy.accounting import GaussianRelease, epsilon
from secure_fl.crypto.privacy.ledger import Account, Budget, Ledger
from secure_fl.crypto.privacy.ledger_store import connected
from tests.support.command_line import ran
from tests.support.key_sites import site


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = Ledger(tmp_path / "north.ledger", site("north"))
    for i in range(2):
        made.reserve(
            GaussianRelease(6.0), Account("notes", "record"), Budget(4, 1e-5), run="r", round=i
        )
    return made.path


run = partial(ran, "ledger")


def test_show_recomposes(file: Path) -> None:
    spent = epsilon([GaussianRelease(6.0, 2)], 1e-5)
    text = run("show", file).output
    assert f"notes per record (add-remove): ε = {spent:.4g} of 4 at δ = 1e-05; 2 events" in text
    (account,) = json.loads(run("show", file, "--json").output)
    assert account["spent"] == spent and account["unfinished"] == 2


def test_verify_with_card_and_head(file: Path, tmp_path: Path) -> None:
    text = run("verify", file).output
    assert "intact: 3 rows" in text and site("north").public.fingerprint() in text
    head = text.split("head: ")[1].split()[0]
    mine, other = tmp_path / "north.json", tmp_path / "south.json"
    mine.write_bytes(card_bytes(site("north")))
    other.write_bytes(card_bytes(site("south")))
    run("verify", file, "--card", mine, "--head", head)
    assert "other keys than" in run("verify", file, "--card", other, code=6).output
    assert "older copy" in run("verify", file, "--head", "00" * 32, code=6).output
    assert "hexadecimal" in run("verify", file, "--head", "xyz", code=2).output


def test_a_changed_row_is_found(file: Path) -> None:
    with connected(file) as db:
        db.execute("DROP TRIGGER keep_entries")
        db.execute("UPDATE entries SET run = 'other' WHERE sequence = 1")
    for command in ("show", "verify", "export"):
        assert "row 1 was changed" in run(command, file, code=6).output


def test_export_to_screen_and_file(file: Path, tmp_path: Path) -> None:
    printed = json.loads(run("export", file).output)
    target = tmp_path / "out.json"
    assert printed["head"] in run("export", file, "-o", target).output
    assert json.loads(target.read_text()) == printed
