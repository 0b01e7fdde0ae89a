"""Equal bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from secure_fl.federation.result import Result
from secure_fl.learning.anatomy import trainable
from secure_fl.runs import checkpoint


def weights(result: Result, name: str = "model") -> dict[str, Any]:
    """A copy of what a model of a run learned."""
    return {n: w.detach().clone() for n, w in trainable(result.models[name]).items()}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether these weights are the same."""
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def equal_nested(one: Any, other: Any) -> bool:
    """Whether these are the same, in whatever it is nested."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_nested(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_nested, one, other))
    if hasattr(one, "dtype"):
        return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    return bool(one == other)


# --- what a party's checkpoint of a run in one process holds ------------------------------------


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
