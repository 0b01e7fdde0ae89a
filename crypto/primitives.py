"""The few derivations that identities, rosters, key files and the ledger share."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_fl.errors import CryptoError

KEY_BYTES = 32


def digest_of(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of a label and parts, each with its length, so that no two inputs run together."""
    h = hashlib.sha256()
    for part in (label, *parts):
        h.update(len(part).to_bytes(8, "big") + part)
    return h.digest()


def commit(secret: bytes, *about: object) -> bytes:
    """A digest that binds who deals a secret, or a share of it, and tells nothing about it."""
    return digest_of(b"secure-fl dealt", " ".join(map(str, about)).encode(), secret)


def keyed_digest(key: bytes, data: bytes, context: bytes) -> bytes:
    """HMAC-SHA256 of data in a context: who lacks the key cannot guess what few values it is of."""
    return hmac.digest(key, context + b"\0" + data, "sha256")


def spoken(digest: bytes) -> str:
    """Say a digest as eight groups of five digits (132 bits): short enough for the telephone."""
    number = int.from_bytes(digest_of(b"secure-fl spoken", digest), "big") % 10**40
    digits = f"{number:040d}"
    return " ".join(digits[i : i + 5] for i in range(0, 40, 5))


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """X25519; a low-order point (all-zero secret) is refused."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise CryptoError(
            "the peer's agreement key is not a usable X25519 point",
            fix="ask that site for its card again and compare fingerprints",
        ) from None


def derive(secret: bytes, label: bytes, *parts: bytes, length: int = 32) -> bytes:
    """HKDF-SHA256 with the label and parts as info, lengths included."""
    info = digest_of(label, *parts)
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)
