"""Rosters: signed by all, closed, and clear about what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import (
    Member,
    Roster,
    collusion_bound,
    default_threshold,
    make_roster,
)
from secure_fl.crypto.keys.roster_files import card_bytes, read_card, read_roster, roster_bytes
from secure_fl.errors import KeyringError
from tests.support.key_sites import members, signed, site, unsigned
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
    with raises(KeyringError, "its dealer", reason="unsigned"):
        roster.verify()
    roster = roster.sign(site("north"))
    roster.verify()
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
    ("shared-key", lambda r: replace(r, coordinator=r.members[0].identity)),
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
        ({"format": 2}, "other-format", "2"),
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


def test_the_sentence_says_the_numbers() -> None:
    said = signed("a", "b", "c", "d").bound.sentence()
    assert "2 of the 4 parties" in said and "up to 1." in said


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
