"""Access to key files, cards and kits: bounded reads and atomic writes."""

from __future__ import annotations

from pathlib import Path

from secure_fl import files
from secure_fl.errors import KeyringError

OWN_FOLDER = "check that the folder is yours and has space left"
LIMIT = 16 << 20  # bytes; a signed roster of a thousand sites has about 9 MB


def read_bounded(path: Path) -> bytes:
    """Read a small file, or raise KeyringError."""
    try:
        return files.read_bounded(path, LIMIT)
    except files.TooLarge:
        raise KeyringError(
            f"is larger than the {LIMIT >> 20} MiB that such a file may have",
            file=path,
            reason="malformed",
        ) from None
    except OSError as error:
        raise KeyringError(
            f"cannot be read: {error.strerror or error}",
            file=path,
            fix="check the path",
            reason="unreadable",
        ) from None


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write atomically, or raise KeyringError."""
    try:
        files.replace_whole(path, data, mode=mode)
    except OSError as error:
        raise KeyringError(
            f"cannot be written: {error.strerror or error}",
            file=path,
            fix=OWN_FOLDER,
            reason="unwritable",
        ) from None
