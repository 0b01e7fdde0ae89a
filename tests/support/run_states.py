"""What a party's checkpoint of a run in one process holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from secure_fl.runs import checkpoint


def checkpoint_of(folder: Path, party: str, round: int) -> Path:
    return folder / "parties" / party / "checkpoints" / f"round-{round:05d}"


def kept_state(folder: Path, party: str, round: int) -> dict[str, Any]:
    """Everything that an algorithm asked to keep."""
    state: dict[str, Any] = checkpoint.load(checkpoint_of(folder, party, round))["keep"]
    return state


def kept_model(folder: Path, party: str, round: int) -> dict[str, Any]:
    """The weights of its model."""
    model: dict[str, Any] = kept_state(folder, party, round)["model"]
    return model
