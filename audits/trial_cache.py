"""Trials of an audit that was stopped: the next one of the same run goes on after them.

They are dropped when an audit ends, so that auditing again is a repetition and not a reading.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import msgspec

from secure_fl.audits.findings import AuditTrial

KEPT = "kept"


class KeptTrials:
    """What an audit of this run came to so far, step by step."""

    def __init__(self, run: Path, place: Path) -> None:
        state = sha256(version("sealed-federation").encode())
        for name in ("settings.toml", "result.json"):
            state.update((run / name).read_bytes())
        self._folder = place / KEPT / state.hexdigest()[:16]  # `place` may serve several runs

    def get(self, step: str) -> tuple[AuditTrial, ...] | None:
        """The trials of a step that was finished; what does not read is run again."""
        try:
            return msgspec.msgpack.decode(
                self._file(step).read_bytes(), type=tuple[AuditTrial, ...]
            )
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, step: str, trials: Sequence[AuditTrial]) -> None:
        """Keep a step's trials, if there is room and they can be told; no audit needs them."""
        with suppress(OSError, TypeError):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._file(step)
            new = file.with_suffix(".new")
            new.write_bytes(msgspec.msgpack.encode(tuple(trials)))
            new.replace(file)

    def drop(self) -> None:
        """The audit is over."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()

    def _file(self, step: str) -> Path:
        return self._folder / f"{re.sub(r'[^a-z0-9]+', '-', step.lower())}.msgpack"
