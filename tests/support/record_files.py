"""Files of records for tests of readers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from secure_fl.data.loaders import load
from secure_fl.errors import DataError
from secure_fl.settings import Kind

SECRET, WORD = "Mrs Example coughs", "Exam!ple"  # texts of records, which no error may quote


def put(folder: Path, name: str, text: str | bytes) -> Path:
    """Write a file, compressed if its name ends in `.gz`."""
    path = folder / name
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return path


def jsonl(*rows: object) -> str:
    """Return rows as lines of JSON."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def fails(source: Path | str, kind: Kind, *, fix: bool = True, **how: Any) -> DataError:
    """Load records that cannot be read; neither the error nor its traceback quotes a record."""
    with pytest.raises(DataError) as caught:
        load(source, kind, **how)
    assert SECRET not in str(caught.value) and WORD not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert caught.value.fix or not fix
    return caught.value
