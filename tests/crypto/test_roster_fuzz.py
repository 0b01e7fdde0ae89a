"""Roster files that anybody could send: read and shown, or refused with an error of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secure_fl.cli.main import main
from secure_fl.cli.rosters import as_text, describe
from secure_fl.crypto.keys.roster_files import read_card, read_roster, roster_bytes
from secure_fl.errors import KeyringError, SecureFLError
from tests.support.key_sites import fixed_roster, members, signed, site
from tests.support.raising import raises

GENUINE = roster_bytes(signed("north", "south", "east", host="east"))
MOMENTS = (
    "0001-01-01T00:00:00+05:00",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-05:00",
    "9999-12-31T23:59:59Z",
    "2026-01-01T00:00:00+23:59",
    "1969-12-31T23:59:59.999999Z",
    "0000-01-01T00:00:00Z",
)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(MOMENTS),
    st.sampled_from([0, -1, 1, 2, 2**31, 2**63, 2**64, 2**70, 1e308, True, None, "", [], {}]),
    st.text(max_size=9),
    st.text(alphabet="\x1b[2J\n\u202e", max_size=70),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=9),
)


def use(data: bytes) -> None:
    """All that the commands do with a file before anybody has signed it."""
    roster = read_roster(data)
    assert read_roster(roster_bytes(roster)) == roster
    assert as_text(describe(roster)).replace("\n", "").isprintable()
    roster.verify(me=site("north").public)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value could be another."""
    inner = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    found = [(*at, key) for key, _ in inner]
    for key, value in inner:
        if isinstance(value, dict | list):
            found += places(value, (*at, key))
    return found


def put(tree: Any, at: tuple[Any, ...], value: Any) -> None:
    for key in at[:-1]:
        tree = tree[key]
    tree[at[-1]] = value


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_a_value_that_is_another(data: st.DataObject) -> None:
    tree = json.loads(GENUINE)
    for place in data.draw(st.lists(st.sampled_from(places(tree)), min_size=1, max_size=2)):
        try:
            # A copy: a later change may put something into it, and all draws share one {}.
            put(tree, place, deepcopy(data.draw(ODD)))
        except (TypeError, KeyError, IndexError):  # the first change took the place away
            continue
    try:
        use(json.dumps(tree).encode())
    except SecureFLError:
        pass


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(GENUINE) - 1), st.integers(0, len(GENUINE)), st.binary(max_size=4))
def test_bytes_that_are_others(start: int, end: int, new: bytes) -> None:
    try:
        use(GENUINE[:start] + new + GENUINE[end:])
    except SecureFLError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
@example(b"[" * 100_000)
@example(b'{"format": 1, "members": ' + b"[" * 100_000)
def test_anything_at_all(data: bytes) -> None:
    for read in (read_roster, read_card):
        with pytest.raises(SecureFLError):
            read(data)


def dated(field: str, moment: str) -> bytes:
    tree = json.loads(GENUINE)
    tree[field] = moment
    return json.dumps(tree).encode()


@pytest.mark.parametrize("field", ["created", "expires"])
@pytest.mark.parametrize("moment", [MOMENTS[0], MOMENTS[2]])
def test_a_date_that_no_clock_shows(field: str, moment: str) -> None:
    with raises(KeyringError, reason="dates"):
        read_roster(dated(field, moment))


def test_the_commands_say_so(tmp_path: Any) -> None:
    file = tmp_path / "roster.json"
    file.write_bytes(dated("created", MOMENTS[0]))
    card = tmp_path / "card.json"
    card.write_bytes(b"{}")
    commands: list[list[str]] = [
        ["show", str(file)],
        ["ceremony", str(file)],
        ["rotate", str(file)],
        ["accept", str(file), str(file)],
        ["roster", str(card), "--coordinator", str(card), "--after", str(file)],
    ]
    given_ = {"SECURE_FL_PASSPHRASE": "correct horse battery"}
    for command in commands:
        done = CliRunner(env=given_).invoke(main, ["keys", *command], prog_name="secure-fl")
        assert done.exit_code == KeyringError.exit_status, (command, done.output)
        assert "impossible date" in done.output


@pytest.mark.parametrize("days", [0.0, -1.0, 1e9, 1e300, float("inf"), float("nan")])
def test_days_that_no_roster_holds(days: float) -> None:
    from secure_fl.crypto.keys.roster import make_roster

    with raises(KeyringError, reason="dates"):
        make_roster(members("north", "south", "east"), site("hub").public, days=days)


def test_the_genuine_one_passes_all_this() -> None:
    use(GENUINE)
    reading: Callable[[bytes], object] = read_roster
    assert reading(roster_bytes(fixed_roster())) == fixed_roster()
