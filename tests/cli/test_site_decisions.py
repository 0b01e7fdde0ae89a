"""`site approve` and `site erase`, as a hospital's people type them."""

from __future__ import annotations

import errno
import os
import time
from contextlib import chdir
from pathlib import Path

import pytest
from click.testing import Result

from secure_fl.cli.keyring import open_ring
from secure_fl.crypto.keys.vault import Cost
from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.approvals import Approving
from secure_fl.pilot.plan import load_plan
from secure_fl.policy.policy_file import load_site
from tests.support.command_line import run
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import PilotFolders, make_pilot_folders

NAMES = ("east", "north", "west")
KEYS = "--passphrase-file passphrase"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PilotFolders:
    folder = tmp_path_factory.mktemp("trial")
    return make_pilot_folders(folder, NAMES, plan_of(), port=8443, size=8, cost=Cost(log_n=10))


def at_north(made: PilotFolders, command: str, answer: str = "y\n") -> Result:
    with chdir(made.of("north")):
        return run(*command.split(), input=answer)


def test_only_a_known_person_approves(made: PilotFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    monkeypatch.setattr("secure_fl.engines.flare.diagnosis.PATIENCE", 0.2)  # nobody is there
    (made.of("north") / "kit" / "plan.toml").write_text(made.plan.read_text())
    said = {
        who: at_north(made, f"keys identity {who} --keys {who} {KEYS}").output
        for who in ("anna", "eve")
    }
    fingerprint = said["anna"].partition("fingerprint: ")[2].splitlines()[0]
    rules = made.of("north") / "site.toml"
    approval = f'[site.approval]\nby = ["{fingerprint}"]\n\n[keys]'
    rules.write_text(rules.read_text().replace("[keys]", approval))
    check = f"site check site.toml --kit kit --no-rehearsal {KEYS}"
    assert "approved by 0" in at_north(made, check).output
    approve = f"site approve site.toml --plan kit/plan.toml {KEYS} --keys"
    eve = at_north(made, f"{approve} eve")
    assert eve.exit_code == 6 and "[site.approval]" in eve.output
    assert not (made.of("north") / "approvals").exists()
    assert "written" not in at_north(made, f"{approve} anna", "n\n").output
    anna = at_north(made, f"{approve} anna")
    assert anna.exit_code == 0, anna.output
    assert "approved by 1 of 1 keys" in anna.output and "run-anna-" in anna.output
    assert "approved by" not in at_north(made, check).output
    rules.write_text(rules.read_text().replace(approval, "[keys]"))
    assert at_north(made, f"{approve} anna").exit_code == 6  # no plan was accepted under the rule
    rules.write_text(rules.read_text().replace("[keys]", approval))
    joined(made)
    rules.write_text(rules.read_text().replace(approval, "[keys]"))
    assert "approved by 0" in at_north(made, check).output
    assert at_north(made, f"{approve} eve").exit_code == 6
    assert at_north(made, f"{approve} anna").exit_code == 0
    assert "approved by" not in at_north(made, check).output
    assert joined(made) == ["anna"] and joined(made) == []


def joined(made: PilotFolders) -> list[str]:
    """Accept the plan as `join` does; the ledger then has the site's rules."""
    rules = load_site(made.of("north") / "site.toml")
    me = open_ring(rules.keys, made.of("north") / "passphrase").identity()
    ledger = Ledger(rules.ledger / me.name / LEDGER, me)
    facts = Approving(rules, me.public).require(ledger, load_plan(made.plan))
    return [one["who"] for one in facts]


def test_what_is_due_is_erased_and_noted(made: PilotFolders) -> None:
    north = made.of("north")
    for name, days in (("old", 91), ("new", 3), ("chosen", 3)):
        run = north / "runs" / name
        run.mkdir(parents=True)
        (run / "settings.toml").write_text(made.plan.read_text())
        past = time.time() - days * 86_400
        os.utime(run / "settings.toml", (past, past))
    erase = f"site erase site.toml {KEYS}"
    unsaid = at_north(made, erase)
    assert unsaid.exit_code == 2 and "retention_days" in unsaid.output
    rules = north / "site.toml"
    rules.write_text(rules.read_text().replace("[site]\n", "[site]\nretention_days = 90\n", 1))
    at_north(made, erase, "n\n")
    assert (north / "runs" / "old").exists()
    done = at_north(made, erase)
    assert done.exit_code == 0 and "erased: runs/old" in done.output, done.output
    assert "is due" in at_north(made, erase).output
    assert at_north(made, f"{erase} --run chosen").exit_code == 0
    assert [run.name for run in (north / "runs").iterdir()] == ["new"]
    ledger = at_north(made, "ledger show ledger/north/ledger.sqlite").output
    assert "erased old (90 days after its last event)" in ledger
    assert "erased chosen (asked for by name)" in ledger


def test_the_note_is_there_before_anything_is_erased(
    made: PilotFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that ends in between must not leave an erased run without a note."""

    def denied(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    run = made.of("north") / "runs" / "denied"
    run.mkdir(parents=True)
    (run / "settings.toml").write_text(made.plan.read_text())
    monkeypatch.setattr("secure_fl.runs.erasing.shutil.rmtree", denied)
    assert at_north(made, f"site erase site.toml --run denied {KEYS}").exit_code == 4
    ledger = at_north(made, "ledger show ledger/north/ledger.sqlite").output
    assert "erased denied (asked for by name)" in ledger


def test_nothing_is_erased_where_it_cannot_be_noted(made: PilotFolders) -> None:
    north = made.of("north")
    run, ledger = north / "runs" / "last", north / "ledger" / "north" / "ledger.sqlite"
    run.mkdir(parents=True, exist_ok=True)
    (run / "settings.toml").write_text(made.plan.read_text())
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.rename(ledger.with_suffix(".away")) if ledger.exists() else None
    ledger.write_bytes(b"no ledger" * 99)
    broken = at_north(made, f"site erase site.toml --run last {KEYS}")
    assert broken.exit_code == 7 and run.exists()
