"""The finished cells of a table on disk: one line each, written as soon as a cell is finished.

A line is appended by one write and synced, so an interruption costs the cells under way and
nothing else; a line cut short by a crash is passed over. Of equal keys the last one counts. Lines
are reduced to what tables read (`slim`), since the folders of `docs/results` are such work folders.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.evidence.slim import slim
from secure_fl.errors import RunError
from secure_fl.files import replace_whole

FILE = "cells.jsonl"

Plain = Mapping[str, Any]


class Kept:
    """What a work folder holds."""

    def __init__(self, work: Path) -> None:
        self.file = work / FILE
        try:
            work.mkdir(parents=True, exist_ok=True)
            self.cells = read(self.file)
        except OSError as error:
            raise _unusable(self.file, error) from error

    def add(self, key: str, outcome: Plain) -> None:
        """Append a finished cell."""
        self.cells[key] = slim(outcome)
        try:
            with _locked(self.file) as handle:
                line = _end_of_line(handle) + _line(key, self.cells[key])
                os.write(handle, line.encode())
                os.fsync(handle)
        except OSError as error:
            raise _unusable(self.file, error) from error

    def tidy(self, about: Mapping[str, Plain]) -> None:
        """Bring lines of earlier versions up to date: reduced, and with what is known of a cell.

        The new file takes the old one's place at once, so a crash leaves one of them. Whoever adds
        to it meanwhile waits, and then adds to the new one.
        """
        try:
            if not self.file.exists():
                return
            with _locked(self.file):
                self.cells = {
                    key: slim({**about.get(key, {}), **outcome})
                    for key, outcome in read(self.file).items()
                }
                text = "".join(_line(key, outcome) for key, outcome in self.cells.items())
                if self.file.read_bytes() != text.encode():
                    replace_whole(self.file, text.encode())
        except OSError as error:
            raise _unusable(self.file, error) from error


def read(file: Path) -> dict[str, dict[str, Any]]:
    """The finished cells of a file, by their keys; none if there is no file."""
    content = file.read_bytes() if file.exists() else b""
    cells: dict[str, dict[str, Any]] = {}
    for line in content.splitlines():
        try:
            entry = json.loads(line)
            cells[entry["key"]] = entry["outcome"]
        except (ValueError, KeyError, TypeError):
            continue
    return cells


def _line(key: str, outcome: Plain) -> str:
    return json.dumps({"key": key, "outcome": outcome}, separators=(",", ":")) + "\n"


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """The file, for one process at a time; opened again if it was replaced while we waited."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), file.stat()):
                yield handle
                return
        finally:
            os.close(handle)


def _end_of_line(handle: int) -> str:
    """A line break, if the last line was cut short."""
    size = os.fstat(handle).st_size
    return "" if size == 0 or os.pread(handle, 1, size - 1) == b"\n" else "\n"


def _unusable(file: Path, error: OSError) -> RunError:
    what = f"finished cells cannot be kept here ({error.strerror})"
    return RunError(
        what, fix="give a folder that may be written to with --work", file=file, reason="malformed"
    )
