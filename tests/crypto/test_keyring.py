"""Key files and the ceremony: what opens, and the sentence for each way in which it must not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from secure_fl.crypto.keys import vault
from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import seal_to
from secure_fl.crypto.keys.keyring import (
    FORMAT,
    CohortKeys,
    KeyRing,
    deal,
    decode_keys,
    encode_keys,
    open_bundle,
    seal_bundles,
)
from secure_fl.crypto.keys.vault import (
    ACL,
    ACL_ENTRY,
    ACL_HEAD,
    ACL_VERSION,
    DEFAULT_COST,
    GROUP,
    HEADER,
    MASK,
    USER,
    Cost,
    KeyFileKind,
    check_private,
    decrypt,
    encrypt,
    open_to_others,
)
from secure_fl.errors import KeyringError
from tests.support.key_sites import CHEAP, fixed_roster, signed, site, unsigned
from tests.support.raising import raises

NAMES = ("north", "south", "east")
FAR = datetime(2999, 1, 1, tzinfo=UTC)
SECRET = b"the scheme's secret key, opaque here"
KNOWN = "6396652c236409c918179c72ef7cedd630a15f371ff776b9fd4a74b729cb36ba"


def ring(folder: Path, name: str) -> KeyRing:
    made = KeyRing(folder / name, f"passphrase of {name}", CHEAP)
    made.create(site(name))
    return made


@pytest.fixture
def rings(tmp_path: Path) -> dict[str, KeyRing]:
    return {name: ring(tmp_path, name) for name in NAMES}


def test_known_answer() -> None:
    """The format of today: a change of this digest is a new version byte."""
    data = encrypt(
        KeyFileKind.IDENTITY, b"secret", "pass", CHEAP, _salt=bytes(16), _nonce=bytes(12)
    )
    assert data[:5] == bytes((1, 1, 10, 8, 1))
    assert len(data) == HEADER.size + 6 + 16
    assert hashlib.sha256(data).hexdigest() == KNOWN
    key = hashlib.scrypt(b"pass", salt=bytes(16), n=1 << 10, r=8, p=1, dklen=48)
    assert data[33:49] == key[32:]


def test_a_file_opens_with_its_passphrase_only() -> None:
    data = encrypt(KeyFileKind.IDENTITY, b"secret", "right", CHEAP)
    assert decrypt(KeyFileKind.IDENTITY, data, "right") == b"secret"
    assert b"secret" not in data
    with raises(KeyringError, reason="passphrase"):
        decrypt(KeyFileKind.IDENTITY, data, "wrong")
    with raises(KeyringError, reason="passphrase"):
        encrypt(KeyFileKind.IDENTITY, b"secret", "", CHEAP)


def test_every_changed_byte_is_found() -> None:
    data = encrypt(KeyFileKind.COHORT, b"secret", "right", CHEAP)
    for i in range(len(data)):
        changed = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        with pytest.raises(KeyringError):
            decrypt(KeyFileKind.COHORT, changed, "right")
    body = data[:-1] + bytes([data[-1] ^ 1])
    with raises(KeyringError, reason="changed"):
        decrypt(KeyFileKind.COHORT, body, "right")


def test_new_files_cost_more_and_older_ones_open() -> None:
    data = encrypt(KeyFileKind.IDENTITY, b"secret", "right", DEFAULT_COST)
    assert data[2:5] == bytes((17, 8, 1)) and decrypt(KeyFileKind.IDENTITY, data, "right")
    older = encrypt(KeyFileKind.IDENTITY, b"secret", "right", Cost(15))
    assert decrypt(KeyFileKind.IDENTITY, older, "right") == b"secret"


@pytest.mark.parametrize("cost", [(30, 8, 1), (255, 255, 255), (20, 16, 16), (20, 8, 2), (9, 8, 1)])
def test_a_file_does_not_choose_what_its_reader_spends(
    cost: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound is checked before anything is derived: 2^20 with r = p = 16 would take minutes."""
    data = encrypt(KeyFileKind.IDENTITY, b"secret", "right", CHEAP)
    changed = data[:2] + bytes(cost) + data[5:]
    derived: list[object] = []
    monkeypatch.setattr(vault, "_stretch", lambda *given: derived.append(given))
    with raises(KeyringError, reason="changed"):
        decrypt(KeyFileKind.IDENTITY, changed, "right")
    assert not derived


BROKEN: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("other-format", lambda d: b""),
    ("other-format", lambda d: b"\x07" + d[1:]),
    ("malformed", lambda d: d[:-1]),
    ("malformed", lambda d: d[:20]),
    ("malformed", lambda d: d + b"\x00"),
    ("changed", lambda d: d[:1] + b"\x02" + d[2:]),
)


@pytest.mark.parametrize(("reason", "broken"), BROKEN)
def test_broken_files_are_named(
    reason: str, broken: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    north = ring(tmp_path, "north")
    path = north.folder / "identity.key"
    write_atomic(path, broken(path.read_bytes()), mode=0o600)
    with raises(KeyringError, reason=reason, file=path) as caught:
        north.identity()
    assert north.passphrase not in str(caught.value)


def test_modes_are_narrow_and_wide_ones_refused(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        north = ring(tmp_path, "north")
    finally:
        os.umask(old)
    path = north.folder / "identity.key"
    assert (path.stat().st_mode & 0o777, north.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    for target, wide, narrow in ((path, 0o640, 0o600), (north.folder, 0o750, 0o700)):
        target.chmod(wide)
        with raises(KeyringError, f"{wide:04o}", reason="permissions") as caught:
            north.identity()
        assert f"chmod {narrow:o} it" in caught.value.fix
        target.chmod(narrow)
    assert north.identity().public == site("north").public


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    north = ring(tmp_path, "north")
    with raises(KeyringError, reason="exists"):
        north.create(site("north"))
    with raises(KeyringError, reason="unreadable"):
        KeyRing(tmp_path / "nowhere", "p", CHEAP).identity()


def test_what_is_there_but_closed_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    north = ring(tmp_path, "north")
    monkeypatch.setattr(Path, "stat", closed)
    with raises(KeyringError, "Permission denied", reason="unreadable") as caught:
        north.identity()
    assert "let the user" in caught.value.fix and "keys identity" not in caught.value.fix


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def broken(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with raises(KeyringError, reason="unwritable"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_ceremony_gives_all_members_the_same_keys(rings: dict[str, KeyRing]) -> None:
    roster = signed(*NAMES)
    bundles = rings["north"].ceremony(roster, SECRET)
    assert set(bundles) == set(NAMES)
    for name in ("south", "east"):
        rings[name].accept(roster, bundles[name])
    held = [rings[name].cohort(roster) for name in NAMES]
    assert {k.fingerprint() for k in held} == {held[0].fingerprint()}
    assert {(k.secret, k.tag_key, k.channel_key) for k in held} == {
        (SECRET, held[0].tag_key, held[0].channel_key)
    }
    assert held[0].tag_key != held[0].channel_key
    assert "secret" not in repr(held[0]) and SECRET not in b"".join(bundles.values())


def test_a_repeated_ceremony_deals_the_same_keys(rings: dict[str, KeyRing]) -> None:
    roster = signed(*NAMES)
    first = rings["north"].ceremony(roster, SECRET)
    again = rings["north"].ceremony(roster, b"another secret")
    assert rings["south"].accept(roster, again["south"]).secret == SECRET
    rings["south"].accept(roster, first["south"])  # the same keys: nothing to do
    with raises(KeyringError, reason="newer-keys-present"):
        rings["south"].accept(roster, rings["east"].ceremony(roster, b"a second dealer")["south"])


def test_bundles_open_only_for_their_member_and_roster(rings: dict[str, KeyRing]) -> None:
    roster = signed(*NAMES)
    bundles = rings["north"].ceremony(roster, SECRET)
    with raises(KeyringError, "'east'", "'south'"):
        rings["south"].accept(roster, bundles["east"])
    other = signed(*NAMES, version=2)
    with raises(KeyringError, reason="cannot-open"):
        rings["south"].accept(other, bundles["south"])
    for bad in (b"", bundles["south"][:-9], b"x" * 90):
        with pytest.raises(KeyringError):
            rings["south"].accept(roster, bad)
    with raises(KeyringError, reason="cannot-open"):
        rings["south"].accept(roster, bundles["south"][:-1] + b"\x00")


def test_an_outsider_cannot_deal(rings: dict[str, KeyRing]) -> None:
    roster = signed(*NAMES)
    with raises(KeyringError, "'eve'"):
        deal(site("eve"), roster, SECRET)
    theirs = signed(*NAMES, "eve")
    forged = seal_bundles(site("eve"), theirs, deal(site("eve"), theirs, SECRET))["south"]
    with raises(KeyringError, reason="not-listed"):
        open_bundle(site("south"), roster, forged)


def test_no_ceremony_and_no_keys_before_one_has_signed(rings: dict[str, KeyRing]) -> None:
    roster = unsigned(*NAMES).sign(site("east"))
    with raises(KeyringError, "'north'", reason="unsigned"):
        rings["north"].ceremony(roster, SECRET)
    bundles = rings["east"].ceremony(roster, SECRET)
    with raises(KeyringError, "'south'", reason="unsigned"):
        rings["south"].accept(roster, bundles["south"])
    rings["south"].accept(roster.sign(site("south")), bundles["south"])


def test_a_foreign_roster_is_refused(rings: dict[str, KeyRing]) -> None:
    rings["north"].ceremony(signed(*NAMES), SECRET)
    with raises(KeyringError, reason="other-roster"):
        rings["north"].cohort(signed("north", "south", "west"))
    with raises(KeyringError, reason="missing"):
        rings["south"].cohort(signed(*NAMES))


def test_expired_keys_are_refused() -> None:
    roster = fixed_roster()
    keys = CohortKeys(roster.digest(), 1, roster.expires, "north", SECRET, bytes(32), bytes(32))
    keys.check(roster, now=datetime(2026, 6, 1, tzinfo=UTC))
    with raises(KeyringError, "2027-01-01"):
        keys.check(roster, now=roster.expires)


@pytest.mark.parametrize(
    "fields",
    [
        (FORMAT - 1, SECRET, bytes(32), bytes(32)),
        (FORMAT + 1, SECRET, bytes(32), bytes(32)),
        (FORMAT, b"", bytes(32), bytes(32)),
        (FORMAT, SECRET, bytes(31), bytes(32)),
        (FORMAT, SECRET, bytes(32), bytes(31)),
    ],
)
def test_keys_of_another_format_are_refused(fields: tuple[int, bytes, bytes, bytes]) -> None:
    form, *keys = fields
    roster = fixed_roster()
    encoded = (form, roster.digest(), 1, roster.expires, "north", *keys)
    with raises(KeyringError, reason="other-format"):
        decode_keys(msgspec.msgpack.encode(encoded))


@pytest.mark.parametrize("wrong", [{"version": -1}, {"version": 2**62}, {"expires": FAR}])
def test_a_dealer_cannot_write_another_version_or_expiry_into_keys(
    wrong: dict[str, Any], rings: dict[str, KeyRing]
) -> None:
    """A high version would refuse the next roster; a low one would accept the last one's kit."""
    roster, dealer, south = signed(*NAMES), site("north"), site("south").public
    keys = encode_keys(replace(deal(dealer, roster, SECRET), **wrong))
    sealed = seal_to(dealer, south, keys, b"secure-fl ceremony" + roster.digest())
    bundle = msgspec.msgpack.encode((FORMAT, "north", "south", sealed))
    with raises(KeyringError, "north", reason="other-roster"):
        rings["south"].accept(roster, bundle)


@pytest.mark.parametrize("expires", ["2999-01-01T00:00:00", "2999-01-01T00:00:00Z"])
def test_an_expiry_as_text_is_refused(expires: str) -> None:
    encoded = (FORMAT, bytes(32), 1, expires, "north", SECRET, bytes(32), bytes(32))
    with raises(KeyringError, reason="malformed"):
        decode_keys(msgspec.msgpack.encode(encoded))


def test_an_expired_roster_closes_the_ring(rings: dict[str, KeyRing]) -> None:
    roster = signed(*NAMES)
    rings["north"].ceremony(roster, SECRET)
    with raises(KeyringError, reason="expired"):
        rings["north"].cohort(roster, now=roster.expires + timedelta(seconds=1))


def test_rotation_archives_and_refuses_the_old_keys(rings: dict[str, KeyRing]) -> None:
    old, new = signed(*NAMES), signed("north", "south", version=2)
    north, south = rings["north"], rings["south"]
    south.accept(old, north.ceremony(old, SECRET)["south"])
    with raises(KeyringError, reason="older-version"):
        north.rotate(old, SECRET)
    bundles = north.rotate(new, b"a fresh secret")
    assert set(bundles) == {"north", "south"}
    south.accept(new, bundles["south"])
    for member in (north, south):
        assert member.cohort(new).secret == b"a fresh secret"
        with raises(KeyringError, reason="other-roster"):
            member.cohort(old)
        with raises(KeyringError, "has version 1", reason="older-version"):
            member.rotate(old, SECRET)
        assert (member.folder / "archive" / "cohort-1.key").exists()
    with raises(KeyringError, reason="newer-keys-present"):
        north.ceremony(old, SECRET)


def test_a_kit_of_no_later_roster_is_refused_unless_it_is_the_present_one(
    rings: dict[str, KeyRing],
) -> None:
    """The check comes before a kit replaces anything: keys of a later roster are never given up."""
    old, new = signed(*NAMES), signed("north", "south", version=2)
    north = rings["north"]
    north.require_newer(old)  # no keys yet
    north.ceremony(old, SECRET)
    north.require_newer(old)
    north.require_newer(new)
    with raises(KeyringError, reason="newer-keys-present", file=north.folder / "cohort.key"):
        north.require_newer(signed("north", "south"))  # another roster with the same version
    north.rotate(new, b"a fresh secret")
    north.require_newer(new)
    with raises(KeyringError, reason="newer-keys-present"):
        north.require_newer(old)


# --- who may open a file with secrets -----------------------------------------------------------


OWNER, GROUP_OWNER, OTHER, NOBODY = 0x01, 0x04, 0x20, 0xFFFFFFFF
READ, NONE = 0o4, 0
US, SOMEBODY = os.geteuid(), os.geteuid() + 1


def listed(file: Path, *entries: tuple[int, int, int]) -> Path:
    """Give a file an access list, as `setfacl` does."""
    file.write_text("secret")
    every = sorted([(OWNER, 0o6, NOBODY), (OTHER, NONE, NOBODY), *entries])
    packed = ACL_HEAD.pack(ACL_VERSION) + b"".join(ACL_ENTRY.pack(*entry) for entry in every)
    try:
        os.setxattr(file, ACL, packed)
    except OSError as error:
        pytest.skip(f"no access lists on this file system: {error.strerror}")
    return file


def test_a_credential_of_systemd_is_for_this_user_alone(tmp_path: Path) -> None:
    file = listed(tmp_path / "passphrase", (USER, READ, US), (GROUP_OWNER, NONE, NOBODY),
                  (MASK, READ, NOBODY))  # fmt: skip
    assert file.stat().st_mode & 0o777 == 0o640  # as if a group could read it
    check_private(file, 0o600)


@pytest.mark.parametrize(
    "others",
    [
        ((USER, READ, SOMEBODY), (GROUP_OWNER, NONE, NOBODY)),
        ((USER, READ, US), (GROUP_OWNER, READ, NOBODY)),
        ((USER, READ, US), (GROUP_OWNER, NONE, NOBODY), (GROUP, READ, 1)),
    ],
    ids=["another user", "the file's group", "another group"],
)
def test_whom_else_a_list_names_is_seen(
    tmp_path: Path, others: tuple[tuple[int, ...], ...]
) -> None:
    file = listed(tmp_path / "passphrase", (MASK, READ, NOBODY), *others)  # type: ignore[arg-type]
    with raises(KeyringError, reason="permissions"):
        check_private(file, 0o600)


def test_without_a_list_the_mode_counts(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("secret")
    for mode, open_ in ((0o600, False), (0o400, False), (0o440, True), (0o604, True)):
        file.chmod(mode)
        assert open_to_others(file) == open_
