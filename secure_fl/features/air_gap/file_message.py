"""Messages as files, each authenticated by the key of this site's kit.

Others may reach a folder on a cluster. So a letter says from which process to which one it is, and
its number; a file that was changed, put back or meant for another is not taken for a letter. The
frames in it are sealed and signed as everywhere: this adds nothing to who can read them.
"""

from __future__ import annotations

import hmac
import struct
from enum import IntEnum
from hashlib import sha256
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
from secure_fl.errors import KeyringError, WireError

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
