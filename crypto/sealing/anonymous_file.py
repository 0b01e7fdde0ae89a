"""Anonymous files with a path, since sealapi saves and loads by path only.

On Linux this is a memfd. It has a path but no directory entry: nothing touches a disk, no other
user can open it, and the kernel clears it when it is closed. Other systems have none. There, a file
in a folder of this user alone replaces it. It is removed when it is closed, and one warning names
the folder. Simulations may use it; pilots need Linux (`require_memory_files`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Self

from secure_fl.errors import CryptoError

BINARY = getattr(os, "O_BINARY", 0)  # Windows


def in_memory() -> bool:
    """Return True if this system has anonymous files in memory."""
    return hasattr(os, "memfd_create")


def require_memory_files() -> None:
    """Refuse to handle a hospital's keys on a system where they could touch a disk."""
    if not in_memory():
        raise CryptoError(
            "this system has no memfd_create, so a hospital's keys would touch its disk",
            fix="run pilots on Linux 3.17 or later, or in a Linux container; simulations run here",
        )


class AnonymousFile:
    """An anonymous file with a path."""

    __slots__ = ("_file", "_folder", "path")

    def __enter__(self) -> Self:
        self._folder: Path | None = None
        if in_memory():
            self._file = os.memfd_create("secure_fl")
            self.path = f"/proc/self/fd/{self._file}"
        else:
            self._folder = _private_folder()
            self.path = str(self._folder / "sealed")
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def read(self) -> bytes:
        """Return the whole content."""
        os.lseek(self._file, 0, os.SEEK_SET)
        left, parts = os.fstat(self._file).st_size, []
        while left and (part := os.read(self._file, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def write(self, data: bytes) -> None:
        """Write at the beginning; longer content keeps its end."""
        os.lseek(self._file, 0, os.SEEK_SET)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]


def _private_folder() -> Path:
    """Make a folder that only this user can open."""
    folder = Path(tempfile.mkdtemp(prefix="secure-fl-"))
    _warn(folder.parent)
    return folder


@cache
def _warn(folder: Path) -> None:
    """Warn once in a process."""
    warnings.warn(
        "this system has no files in memory: while values are sealed, keys are in a file of this "
        f"user in {folder}, which is then removed. Use Linux for real records",
        RuntimeWarning,
        stacklevel=1,
    )
