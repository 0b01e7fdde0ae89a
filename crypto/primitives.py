"""Digests, commitments and key derivation that all rooms of `crypto` share."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_fl.errors import CryptoError

KEY_BYTES = 32


def digest_of(label: bytes, *parts: bytes) -> bytes:
    """Compute SHA-256 of a label and parts, each with its length: no two inputs collide."""
    h = hashlib.sha256()
    for part in (label, *parts):
        h.update(len(part).to_bytes(8, "big") + part)
    return h.digest()


def commit(secret: bytes, *about: object) -> bytes:
    """Compute a digest that binds the dealer of a secret or share, and reveals nothing about it."""
    return digest_of(b"secure-fl dealt", " ".join(map(str, about)).encode(), secret)


def keyed_digest(key: bytes, data: bytes, context: bytes) -> bytes:
    """Compute HMAC-SHA256 of data in a context: without the key, few values cannot be guessed."""
    return hmac.digest(key, context + b"\0" + data, "sha256")


def spoken(digest: bytes) -> str:
    """Format a digest as eight groups of five digits (132 bits), to read over the telephone."""
    number = int.from_bytes(digest_of(b"secure-fl spoken", digest), "big") % 10**40
    digits = f"{number:040d}"
    return " ".join(digits[i : i + 5] for i in range(0, 40, 5))


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Compute an X25519 secret; a low-order point (all-zero secret) is refused."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise CryptoError(
            "the peer's agreement key is not a usable X25519 point",
            fix="ask that site for its card again and compare fingerprints",
        ) from None


def derive(secret: bytes, label: bytes, *parts: bytes, length: int = 32) -> bytes:
    """Derive a key by HKDF-SHA256 with the label and parts as info, lengths included."""
    info = digest_of(label, *parts)
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)
