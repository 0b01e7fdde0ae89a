"""Messages as files, authenticated by a key of this site's kit, and the folder for one direction.

Other users of a cluster may reach the folder. So each file contains the ids of the process that
wrote it and of the process that it is for, a number, and an authentication tag. A file that was
changed, put back or meant for another process is refused. The frames in messages are sealed and
signed as in every transport, so the tag protects no secret.

A file is written under a temporary name, synced and renamed, so that the reader never sees half of
it. The reader removes a message to acknowledge it. A file is read only if it is regular, private,
of this user, and not larger than a message can be.
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
PROCESS_ID_BYTES = 16
TAG = sha256().digest_size
HEADER = struct.Struct(f">4sBB{PROCESS_ID_BYTES}s{PROCESS_ID_BYTES}sQ")
NO_PROCESS = bytes(PROCESS_ID_BYTES)


class Endpoint(IntEnum):
    """The two ends of a folder."""

    COURIER = 1
    TRAINER = 2

    @property
    def other(self) -> Endpoint:
        """The opposite end."""
        return Endpoint.TRAINER if self is Endpoint.COURIER else Endpoint.COURIER


class Kind(IntEnum):
    """The kinds of files."""

    HEARTBEAT = 1
    MESSAGE = 2  # a transport message of the engine


class FileMessage(NamedTuple):
    """The content of one file."""

    sender: Endpoint
    kind: Kind
    process_id: bytes  # of the process that wrote it
    recipient: bytes  # id of the process that it is for
    number: int  # heartbeats and messages of a process are counted separately
    body: bytes | memoryview = b""

    def sealed(self, key: bytes, body: list[bytes]) -> list[bytes]:
        """Return the bytes of a file in pieces, so that `body` is not copied."""
        head = HEADER.pack(
            MAGIC, self.sender, self.kind, self.process_id, self.recipient, self.number
        )
        tag = hmac.new(key, head, sha256)
        for piece in body:
            tag.update(piece)
        return [head, *body, tag.digest()]

    @classmethod
    def opened(cls, data: bytes, key: bytes) -> FileMessage:
        """Authenticate the bytes of a file, then decode them."""
        view = memoryview(data)
        if len(view) < HEADER.size + TAG:
            raise WireError("a message is cut short", field="size")
        tag = hmac.new(key, view[:-TAG], sha256).digest()
        if not hmac.compare_digest(tag, view[-TAG:]):
            raise WireError("a message was not written by this site's other end", field="tag")
        magic, sender, kind, process_id, recipient, number = HEADER.unpack_from(view)
        known = sender in Endpoint.__members__.values() and kind in Kind.__members__.values()
        if magic != MAGIC or not known:
            raise WireError(
                "a message is of an unknown kind",
                field="kind",
                fix="install equal versions at both ends",
            )
        body = view[HEADER.size : -TAG]
        return cls(Endpoint(sender), Kind(kind), process_id, recipient, number, body)


def message_key(tls: TlsFiles) -> bytes:
    """Derive the key of both ends from the TLS key of the kit, which only they have.

    Everyone with the TLS key can act as this site's courier anyway, so a separate key would protect
    nothing more.
    """
    try:
        private = load_pem_private_key(read_bounded(tls.key), password=None)
    except (ValueError, TypeError):
        raise KeyringError(
            "is not a private key", file=tls.key, fix=NO_CERTIFICATE, reason="certificate"
        ) from None
    secret = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return HKDF(SHA256(), 32, salt=None, info=b"secure_fl/1 letters in a folder").derive(secret)


HEARTBEAT_FILE = "beat"
MESSAGE_FILE = re.compile(r"\d{20}\.letter")
LEFTOVER = re.compile(r"\..*\.tmp|\d{20}\.letter")  # files of a writer that was killed
OTHER_USERS = 0o077


class Mailbox:
    """The folder of one direction: files that one end writes and the other end reads."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self._max = folder, max_bytes

    def prepare(self) -> None:
        """Make the folder, for its owner alone, unless it exists."""
        for folder in (self.folder.parent, self.folder):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise SettingsError(
                    f"the folder cannot be made ({error.strerror})",
                    fix="choose a folder of your own, on a disk that both machines can use",
                    file=str(folder),
                ) from None
            require_private(folder)

    def clear(self) -> None:
        """Remove the files of an earlier process of this end; nobody waits for them."""
        for name in os.listdir(self.folder):
            if LEFTOVER.fullmatch(name):
                with suppress(OSError):
                    self.remove(name)

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        """Write a file; the reader sees all of it or nothing."""
        require_private(self.folder)
        replace_whole(self.folder / name, *pieces, mode=0o600)

    def message_names(self) -> list[str]:
        """List the names of the messages, in order."""
        return sorted(name for name in os.listdir(self.folder) if MESSAGE_FILE.fullmatch(name))

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, or None if it does not exist."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self.folder / name, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WireError(f"a file cannot be opened ({error.strerror})", field="file") from None
        with os.fdopen(handle, "rb") as stream:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise WireError("a file is a link, or another user's", field="owner")
            if status.st_mode & OTHER_USERS:
                raise WireError("a file is open to other users", field="mode")
            if status.st_size > self._max:
                raise WireError("a file is larger than a message can be", field="size")
            return stream.read(self._max + 1)

    def has(self, name: str) -> bool:
        """Return true while a file is there."""
        return (self.folder / name).exists()

    def remove(self, name: str) -> None:
        """Remove a file, which acknowledges a message; raise OSError if the disk refuses."""
        (self.folder / name).unlink(missing_ok=True)


def message_name(number: int) -> str:
    """Return the name of a message's file; names sort as their numbers do."""
    return f"{number:020d}.letter"


def require_private(folder: Path) -> None:
    """Refuse a folder that other users could change."""
    try:
        status = folder.lstat()
    except OSError as error:
        raise SettingsError(
            f"the folder is missing ({error.strerror})", file=str(folder), fix="start again"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SettingsError(
            "is a link, or another user's", file=str(folder), fix="choose a folder of your own"
        )
    if status.st_mode & OTHER_USERS:
        raise SettingsError(
            "is open to others on this machine", file=str(folder), fix=f"chmod 700 {folder}"
        )
