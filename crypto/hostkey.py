"""The host's public key, signed by the host under one roster: a swapped key does not read."""

from __future__ import annotations

import msgspec

from secure_fl.crypto.identity import Identity
from secure_fl.crypto.primitives import digest_of
from secure_fl.crypto.roster import Roster
from secure_fl.errors import CryptoError, KeyringError

FORMAT = 1


class _Signed(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    format: int
    public: bytes
    signature: bytes


def sign_host_key(host: Identity, roster: Roster, public: bytes) -> bytes:
    """Sign the public half (opaque bytes) as this roster's host."""
    roster.verify(me=host.public)
    if roster.host is None or roster.host.name != host.name:
        raise KeyringError(
            f"{host.name!r} is not the host of this roster", fix="only the host makes this pair"
        )
    return msgspec.msgpack.encode(_Signed(FORMAT, public, host.sign(_digest(roster, public))))


def read_host_key(roster: Roster, data: bytes) -> bytes:
    """Return the public half if this roster's host signed it, or raise KeyringError."""
    try:
        read = msgspec.msgpack.decode(data, type=_Signed)
    except msgspec.MsgspecError:
        raise KeyringError("is not a host's public key", fix="ask the host for it again") from None
    if read.format != FORMAT or roster.host is None:
        raise KeyringError("a host's key of an unknown format, or a roster without a host")
    try:
        roster.host.identity.verify(_digest(roster, read.public), read.signature)
    except CryptoError:
        raise KeyringError(
            f"the key is not signed by the host {roster.host.name!r} for this roster",
            fix="ask the host for it again; do not seal anything to this key",
        ) from None
    return read.public


def _digest(roster: Roster, public: bytes) -> bytes:
    return digest_of(b"secure-fl host key", roster.digest(), public)
