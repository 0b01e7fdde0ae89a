"""Committed inputs of each target, and the choice of those that are worth to be committed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo
from zlib import compress

from benchmarks.fuzzing.target import PRODUCT, FuzzTarget, attempt

FOLDER = Path(__file__).parent / "corpora"
MOST = 12_000  # bytes of one target's inputs, compressed

OVERHEAD = 100  # bytes of the archive for one input

Reached = frozenset[tuple[str, int]]


def committed(name: str) -> dict[str, bytes]:
    """Return the committed inputs of a target."""
    file = FOLDER / f"{name}.zip"
    if not file.exists():
        return {}
    with ZipFile(file) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist()}


def reached(target: FuzzTarget, data: bytes) -> Reached:
    """Return the lines of the product that an input reaches, and its outcome."""
    lines = set[tuple[str, int]]()

    def trace(frame: FrameType, event: str, of: Any) -> Any:
        name = frame.f_code.co_filename
        if f"/{PRODUCT}/" not in name:
            return None
        lines.add((name, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        outcome = attempt(target, data).outcome
    finally:
        sys.settrace(None)
    return frozenset(lines | {(outcome, 0)})


def minimised(target: FuzzTarget, inputs: Iterable[bytes]) -> list[bytes]:
    """Choose few small inputs that reach as many lines and outcomes as all do."""
    known, chosen = set[tuple[str, int]](), []
    for data in target.seeds().values():  # each process makes them, so they are not kept
        known |= reached(target, data)
    for data in sorted(set(inputs), key=lambda one: (len(one), one)):
        if (lines := reached(target, data)) - known:
            known |= lines
            chosen.append(data)
    return chosen


def commit(name: str, inputs: Iterable[bytes]) -> Path:
    """Write the inputs of a target, without those that make the file too large."""
    file = FOLDER / f"{name}.zip"
    FOLDER.mkdir(exist_ok=True)
    size = 0
    with ZipFile(file, "w") as archive:
        for number, data in enumerate(inputs):
            more = len(compress(data)) + OVERHEAD
            if size + more > MOST:
                continue
            size += more
            entry = ZipInfo(f"{number:03}", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = ZIP_DEFLATED
            archive.writestr(entry, data)
    return file
