"""The ledger: killed anywhere, shared by processes, and attacked row by row."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy import ledger_store
from secure_fl.crypto.privacy.accounting import (
    DpSgdSteps,
    GaussianRelease,
    SkellamRelease,
    epsilon,
)
from secure_fl.crypto.privacy.ledger import (
    Account,
    Budget,
    Ledger,
    export,
    load_chain,
    of_records,
    totals,
)
from secure_fl.errors import BudgetError, TamperError
from tests.support.key_sites import site
from tests.support.raising import raises

OWNER = site("north")
NOTES = Account("notes 2026", "record")
BUDGET = Budget(4.0, 1e-5)
STEP = GaussianRelease(6.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "silo" / "north.ledger", OWNER)


def fill(ledger: Ledger, count: int) -> None:
    for i in range(count):
        ledger.reserve(STEP, NOTES, BUDGET, run="r1", round=i)


def in_child(work: Callable[[], None]) -> tuple[int, int]:
    """Run in a forked process: (exit code, signal)."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return (os.WEXITSTATUS(status), 0) if os.WIFEXITED(status) else (0, os.WTERMSIG(status))


def test_spent_grows_until_the_budget_refuses(ledger: Ledger) -> None:
    spent, step = 0.0, GaussianRelease(3.0)
    for i in range(1000):
        try:
            reservation = ledger.reserve(step, NOTES, BUDGET, run="r1", round=i)
        except BudgetError as error:
            text, reason = str(error), error.reason
            break
        assert reservation.before == spent < reservation.spent <= BUDGET.epsilon
        spent = reservation.spent
        assert spent == epsilon([step] * (i + 1), BUDGET.delta)
    assert "run r1, round" in text and "ε = 4 at δ = 1e-05" in text and f"{spent:.4g}" in text
    assert "Nothing was computed" in text and reason == "spent"
    assert ledger.spent(NOTES, BUDGET.delta) == spent


def test_accounts_are_apart_and_budgets_recompose_at_their_own_delta(ledger: Ledger) -> None:
    fill(ledger, 3)
    other = ledger.reserve(STEP, Account("images", "record"), BUDGET, run="r2")
    assert other.before == 0.0
    tighter = ledger.reserve(STEP, NOTES, Budget(9.0, 1e-8), run="r2")
    assert tighter.before == epsilon([STEP] * 3, 1e-8)


def test_what_does_not_compose_is_refused(ledger: Ledger) -> None:
    fill(ledger, 1)
    replaced = Account(NOTES.dataset, NOTES.unit, "replace-one")
    with raises(BudgetError, reason="adjacency"):
        ledger.reserve(STEP, replaced, BUDGET, run="r")
    with raises(BudgetError, reason="adjacency"):
        ledger.reserve(DpSgdSteps(1.0, 0.1, 1), replaced, BUDGET, run="r")
    for account in (Account("", "record"), Account("x", "visit")):  # type: ignore[arg-type]
        with pytest.raises(BudgetError):
            ledger.reserve(STEP, account, BUDGET, run="r")
    with raises(BudgetError, reason="unknown-event"):
        ledger.reserve("laplace", NOTES, BUDGET, run="r")  # type: ignore[arg-type]
    assert len(load_chain(ledger.path).entries) == 2


def test_a_ledger_of_another_format_is_refused(ledger: Ledger) -> None:
    fill(ledger, 1)
    chain = load_chain(ledger.path)
    first = replace(chain.entries[0], event=json.dumps({"format": 1, "name": "north"}))
    with raises(BudgetError, "format 1", "max_epsilon", reason="ledger-unusable"):
        _ = replace(chain, entries=(first, *chain.entries[1:])).owner


def test_commit_informs_and_changes_no_spending(ledger: Ledger) -> None:
    reservation = ledger.reserve(STEP, NOTES, BUDGET, run="r1", round=0)
    ledger.reserve(STEP, NOTES, BUDGET, run="r1", round=1)
    spent = ledger.spent(NOTES, BUDGET.delta)
    ledger.commit(reservation)
    assert ledger.spent(NOTES, BUDGET.delta) == spent
    (total,) = totals(load_chain(ledger.path))
    assert (total.events, total.unfinished, total.spent) == (2, 1, spent)
    with raises(BudgetError, reason="not-a-reservation"):
        ledger.commit(type(reservation)(3, 0.0, 0.0))


def test_a_noised_sum_is_never_unfinished(ledger: Ledger) -> None:
    """A noised sum is spent when it is reserved, and nothing says later that it was opened."""
    release = SkellamRelease(1e4, 10, 10, 1)
    ledger.reserve(release, Account("notes", "hospital"), BUDGET, run="r1")
    ledger.reserve(STEP, NOTES, BUDGET, run="r1")
    assert [total.unfinished for total in totals(load_chain(ledger.path))] == [0, 1]


def _killed_at(statement: int) -> Callable[..., sqlite3.Connection]:
    real, seen = sqlite3.connect, 0

    def connect(*args: object, **options: object) -> sqlite3.Connection:
        db = real(*args, **options)  # type: ignore[call-overload]

        def count(sql: str) -> None:
            nonlocal seen
            if seen == statement:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        db.set_trace_callback(count)
        assert isinstance(db, sqlite3.Connection)
        return db

    return connect


@pytest.mark.parametrize("held", [0, 2])
def test_killed_at_every_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """What was acknowledged stays spent, what is on file verifies, and work goes on."""
    start = Ledger(tmp_path / "start", OWNER)
    fill(start, held)
    kills, acknowledged_first = 0, None
    for statement in range(200):
        path = tmp_path / f"killed-{statement}"
        for file in tmp_path.glob("start*"):
            shutil.copy(file, path.with_name(file.name.replace("start", path.name)))
        ledger, mark = Ledger(path, OWNER), tmp_path / f"mark-{statement}"

        def work(ledger: Ledger = ledger, mark: Path = mark, statement: int = statement) -> None:
            monkeypatch.setattr(sqlite3, "connect", _killed_at(statement))
            reservation = ledger.reserve(STEP, NOTES, BUDGET, run="r", round=0)
            mark.write_text("spent")
            ledger.commit(reservation)

        code, killed = in_child(work)
        acknowledged = mark.exists()
        events = _reserved(ledger)
        assert events in (held, held + 1) and events >= held + acknowledged
        before = epsilon([STEP] * events, BUDGET.delta) if events else 0.0
        again = ledger.reserve(STEP, NOTES, BUDGET, run="r", round=1)
        assert again.before == before
        load_chain(path).check_all(OWNER.public)
        kills += killed == signal.SIGKILL
        acknowledged_first = acknowledged_first or (statement if acknowledged else None)
        if not killed:
            assert code == 0
            break
    assert kills >= 20 and acknowledged_first is not None


def _reserved(ledger: Ledger) -> int:
    if not ledger.path.exists():
        return 0
    with ledger_store.connected(ledger.path) as db:
        chain = ledger_store.read_chain(db)
    return sum(e.state == "reserved" for e in chain.entries) if chain else 0


def test_two_processes_take_turns_and_never_overspend(ledger: Ledger, tmp_path: Path) -> None:
    def spend(name: str) -> Callable[[], None]:
        def work() -> None:
            done = 0
            try:
                while True:
                    ledger.reserve(STEP, NOTES, BUDGET, run=name, round=done)
                    done += 1
                    time.sleep(0.03)  # SQLite's lock is not fair: let the other one in
            except BudgetError as error:
                (tmp_path / name).write_text(json.dumps([done, error.what]))

        return work

    children = []
    for name in ("a", "b"):
        child = os.fork()
        if child == 0:
            try:
                spend(name)()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    (a, why_a), (b, why_b) = (json.loads((tmp_path / n).read_text()) for n in ("a", "b"))
    assert "the privacy budget" in why_a and "the privacy budget" in why_b
    assert a > 0 and b > 0
    assert epsilon([STEP] * (a + b), BUDGET.delta) <= BUDGET.epsilon
    assert epsilon([STEP] * (a + b + 1), BUDGET.delta) > BUDGET.epsilon
    chain = load_chain(ledger.path)
    chain.check_all(OWNER.public)
    assert len(chain.entries) == 1 + a + b


def test_the_table_is_append_only(ledger: Ledger) -> None:
    fill(ledger, 2)
    for statement in (
        "UPDATE entries SET event = '' WHERE sequence = 1",
        "DELETE FROM entries WHERE sequence = 2",
        "DELETE FROM anchor",
        "UPDATE anchor SET sequence = 1",
    ):
        with pytest.raises(BudgetError, match=r"append-only|only moves forward"):
            with ledger_store.connected(ledger.path) as db:
                db.execute(statement)
    assert (ledger.path.stat().st_mode & 0o777) == 0o600


WEAKER = "UPDATE entries SET event = replace(event, '6.0', '600.0') WHERE sequence = 2"
ATTACKS = [
    ("row-changed", "row 2", [WEAKER]),
    ("row-changed", "row 1", ["UPDATE entries SET dataset = 'other' WHERE sequence = 1"]),
    ("row-missing", "row 2", ["DELETE FROM entries WHERE sequence = 2"]),
    ("row-missing", "row 0", ["DELETE FROM entries WHERE sequence = 0"]),
    ("truncated", "", ["DELETE FROM entries WHERE sequence >= 3"]),
    (
        "row-changed",
        "row 1",
        [
            "UPDATE entries SET sequence = -1 WHERE sequence = 1",
            "UPDATE entries SET sequence = 1 WHERE sequence = 2",
            "UPDATE entries SET sequence = 2 WHERE sequence = -1",
        ],
    ),
    (
        "signature",
        "",
        [
            "DELETE FROM entries WHERE sequence >= 3",
            "UPDATE anchor SET sequence = 2, hash = (SELECT hash FROM entries WHERE sequence = 2),"
            " signature = (SELECT signature FROM entries WHERE sequence = 2)",
        ],
    ),
    ("truncated", "", ["DELETE FROM anchor"]),
]


@pytest.mark.parametrize(("reason", "row", "statements"), ATTACKS)
def test_every_attack_on_rows_is_seen_and_stops_spending(
    ledger: Ledger, reason: str, row: str, statements: list[str]
) -> None:
    fill(ledger, 4)
    with ledger_store.connected(ledger.path) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall():
            db.execute("DROP TRIGGER " + name)
        for statement in statements:
            db.execute(statement)
    with raises(TamperError, row, reason=reason):
        load_chain(ledger.path).check_all(OWNER.public)
    with raises(TamperError, row, reason=reason):
        ledger.reserve(STEP, NOTES, BUDGET, run="r2")
    with raises(TamperError, row, reason=reason):
        ledger.events(NOTES)  # from which a statement is computed


def test_a_ledger_of_another_owner_is_refused(ledger: Ledger) -> None:
    fill(ledger, 1)
    with raises(TamperError, reason="signature"):
        Ledger(ledger.path, Identity.generate("north")).reserve(STEP, NOTES, BUDGET, run="r")


def test_an_old_copy_is_seen_with_a_head_kept_elsewhere_only(ledger: Ledger) -> None:
    fill(ledger, 2)
    old = ledger.path.read_bytes()
    fill(ledger, 1)
    head = load_chain(ledger.path).head
    ledger.path.write_bytes(old)
    chain = load_chain(ledger.path)
    chain.check_all(OWNER.public)  # the limit: from inside it cannot be seen
    with raises(TamperError, reason="older-copy"):
        chain.check_all(OWNER.public, pinned=head)
    with raises(TamperError, reason="older-copy"):
        Ledger(ledger.path, OWNER, pinned=head).reserve(STEP, NOTES, BUDGET, run="r")
    ledger.path.unlink()
    with raises(TamperError, reason="older-copy"):
        Ledger(ledger.path, OWNER, pinned=head).reserve(STEP, NOTES, BUDGET, run="r")


def test_export_is_json_with_everything(ledger: Ledger) -> None:
    fill(ledger, 2)
    chain = load_chain(ledger.path)
    said = json.loads(json.dumps(export(chain)))
    assert said["head"] == chain.head.hex() and said["owner"] == "north"
    assert [e["state"] for e in said["entries"]] == ["opened", "reserved", "reserved"]
    assert said["accounts"][0]["spent"] == ledger.spent(NOTES, BUDGET.delta)
    assert OWNER.to_private_bytes()[1:33].hex() not in json.dumps(said)


def test_notes_continue_the_rows_of_a_ledger_and_spend_nothing(ledger: Ledger) -> None:
    fill(ledger, 1)
    spent = ledger.spent(NOTES, BUDGET.delta)
    for text in ("first", "second"):
        ledger.note("approved", text, run="r1")
    rows = load_chain(ledger.path).entries
    assert [row.sequence for row in rows] == [0, 1, 2, 3]
    assert [row.state for row in rows] == ["opened", "reserved", *["approved"] * 2]
    assert ledger.spent(NOTES, BUDGET.delta) == spent


def test_a_first_event_creates_the_folders_of_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "north" / "accounts" / "north.ledger", OWNER)
    fill(ledger, 1)
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert ledger.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"not a database, but long enough to look at" * 40)
    with raises(BudgetError, reason="ledger-unusable"):
        load_chain(path)
    with raises(BudgetError, reason="ledger-unusable"):
        load_chain(tmp_path / "missing")
    path.write_bytes(b"")
    with raises(BudgetError, reason="no-ledger"):
        load_chain(path)


def test_training_on_the_same_records_has_one_account(tmp_path):
    """A second unit would be a second budget: what protects a patient also spends per record."""
    ledger = Ledger(tmp_path / "ledger.sqlite", Identity.generate("north"))
    event, budget = DpSgdSteps(noise_multiplier=2.0, sample_rate=0.5, steps=1), Budget(4.0, 1e-5)
    ledger.reserve(event, Account("notes", "record"), budget, run="a")
    with raises(BudgetError, reason="second-budget"):
        ledger.reserve(event, Account("notes", "patient"), budget, run="b")
    ledger.reserve(event, Account("others", "patient"), budget, run="c")
    assert ledger.spent(Account("notes", "patient"), 1e-5) == 0.0
    both = of_records(load_chain(ledger.path))  # one patient may be in both
    assert both == (epsilon([event, event], 1e-5), 1e-5)
