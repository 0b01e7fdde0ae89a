"""Bytes from others are decoded, or refused with an error that says what to do: never a crash.

A site, a member, the coordinator or a person can write each of these inputs, with genuine keys
where it is sealed or signed. Fuzzing found them (`python -m benchmarks fuzz`), and a decoder that
let another exception through would end the process of a hospital or of the coordinator.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch

from secure_fl.crypto.keys.identity import Identity, seal_to
from secure_fl.crypto.keys.keyring import FORMAT, decode_keys, open_bundle
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.roster_files import roster_bytes
from secure_fl.crypto.privacy.accounting import GaussianRelease, decode_event
from secure_fl.crypto.privacy.ledger import (
    Account,
    Budget,
    Ledger,
    export,
    load_chain,
    notes,
    totals,
)
from secure_fl.crypto.privacy.ledger_store import SCHEMA, Chain, LedgerRow
from secure_fl.errors import (
    BudgetError,
    KeyringError,
    ModelError,
    RunError,
    SecureFLError,
    TamperError,
    WireError,
)
from secure_fl.integrations import site_messages
from secure_fl.integrations.site_messages import Ask, Give, Vector
from secure_fl.learning.exporting import export as export_model
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.pilot import approvals, kits
from secure_fl.pilot.approvals import Approval
from secure_fl.pilot.kits import open_kit
from secure_fl.runs import checkpoint
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import ModelSettings, TaskSettings
from tests.support.local_pilot import plan_of
from tests.support.raising import raises

NORTH, SOUTH, WEST, HUB = map(Identity.generate, ("north", "south", "west", "hub"))
NOT_TEXT = b"\xa2\xff\xfe"  # a MessagePack text of two bytes that are not UTF-8
DEEP = 100_000  # lists in lists


@pytest.fixture(scope="module")
def roster() -> Roster:
    members = tuple(Member(one.name, "party", None, one.public) for one in (NORTH, SOUTH, WEST))
    return make_roster(members, HUB.public).sign(NORTH).sign(SOUTH)


# --- the service of a site ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector",
    [
        ["(1,", [1], bytes(4)],  # NumPy compiles such names as Python
        ["O", [1], bytes(8)],
        ["<f4,<f4", [1], bytes(8)],
        ["<f4\n", [1], bytes(4)],
        ["<f4", [2**63], bytes(4)],  # larger than a C integer
        ["<f4", [2**62, 4], bytes(4)],
        ["<f4", [1] * 100, bytes(4)],  # more dimensions than NumPy has
        ["<f4", [2], bytes(7)],
        ["<f3", [1], bytes(3)],
    ],
)
def test_a_site_or_server_that_sends_another_array_gets_an_error(vector: list[Any]) -> None:
    data = msgspec.msgpack.encode([3, [2, b"head"], {"a": vector}, 1.0, {}])
    with raises(WireError):
        request = site_messages.read_request(data)
        assert isinstance(request, Give)
        site_messages.arrays(request.values)


def test_arrays_of_all_summable_kinds_cross_the_socket() -> None:
    kinds = ("<f2", "<f4", "<f8", ">f4", "<i8", "|i1", "|u1", "|b1")
    given = {kind: np.ones((2, 1), kind) for kind in kinds} | {"": np.ones(0)}
    sent = site_messages.encode(Give(Ask(b""), site_messages.vectors(given), 1.0, {}))
    got = site_messages.read_request(sent)
    assert isinstance(got, Give)
    for name, array in site_messages.arrays(got.values).items():
        assert array.dtype == given[name].dtype and np.array_equal(array, given[name])


# --- kits, bundles and approvals ------------------------------------------------------------------


def test_a_kit_with_text_that_is_not_utf8_is_refused(roster: Roster, tmp_path: Path) -> None:
    file = tmp_path / "north.kit"
    file.write_bytes(b"\x94" + NOT_TEXT + NOT_TEXT + b"\xc4\x00\xc4\x00")
    with raises(KeyringError, reason="malformed"):
        open_kit(file, NORTH, tmp_path / "kit")
    sealed = seal_to(HUB, NORTH.public, b"\x81" + NOT_TEXT + b"\xc4\x00", kits._context(roster))
    whole = kits._File(kits.FORMAT, "north", roster_bytes(roster), sealed)
    file.write_bytes(msgspec.msgpack.encode(whole))
    with raises(KeyringError, reason="cannot-open"):
        open_kit(file, NORTH, tmp_path / "kit")


def test_a_bundle_with_text_that_is_not_utf8_is_refused(roster: Roster) -> None:
    with raises(KeyringError, reason="malformed"):
        open_bundle(NORTH, roster, bytes([0x94, FORMAT]) + NOT_TEXT + NOT_TEXT + b"\xc4\x00")
    keys = [FORMAT, b"", 1, "2026-01-01T00:00:00Z", "dealer", b"", b"", b""]
    data = msgspec.msgpack.encode(keys).replace(b"\xa6dealer", b"\xa6\xff\xffaler")
    with raises(KeyringError, reason="malformed"):
        decode_keys(data)


@pytest.mark.parametrize("text", ["x = ", "a = " + "[" * 200, "a." * 90 + "a = 1", "", "x = 1\r"])
def test_an_approval_of_something_that_is_no_plan_is_refused(text: str) -> None:
    """Anybody who can write into the folder of approvals signs one with keys of their own."""
    genuine = Approval.make(NORTH, "north", plan_of(), {})
    approval = msgspec.structs.replace(genuine, plan=text, signature=b"")
    signature = NORTH.sign_document(approval.digest())
    data = msgspec.json.encode(msgspec.structs.replace(approval, signature=signature))
    try:
        changes = approvals.read(data, "a.json").changes(plan_of(), {})
    except KeyringError as refused:
        assert refused.reason == "signature" and "a.json" in str(refused)
    else:
        assert changes  # an empty plan is read, and is another one


# --- ledgers --------------------------------------------------------------------------------------

GAUSSIAN = {"kind": "gaussian", "noise_multiplier": 1.0, "count": 1}
SKELLAM = {"kind": "skellam", "mu": 1.0, "l1": 1.0, "l2": 1.0, "count": 1}


@pytest.mark.parametrize(
    "event",
    [
        GAUSSIAN | {"count": 10**400},  # overflows a float
        GAUSSIAN | {"noise_multiplier": 1e-300},  # its square is 0
        GAUSSIAN | {"noise_multiplier": 1e300},
        SKELLAM | {"mu": 1e-320},
        SKELLAM | {"l2": 1e300},
        {"kind": "dp-sgd", "noise_multiplier": 1.0, "sample_rate": 1e-320, "steps": 1},
    ],
)
def test_an_event_that_no_formula_composes_is_refused(event: dict[str, Any]) -> None:
    with pytest.raises(BudgetError):
        decode_event(json.dumps(event))
    with raises(BudgetError, reason="unknown-event"):
        decode_event("[" * DEEP)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "ledger.db", NORTH)
    account, budget = Account("notes", "patient"), Budget(8.0, 1e-5)
    found.reserve(GaussianRelease(5.0), account, budget, run="first")
    return found


def test_a_damaged_ledger_is_an_error_wherever_a_byte_is_wrong(ledger: Ledger) -> None:
    """SQLite cites damaged names as text that is not UTF-8, and reads NULL in columns without."""
    whole, rng = ledger.path.read_bytes(), random.Random(0)
    starts = [match.start() for match in re.finditer(rb"CREATE|entries|anchor", whole)]
    for start in starts:
        for place in (start + rng.randrange(40), rng.randrange(len(whole))):
            ledger.path.write_bytes(whole[:place] + b"\xe1" + whole[place + 1 :])
            with suppress(SecureFLError):
                export(load_chain(ledger.path))
    assert len(starts) > 10


def test_a_ledger_whose_table_is_an_endless_view_is_refused(ledger: Ledger) -> None:
    rows = "WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    with sqlite3.connect(ledger.path) as db:
        db.execute("DROP TABLE entries")
        db.execute(f"CREATE VIEW entries AS {rows}")
    with raises(TamperError, reason="row-changed"):
        load_chain(ledger.path)


@pytest.mark.parametrize("column", ["hash", "signature", "run"])
def test_a_damaged_column_without_a_value_is_refused(ledger: Ledger, column: str) -> None:
    with sqlite3.connect(ledger.path) as db:
        db.execute("CREATE TABLE copy AS SELECT * FROM entries")
        db.execute(f"UPDATE copy SET {column} = NULL")  # noqa: S608 - one of the names above
        db.execute("DROP TABLE entries")
        db.execute("ALTER TABLE copy RENAME TO entries")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'entries'", SCHEMA[:1])
    with raises(TamperError, reason="row-changed"):
        load_chain(ledger.path)


def test_notes_and_budgets_of_another_form_are_shown_or_refused() -> None:
    row = LedgerRow(1, "now", "erased", "", "", "", "[" * DEEP, None, None, "first", None, None)
    assert "first" in notes(Chain((row,), (b"",), (b"",), None))[0]
    spent = replace(row, state="reserved", event=json.dumps(GAUSSIAN), delta=1e-5)
    with raises(TamperError, reason="row-changed"):
        totals(Chain((spent,), (b"",), (b"",), None))
    with raises(TamperError, reason="owner"):
        Chain((row,), (b"",), (b"",), None).owner  # noqa: B018 - a property that decodes


# --- states of other parties ----------------------------------------------------------------------


def _state(skeleton: object) -> bytes:
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    return safetensors.torch.save({}, {checkpoint.FORMAT: text.decode("latin1")})


STATES: Mapping[str, object] = {
    "no mapping": {"value": 1},
    "a list": {"list": [], "tuple": False},
    "an unknown node": {"other": 1},
    "a number instead of a node": 7,
    "an unknown tensor": {"tensor": "t9", "numpy": False},
    "a key that is a list": {"items": [[[1], {"value": 1}]]},
    "a pair of three": {"scalars": [["a", 1, 2]]},
    "deep": b'{"list":[' * DEEP,
    "deep and closed": b'{"list":[' * DEEP + b'],"tuple":false}' * DEEP,
    "not JSON": b"\xff",
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_form_is_refused_wherever_it_is_from(name: str, tmp_path: Path) -> None:
    with raises(RunError, reason="unreadable"):
        checkpoint.from_bytes(_state(STATES[name]))
    checkpoint.save(tmp_path / "round-00001", {"a": torch.ones(1)})
    (tmp_path / "round-00001").write_bytes(_state(STATES[name]))
    with raises(RunError, reason="unreadable", file=tmp_path / "round-00001"):
        checkpoint.load(tmp_path / "round-00001")


class _Counter:
    """State of a program."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""


@pytest.mark.parametrize(
    "state", [{}, {"shared": {"a": {}}}, {"sums": {}}, {"shared": "a", "sums": {}}, {"shared": 1}]
)
def test_a_newcomer_refuses_a_state_without_its_parts(
    state: dict[str, Any], tmp_path: Path
) -> None:
    kept = PartyCheckpoints(tmp_path, _Counter())
    with raises(RunError, reason="other-program"):
        kept.adopt(checkpoint.to_bytes(state), {"a": _Counter()})
    assert (
        kept.adopt(checkpoint.to_bytes({"shared": {"a": {}}, "sums": {}}), {"a": _Counter()}) == {}
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    task = make_task(TaskSettings(labels=("no", "yes")))
    tokenizer = load_tokenizer(ModelSettings(layers=1))
    model = load_model(ModelSettings(layers=1), task, tokenizer, 0)
    return export_model(model, tokenizer, folder, task)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", '"bert"'),
        ("config.json", '{"model_type": "bert", "use_cache": "yes"}'),
        ("config.json", '{"model_type": "bert", "initializer_range": []}'),
        ("secure_fl.json", "[" * DEEP),
        ("secure_fl.json", "[]"),
        ("secure_fl.json", '{"version": 1, "pooling": "cls", "kind": [], "labels": ["a", "b"]}'),
    ],
)
def test_a_model_folder_with_another_content_is_refused(
    name: str, text: str, exported: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    load_exported(folder)
    (folder / name).write_text(text)
    with raises(ModelError):
        load_exported(folder)


def test_refusals_say_what_to_do() -> None:
    refused: list[Callable[[], object]] = [
        lambda: checkpoint.from_bytes(b""),
        lambda: decode_keys(b""),
        lambda: site_messages.read_reply(b""),
        lambda: Vector("<f4", (1,), b"").array(),
    ]
    for one in refused:
        with pytest.raises(SecureFLError) as caught:
            one()
        assert caught.value.fix
