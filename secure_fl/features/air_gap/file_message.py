"""Messages as files, authenticated by the key of this site's kit, and the folder of one direction.

Others may reach a folder on a cluster. So a letter says from which process to which one it is, and
its number; a file that was changed, put back or meant for another is not taken for a letter. The
frames in it are sealed and signed as everywhere: this adds nothing to who can read them.

A file is written beside, synced and renamed, so a half-written one has no letter's name. Who took a
letter removes it. Nothing is believed of a file before it was opened: no link, no pipe, nobody
else's, not larger than a letter can be.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from secure_fl.crypto.keys.files import read_bounded
from secure_fl.engines.flare.tls import NO_CERTIFICATE, TlsFiles
from secure_fl.errors import KeyringError, SettingsError, WireError
from secure_fl.files import replace_whole

MAGIC = b"SFL\x01"
LIFE = 16
TAG = sha256().digest_size
HEADER = struct.Struct(f">4sBB{LIFE}s{LIFE}sQ")
NOBODY = bytes(LIFE)


class Endpoint(IntEnum):
    """The sender of a message."""

    COURIER = 1
    TRAINER = 2

    @property
    def other(self) -> Endpoint:
        """Whom it is for."""
        return Endpoint.TRAINER if self is Endpoint.COURIER else Endpoint.COURIER


class Kind(IntEnum):
    """A sign of life, or a parcel of the engine."""

    BEAT = 1
    PARCEL = 2


class FileMessage(NamedTuple):
    """One file."""

    side: Endpoint
    kind: Kind
    life: bytes  # of the process that wrote it
    to: bytes  # the life that it was written for
    number: int  # counts a life's beats, and its parcels
    body: bytes | memoryview = b""

    def sealed(self, key: bytes, body: list[bytes]) -> list[bytes]:
        """Return the bytes of a message in pieces, so that `body` is not copied."""
        head = HEADER.pack(MAGIC, self.side, self.kind, self.life, self.to, self.number)
        tag = hmac.new(key, head, sha256)
        for piece in body:
            tag.update(piece)
        return [head, *body, tag.digest()]

    @classmethod
    def opened(cls, data: bytes, key: bytes) -> FileMessage:
        """Authenticate, then read."""
        view = memoryview(data)
        if len(view) < HEADER.size + TAG:
            raise WireError("a letter is cut short", field="size")
        found = hmac.new(key, view[:-TAG], sha256).digest()
        if not hmac.compare_digest(found, view[-TAG:]):
            raise WireError("a letter is not of this site's other end", field="tag")
        magic, side, kind, life, to, number = HEADER.unpack_from(view)
        known = side in Endpoint.__members__.values() and kind in Kind.__members__.values()
        if magic != MAGIC or not known:
            raise WireError(
                "a letter is of an unknown kind",
                field="kind",
                fix="install equal versions at both ends",
            )
        return cls(Endpoint(side), Kind(kind), life, to, number, view[HEADER.size : -TAG])


def message_key(tls: TlsFiles) -> bytes:
    """The key of both ends: of the kit's TLS key, which both have and nobody else.

    Whoever has that can speak as this site's courier anyway, so nothing hangs on it anew, and
    there is no second key to make, carry and lose.
    """
    try:
        private = load_pem_private_key(read_bounded(tls.key), password=None)
    except (ValueError, TypeError):
        raise KeyringError(
            "is not a private key", file=tls.key, fix=NO_CERTIFICATE, reason="certificate"
        ) from None
    secret = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return HKDF(SHA256(), 32, salt=None, info=b"secure_fl/1 letters in a folder").derive(secret)


BEAT = "beat"
NAME = re.compile(r"\d{20}\.letter")
LEFT = re.compile(r"\..*\.tmp|\d{20}\.letter")  # what a writer that was killed leaves
OTHERS = 0o077


class Mailbox:
    """The letters of one end to the other."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self._max = folder, max_bytes

    def prepare(self) -> None:
        """Make it, if it is not there, for its owner alone."""
        for folder in (self.folder.parent, self.folder):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise SettingsError(
                    f"the folder cannot be made ({error.strerror})",
                    fix="take a folder of your own, on a disk that both machines have",
                    file=str(folder),
                ) from None
            require_private(folder)

    def clear(self) -> None:
        """Remove what this end wrote in an earlier life: nobody waits for it any more."""
        for name in os.listdir(self.folder):
            if LEFT.fullmatch(name):
                self.remove(name)

    def post(self, name: str, pieces: Sequence[bytes]) -> None:
        """Write a letter; it is there whole, or not at all."""
        require_private(self.folder)
        replace_whole(self.folder / name, *pieces, mode=0o600)

    def letters(self) -> list[str]:
        """The names of what waits, in order."""
        return sorted(name for name in os.listdir(self.folder) if NAME.fullmatch(name))

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, if it exists."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self.folder / name, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WireError(f"a file cannot be opened ({error.strerror})", field="file") from None
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise WireError("a file is a link, or another user's", field="owner")
            if found.st_mode & OTHERS:
                raise WireError("a file is open to others", field="mode")
            if found.st_size > self._max:
                raise WireError("a file is larger than a letter can be", field="size")
            return stream.read(self._max + 1)

    def has(self, name: str) -> bool:
        """Tell if a message still waits."""
        return (self.folder / name).exists()

    def remove(self, name: str) -> None:
        """Take a letter away; that is also its receipt."""
        with suppress(OSError):
            (self.folder / name).unlink()


def letter_name(number: int) -> str:
    """Names sort as their numbers do."""
    return f"{number:020d}.letter"


def require_private(folder: Path) -> None:
    """Refuse a folder in which others could put or take something."""
    try:
        found = folder.lstat()
    except OSError as error:
        raise SettingsError(
            f"the folder is not there ({error.strerror})", file=str(folder), fix="start again"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SettingsError(
            "is a link, or another user's", file=str(folder), fix="take a folder of your own"
        )
    if found.st_mode & OTHERS:
        raise SettingsError(
            "is open to others on this machine", file=str(folder), fix=f"chmod 700 {folder}"
        )
