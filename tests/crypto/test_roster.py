"""Rosters: signed by all, closed, and clear about what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secure_fl.cli.keys import as_text, describe
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, Roster, make_roster
from secure_fl.crypto.keys.roster_files import card_bytes, read_card, read_roster, roster_bytes
from secure_fl.errors import KeyringError, SecureFLError
from secure_fl.thresholds import collusion_bound, default_threshold
from tests.support.key_sites import fixed_roster, members, signed, site, unsigned
from tests.support.raising import raises

NAMES = ("north", "south", "east")


def test_signed_by_all_verifies_and_survives_its_file() -> None:
    roster = signed(*NAMES)
    roster.verify(me=site("north").public)
    again = read_roster(roster_bytes(roster))
    assert again == roster and again.digest() == roster.digest()
    assert roster.names == ("east", "north", "south")


def test_the_digest_covers_everything_but_the_signatures() -> None:
    base = unsigned(*NAMES)
    assert signed(*NAMES).names == base.names
    assert base.sign(site("north")).digest() == base.digest()
    changed = [
        replace(base, threshold=2),
        replace(base, version=2),
        replace(base, expires=base.expires + timedelta(seconds=1)),
        replace(base, created=base.created - timedelta(seconds=1)),
        replace(base, coordinator=site("west").public),
        replace(base, members=base.members[:2]),
        replace(base, members=(*base.members[:2], replace(base.members[2], tier=""))),
        replace(base, members=(*base.members[:2], replace(base.members[2], role="host"))),
    ]
    assert len({r.digest() for r in (base, *changed)}) == len(changed) + 1


def test_a_site_uses_no_roster_that_it_has_not_signed() -> None:
    roster = unsigned(*NAMES)
    with raises(KeyringError, "no member has signed it", reason="unsigned"):
        roster.verify()
    for name in NAMES:  # a roster does not name its dealer, so any member's signature counts
        roster.sign(site(name)).verify()
    roster = roster.sign(site("north"))
    roster.verify(me=site("north").public)
    with raises(KeyringError, "'south'", reason="unsigned"):
        roster.verify(me=site("south").public)
    forged = dict(roster.signatures) | {"east": dict(roster.signatures)["north"]}
    with raises(KeyringError, "'east'", reason="signature"):
        replace(roster, signatures=tuple(forged.items())).verify(me=site("north").public)


def _swap_key(roster: Roster) -> Roster:
    other = Identity.generate("south")
    new = tuple(
        replace(m, identity=other.public) if m.name == "south" else m for m in roster.members
    )
    return replace(roster, members=new)


WRONG: tuple[tuple[str, Callable[[Roster], Roster]], ...] = (
    ("signature", lambda r: replace(r, version=7)),
    ("signature", _swap_key),
    ("not-listed", lambda r: replace(r, signatures=(*r.signatures, ("eve", bytes(64))))),
    ("duplicate-names", lambda r: replace(r, members=(*r.members, r.members[0]))),
    (
        "role",
        lambda r: replace(
            r,
            members=(replace(r.members[0], role="boss"), *r.members[1:]),  # type: ignore[arg-type]
        ),
    ),
    (
        "several-hosts",
        lambda r: replace(r, members=tuple(replace(m, role="host") for m in r.members)),
    ),
    ("no-party", lambda r: replace(r, members=())),
    ("card", lambda r: replace(r, members=(replace(r.members[0], name="west"), *r.members[1:]))),
    ("shared-key", lambda r: replace(r, coordinator=replace(r.members[0].identity, name="a"))),
    ("threshold", lambda r: replace(r, threshold=1)),
    ("dates", lambda r: replace(r, expires=r.created)),
)


@pytest.mark.parametrize(("reason", "wrong"), WRONG)
def test_what_is_wrong_is_said(reason: str, wrong: Callable[[Roster], Roster]) -> None:
    with raises(KeyringError, reason=reason):
        wrong(signed(*NAMES)).verify()


def test_names_that_differ_by_case_only_are_refused() -> None:
    with raises(KeyringError, reason="duplicate-names"):
        make_roster(members("north", "North", "east"), site("hub").public)


def test_an_expired_roster_is_refused() -> None:
    roster = signed(*NAMES)
    roster.verify(now=roster.expires - timedelta(seconds=1))
    with raises(KeyringError, reason="expired"):
        roster.verify(now=roster.expires)


def test_a_foreign_identity_neither_signs_nor_uses_it() -> None:
    impostor = Identity.generate("north")
    for reason, action in (
        ("not-listed", lambda: unsigned(*NAMES).sign(site("west"))),
        ("other-keys", lambda: unsigned(*NAMES).sign(impostor)),
        ("other-keys", lambda: signed(*NAMES).verify(me=impostor.public)),
    ):
        with raises(KeyringError, reason=reason):
            action()


def test_files_are_closed() -> None:
    good = json.loads(roster_bytes(signed(*NAMES)))
    for change, reason, named in (
        ({"extra": 1}, "malformed", "extra"),
        ({"format": 1}, "other-format", "1, this program reads 2"),
        ({"format": 3}, "other-format", "3"),
        ({"fingerprint": "00000"}, "changed", "fingerprint"),
        ({"created": "2026-01-01T00:00:00"}, "malformed", "created"),
        ({"members": [{**good["members"][0], "role": "boss"}]}, "malformed", "role"),
    ):
        with raises(KeyringError, named, reason=reason):
            read_roster(json.dumps(good | change).encode())
    for cut in (b"", roster_bytes(signed(*NAMES))[:-40]):
        with raises(KeyringError, reason="malformed"):
            read_roster(cut)


def test_a_card_with_a_swapped_key_does_not_read() -> None:
    card = card_bytes(site("north"))
    assert read_card(card) == site("north").public
    fields = json.loads(card)
    fields["card"]["agreement"] = json.loads(card_bytes(site("eve")))["card"]["agreement"]
    with raises(KeyringError, reason="card"):
        read_card(json.dumps(fields).encode())


NORTH = site("north").public.agreement
UNUSABLE = {
    "low order": bytes(32) + NORTH[32:],
    "second encoding": NORTH[:31] + bytes([NORTH[31] | 0x80]) + NORTH[32:],
    "no ML-KEM key": NORTH[:32] + b"\xff" * (len(NORTH) - 32),
}


@pytest.mark.parametrize("agreement", UNUSABLE.values(), ids=UNUSABLE)
def test_keys_that_nobody_can_seal_to_are_refused_by_name(agreement: bytes) -> None:
    """The ceremony failed after all members had signed, and named nobody."""
    owner = site("north")
    object.__setattr__(owner, "public", replace(owner.public, agreement=agreement))
    with raises(KeyringError, party="north", reason="card"):
        read_card(card_bytes(owner))
    other = Member("north", "party", None, owner.public)
    roster = make_roster((*members("south", "east"), other), site("hub").public)
    with raises(KeyringError, party="north", reason="card"):
        read_roster(roster_bytes(roster))


def test_naive_times_are_read_as_local_and_kept_in_utc() -> None:
    now = datetime.now(UTC)
    roster = Roster(members(*NAMES), site("hub").public, None, now, now + timedelta(1))
    assert roster.created.tzinfo is UTC and roster.created.microsecond == 0


@pytest.mark.parametrize(("n", "t"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (7, 5), (10, 7)])
def test_default_threshold(n: int, t: int) -> None:
    assert default_threshold(n) == t


@pytest.mark.parametrize(("n", "t"), [(n, t) for n in range(3, 9) for t in range(1, n + 1)])
def test_collusion_bound_by_brute_force(n: int, t: int) -> None:
    """Colluders answer twice, an honest party once: two unmaskings need 2(t-c) honest answers."""
    bound = collusion_bound(n, t)
    safe_honest = [c for c in range(n - 1) if c < t]  # c alone cannot rebuild a secret
    assert bound.honest == max(safe_honest)
    safe_lying = [c for c in safe_honest if 2 * (t - c) > n - c]
    assert bound.lying == max(safe_lying, default=-1)
    assert ("Raise the threshold" in bound.sentence()) == (not safe_lying)


def test_the_threshold_of_a_roster_replaces_the_default() -> None:
    roster = signed("a", "b", "c", "d")
    assert roster.t == 3
    assert replace(roster, threshold=4).t == 4 and replace(roster, threshold=2).bound.honest == 1


def test_a_host_is_no_party() -> None:
    roster = signed("a", "b", "c", "d", host="d")
    assert roster.t == 3 and roster.host is not None and roster.host.name == "d"
    assert [m.name for m in roster.parties] == ["a", "b", "c"]
    assert roster.member("d") == Member("d", "host", None, site("d").public)


def test_a_roster_needs_neither_torch_nor_tenseal() -> None:
    code = (
        "import sys, secure_fl.crypto.keys.roster_files, secure_fl.crypto.keys.keyring;"
        "print({'torch', 'tenseal', 'opacus', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- roster files that anybody could send -------------------------------------------------------


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


@settings(max_examples=250, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(GENUINE) - 1), st.integers(0, len(GENUINE)), st.binary(max_size=4))
def test_bytes_that_are_others(start: int, end: int, new: bytes) -> None:
    try:
        use(GENUINE[:start] + new + GENUINE[end:])
    except SecureFLError:
        pass


@settings(max_examples=80, deadline=None)
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


@pytest.mark.parametrize("days", [0.0, -1.0, 1e9, 1e300, float("inf"), float("nan")])
def test_days_that_no_roster_holds(days: float) -> None:
    with raises(KeyringError, reason="dates"):
        make_roster(members("north", "south", "east"), site("hub").public, days=days)


def test_the_genuine_one_passes_all_this() -> None:
    use(GENUINE)
    reading: Callable[[bytes], object] = read_roster
    roster = fixed_roster()
    assert reading(roster_bytes(roster)) == roster
