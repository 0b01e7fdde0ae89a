"""Who may open a file with secrets: access lists count, and a credential of systemd passes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secure_fl.crypto.keys.vault import (
    ACL,
    ACL_ENTRY,
    ACL_HEAD,
    ACL_VERSION,
    GROUP,
    MASK,
    USER,
    check_private,
    open_to_others,
)
from secure_fl.errors import KeyringError
from tests.support.raising import raises

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
