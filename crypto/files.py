"""Small files read with a limit and written all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

from secure_fl.errors import KeyringError
from secure_fl.files import sync

OWN_FOLDER = "check that the folder is yours and has space left"
LIMIT = 4 << 20  # bytes; a roster of a thousand sites has about 0.4 MB


def read_bounded(path: Path) -> bytes:
    """Read a small file, or raise KeyringError."""
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise KeyringError(
            f"cannot be read: {error.strerror or error}", file=path, fix="check the path"
        ) from None
    if len(data) > LIMIT:
        raise KeyringError(
            f"is larger than the {LIMIT >> 20} MiB that such a file may have", file=path
        )
    return data


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write all or nothing: a temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise KeyringError(
            f"cannot be written: {error.strerror or error}", file=path, fix=OWN_FOLDER
        ) from None
