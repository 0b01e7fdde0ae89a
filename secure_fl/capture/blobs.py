"""A journal on disk: bytes and an index of lines, appended during a run and mapped for reading."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from secure_fl.errors import RunError

Line = TypeVar("Line", bound=msgspec.Struct)
Span = tuple[int, int]  # offset and length
PRIVATE = 0o700


class Journal:
    """A writer of lines in NAME.jsonl, and of the bytes they point to in NAME.bin."""

    def __init__(self, stem: Path) -> None:
        try:
            stem.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            self._lines = _open(stem.with_suffix(".jsonl"))
            self._bytes = _open(stem.with_suffix(".bin"))
        except OSError as error:
            raise _unwritable(stem, error) from error
        self._stem, self._end = stem, self._bytes.tell()

    def put(self, data: bytes | memoryview) -> Span:
        """Append bytes; a later line records where they are."""
        try:
            self._bytes.write(data)
        except OSError as error:
            raise _unwritable(self._stem, error) from error
        start, self._end = self._end, self._end + len(data)
        return start, len(data)

    def line(self, line: msgspec.Struct) -> None:
        """Append a line, after its bytes."""
        try:
            self._bytes.flush()
            self._lines.write(msgspec.json.encode(line) + b"\n")
            self._lines.flush()
        except OSError as error:
            raise _unwritable(self._stem, error) from error

    def close(self) -> None:
        """Close both files."""
        self._lines.close()
        self._bytes.close()


class Blobs:
    """The bytes of a journal, mapped into memory."""

    def __init__(self, stem: Path) -> None:
        file = stem.with_suffix(".bin")
        size = file.stat().st_size if file.exists() else 0
        self._file, self._size = file, size
        self._map: mmap.mmap | bytes = b""
        if size:
            with file.open("rb") as handle:
                self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)

    def __getitem__(self, span: Span) -> bytes:
        start, size = span
        if not 0 <= start <= start + size <= self._size:
            what = f"{self._file.name} is shorter than its index"
            raise RunError(what, fix="record the run again", file=self._file, reason="malformed")
        return self._map[start : start + size]


def lines(stem: Path, kind: type[Line]) -> Iterator[Line]:
    """Read the lines of a journal, without a last one that a crash cut short."""
    file = stem.with_suffix(".jsonl")
    if not file.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    complete = file.read_bytes().split(b"\n")[:-1]
    for number, line in enumerate(complete, 1):
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            what = f"line {number} of a recorded view is not readable: {error}"
            raise RunError(
                what, fix="record the run again", file=file, reason="malformed"
            ) from None


def _open(file: Path) -> BinaryIO:
    """Open a file for this user alone: a view is as secret as the records."""
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _unwritable(stem: Path, error: OSError) -> RunError:
    return RunError(
        f"the view cannot be written ({error.strerror})",
        fix="free disk space and run again with --resume, or do not record the run",
        file=stem.parent,
        reason="unwritable",
    )
