"""Files of JSON lines that only grow: an interruption loses at most the record under way."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secure_fl.errors import RunError


def read(file: Path) -> list[dict[str, Any]]:
    """Read all complete records of a file; a line that a crash cut short is skipped."""
    records = []
    for line in (file.read_bytes() if file.exists() else b"").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def append(file: Path, record: Mapping[str, Any]) -> None:
    """Append and sync one record; processes that append to the same file wait for each other."""
    line = json.dumps(record, separators=(",", ":")) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = "\n" + line  # the last line was cut short
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        what = f"finished runs cannot be saved here ({error.strerror})"
        raise RunError(
            what, fix="choose a folder that you may write to", file=file, reason="malformed"
        ) from error
