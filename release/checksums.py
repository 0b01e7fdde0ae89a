"""Digests of everything in a release, with the signature of its maker.

A hospital checks them before any of our programs runs there, with its own tools: `sha256sum
--check`, and `openssl` for the Ed25519 signature.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from release.wheelhouse import digest
from secure_fl.errors import KeyringError

SUMS, SIGNATURE, PUBLIC = "SHA256SUMS", "SHA256SUMS.sig", "release.pub"
OWN = (SUMS, SIGNATURE, PUBLIC, "provenance.intoto.json")


def write(folder: Path) -> Path:
    """List the digest of every file of a release, as `sha256sum` does."""
    rows = (f"{digest(f)}  {f.relative_to(folder).as_posix()}\n" for f in files_in(folder))
    (folder / SUMS).write_text("".join(rows))
    return folder / SUMS


def files_in(folder: Path) -> list[Path]:
    """Return every file of a release, except the list and its signatures."""
    own = {folder / name for name in OWN}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in own)


def sign(folder: Path, pem: bytes, passphrase: bytes | None = None) -> bytes:
    """Sign the list with an Ed25519 key; return the public key as PEM."""
    key = load_key(pem, passphrase)
    (folder / SIGNATURE).write_bytes(key.sign((folder / SUMS).read_bytes()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / PUBLIC).write_bytes(public)
    return public


def load_key(pem: bytes, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Load the key that signs releases."""
    try:
        key = load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError) as error:
        raise KeyringError(
            f"the release key cannot be read: {error}",
            fix="make one with `openssl genpkey -algorithm ed25519 -aes256 -out release.pem`",
            reason="malformed",
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        fix = "openssl genpkey -algorithm ed25519 -out release.pem"
        raise KeyringError("the release key is not of Ed25519", fix=fix, reason="malformed")
    return key
