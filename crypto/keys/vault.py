"""A file with one secret: scrypt over the passphrase, AES-256-GCM over the secret.

Specified in docs/protocol-bytes.md 2.7.

    version | kind | log2 N | r | p (a byte each) | salt 16 | nonce 12 | check 16 | length 4 | body

All bytes before the ciphertext are authenticated with it. `check` comes from the same scrypt call
as the key, and only distinguishes a wrong passphrase from a changed file: it helps a guesser no
more than the GCM tag does. A file that others may open, by its mode or its access list, is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from hmac import compare_digest
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from secure_fl.crypto.keys.files import read_bounded, write_atomic
from secure_fl.errors import KeyringError

VERSION = 1
HEADER = struct.Struct(">BBBBB16s12s16sI")
TAG_BYTES = 16


class KeyFileKind(IntEnum):
    """Content of a key file; authenticated, so that files cannot be exchanged."""

    IDENTITY = 1
    COHORT = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one guess in scrypt (RFC 7914): N = 2**log_n; the default takes 128 MiB."""

    log_n: int = 17
    r: int = 8
    p: int = 1

    def usable(self) -> bool:
        """Check the cost that a file names: its reader must not need gigabytes or minutes."""
        fields = 10 <= self.log_n <= 20 and 1 <= self.r <= 16 and 1 <= self.p <= 16
        return fields and self.r * self.p << self.log_n <= MOST_WORK


DEFAULT_COST = Cost()
MOST_WORK = 1 << 23  # N · r · p: 8 times the default, and at most 1 GiB of memory


def encrypt(
    kind: KeyFileKind,
    secret: bytes,
    passphrase: str,
    cost: Cost,
    *,
    _salt: bytes | None = None,
    _nonce: bytes | None = None,
) -> bytes:
    """Encrypt a secret under a passphrase; salt and nonce are fixed by test vectors only."""
    salt, nonce = _salt or os.urandom(16), _nonce or os.urandom(12)
    key, check = _stretch(passphrase, salt, cost)
    length = len(secret) + TAG_BYTES
    head = HEADER.pack(VERSION, kind, cost.log_n, cost.r, cost.p, salt, nonce, check, length)
    return head + AESGCM(key).encrypt(nonce, secret, head)


def decrypt(kind: KeyFileKind, data: bytes, passphrase: str, *, file: object = None) -> bytes:
    """Decrypt the result of `encrypt`, or raise KeyringError that names the problem."""
    if not data or data[0] != VERSION:
        raise KeyringError(
            f"has key file version {data[0]}, this program reads {VERSION}" if data else "is empty",
            file=file,
            fix="install the matching secure_fl version, or restore the file from its backup",
            reason="other-format",
        )
    if len(data) < HEADER.size:
        raise _truncated(file)
    _, kept, log_n, r, p, salt, nonce, check, length = HEADER.unpack_from(data)
    if len(data) != HEADER.size + length or length < TAG_BYTES:
        raise _truncated(file)
    cost = Cost(log_n, r, p)
    if kept != kind or not cost.usable():
        raise _changed(kind, file)
    key, expected = _stretch(passphrase, salt, cost)
    if not compare_digest(check, expected):
        raise KeyringError(
            "the passphrase is wrong",
            file=file,
            fix="try the passphrase again",
            reason="passphrase",
        )
    try:
        return AESGCM(key).decrypt(nonce, data[HEADER.size :], data[: HEADER.size])
    except InvalidTag:
        raise _changed(kind, file) from None


def save(path: Path, kind: KeyFileKind, secret: bytes, passphrase: str, cost: Cost) -> None:
    """Encrypt into a file that only its owner can read."""
    write_atomic(path, encrypt(kind, secret, passphrase, cost), mode=0o600)


def load(path: Path, kind: KeyFileKind, passphrase: str) -> bytes:
    """Decrypt a file; one that others could read or write is refused."""
    check_private(path, 0o600)
    return decrypt(kind, read_bounded(path), passphrase, file=path)


def check_private(path: Path, mode: int) -> None:
    """Raise KeyringError if anybody but the owner, or this user, may open a file or folder."""
    try:
        current, exposed = path.stat().st_mode & 0o777, open_to_others(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        make = "check the path, or make it with `secure-fl keys identity`"
        raise KeyringError(
            f"cannot be read: {error.strerror or error}",
            file=path,
            fix=make if missing else "let the user who runs this read it, and nobody else",
            reason="unreadable",
        ) from None
    if exposed:
        raise KeyringError(
            f"others may open it (mode {current:04o})",
            file=path,
            fix=f"chmod {mode:o} it; if others could have read it, rotate the keys",
            reason="permissions",
        )


def _stretch(passphrase: str, salt: bytes, cost: Cost) -> tuple[bytes, bytes]:
    if not passphrase:
        raise KeyringError(
            "the passphrase is empty",
            fix="choose one of 12 characters or more",
            reason="passphrase",
        )
    kdf = Scrypt(salt=salt, length=48, n=1 << cost.log_n, r=cost.r, p=cost.p)
    both = kdf.derive(passphrase.encode())
    return both[:32], both[32:]


def _truncated(file: object) -> KeyringError:
    return KeyringError(
        "is cut short, or has extra bytes", file=file, fix="restore its backup", reason="malformed"
    )


def _changed(kind: KeyFileKind, file: object) -> KeyringError:
    return KeyringError(
        f"was changed, or is not a file of kind {kind.name.lower()}",
        file=file,
        fix="restore its backup, and find out who could write here",
        reason="changed",
    )


ACL = "system.posix_acl_access"  # <linux/posix_acl_xattr.h>
ACL_HEAD, ACL_ENTRY, ACL_VERSION = struct.Struct("<I"), struct.Struct("<HHI"), 2
USER, GROUP_OWNER, GROUP, MASK = 0x02, 0x04, 0x08, 0x10


def open_to_others(path: Path) -> bool:
    """Return True if anybody but the owner and this process's user may open the file.

    With an access list the mode's group bits are the list's mask: so systemd gives a service its
    credential as 0440, for this one user and no group.
    """
    mode = path.stat().st_mode & 0o077
    if not mode:
        return False
    try:
        entries = list(_entries(os.getxattr(path, ACL)))
    except (OSError, ValueError, struct.error):  # no list, or an unknown version
        return True
    mask = next((may for tag, may, _ in entries if tag == MASK), 0o7)
    return any(may & mask for tag, may, who in entries if _another(tag, who)) or bool(mode & 0o007)


def _another(tag: int, who: int) -> bool:
    return tag in (GROUP_OWNER, GROUP) or (tag == USER and who != os.geteuid())


def _entries(acl: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield kind, rights and id of each entry."""
    (version,) = ACL_HEAD.unpack_from(acl)
    if version != ACL_VERSION:
        raise ValueError(f"access lists of version {version}")
    yield from ACL_ENTRY.iter_unpack(acl[ACL_HEAD.size :])
