"""Files that a crash leaves whole, lines that are on the disk at once, and reading with a limit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from secure_fl.errors import RunError

RUN_MARK = "run.mark"  # in a simulated run's folder; a new run in a removed one's place differs
OPENED = "opened.jsonl"  # the parties of each opened sum; it is kept, because any round may repeat


def sync(path: Path) -> None:
    """Have a file, or a folder's list of entries, on the disk before anything else happens."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders, and writes their entries itself
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_file(file: IO[str]) -> bool:
    """Lock a file until it is closed; return False if another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class TooLarge(OSError):  # noqa: N818 - it names a state
    """A file is larger than one of its kind may be."""


def read_bounded(file: Path, limit: int) -> bytes:
    """Read a file of at most so many bytes; whoever calls says in an error what it should be."""
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"larger than {limit} bytes")
    return data


def replace_whole(file: Path, *pieces: bytes, mode: int = 0o644) -> None:
    """Write all or nothing: a temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        sync(file.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_file(file: Path) -> None:
    """Remove a file, durably: it does not come back after a loss of power."""
    file.unlink()
    sync(file.parent)


def write_whole(file: Path, text: str) -> None:
    """Write a text of a run, all or nothing, and its folder where there is none."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(file, text.encode())
    except OSError as error:
        raise RunError(
            f"the file cannot be written ({error.strerror})", file=file, reason="unwritable"
        ) from error


def write_again(file: Path, text: str) -> None:
    """Write what can be made anew: whole or not at all, but without waiting for the disk."""
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


class Lines:
    """A file of JSON lines that only grows; a crash cuts off the last at most."""

    def __init__(self, file: Path, what: str) -> None:
        """`what` the lines say, for the error of a full disk."""
        self._file, self._what = file, what

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self._whole().splitlines())

    def append(self, line: dict[str, Any]) -> None:
        """Write one more, durably, or raise."""
        try:
            self._make()
            with self._file.open("ab") as handle:
                handle.truncate(len(self._whole()))
                handle.write(json.dumps(line).encode() + b"\n")
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            what = f"{self._what} cannot be written down ({error.strerror})"
            fix = "free disk space, then resume; nothing was revealed"
            raise RunError(what, fix=fix, file=self._file, reason="unwritable") from error

    def _make(self) -> None:
        """An entry in a folder is lost with the power unless the folder, too, is on the disk."""
        if self._file.exists():
            return
        missing = [p for p in self._file.parents if not p.exists()]
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file.touch(mode=0o600)
        for folder in (self._file.parent, *(made.parent for made in missing)):
            sync(folder)

    def _whole(self) -> bytes:
        """All but a last line that was cut short: nothing was done before it was written."""
        data = self._file.read_bytes() if self._file.exists() else b""
        return data[: data.rfind(b"\n") + 1]
