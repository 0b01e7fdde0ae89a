"""What a party's DP-SGD came to in its last rounds, for a round that is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secure_fl.runs import checkpoint

KEPT = 2  # rounds: a party repeats its newest finished one at the most, unless its operator agrees


class SavedTrainings:
    """One party's trainings on disk, each a folder as of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, round: int, key: str) -> Mapping[str, Any] | None:
        """What this training came to before, if it did."""
        checkpoint.mend(self._folder)
        place = self._path(round, key)
        return checkpoint.load(place) if place.exists() else None

    def keep(self, round: int, key: str, state: Mapping[str, Any]) -> None:
        """Write it down, durably, and let go of rounds that nobody repeats."""
        checkpoint.save(self._path(round, key), state)
        for old in self._folder.glob("round-*"):
            if int(old.name.split("-")[1]) <= round - KEPT:
                checkpoint.remove(old)

    def _path(self, round: int, key: str) -> Path:
        return self._folder / f"round-{round:05d}-{key}"
