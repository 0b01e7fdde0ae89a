"""Files of records for tests of readers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path


def put(folder: Path, name: str, text: str | bytes) -> Path:
    """Write a file, compressed if its name ends in `.gz`."""
    path = folder / name
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return path


def jsonl(*rows: object) -> str:
    """Return rows as lines of JSON."""
    return "".join(json.dumps(row) + "\n" for row in rows)
