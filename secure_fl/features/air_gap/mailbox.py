"""One direction of the folder: files that appear whole, and that only their owner can have written.

A file is written beside, synced and renamed, so a half-written one has no letter's name. Who took a
letter removes it. Nothing is believed of a file before it was opened: no link, no pipe, nobody
else's, not larger than a letter can be.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from secure_fl.errors import SettingsError, WireError
from secure_fl.files import replace_whole

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
