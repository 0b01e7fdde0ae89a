"""A run of three hospitals that was stopped, and a fourth that may join it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from secure_fl import FedAvg, Silo
from secure_fl.algorithms.base import Algorithm
from secure_fl.runs import checkpoint
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import checkpoint_of
from tests.support.killing import Killed, Moment, after, kill_when

FOUR = silos(4)
THREE = FOUR[:3]
LATE = FOUR[3].name


def stopped(
    folder: Path,
    moment: Moment,
    who: Sequence[Silo] = THREE,
    mode: Any = "none",
    algorithm: Algorithm | None = None,
    **options: Any,
) -> None:
    """A run that ended at this moment."""
    options |= {"folder": folder, "silos": list(who), "listener": kill_when(moment)}
    with pytest.raises(Killed):
        small(algorithm or FedAvg(rounds=4), mode, **options).run()


def stopped_after_3(
    folder: Path,
    who: Sequence[Silo] = THREE,
    mode: Any = "none",
    algorithm: Algorithm | None = None,
) -> None:
    """Copy a run that ended after its third round; equal runs are trained once in a process."""
    made = _after_3(tuple(who), mode, algorithm or FedAvg(rounds=4))
    shutil.copytree(made, folder, dirs_exist_ok=True)


@cache
def _after_3(who: tuple[Silo, ...], mode: Any, algorithm: Algorithm) -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    stopped(folder, after(3), who, mode, algorithm)
    return folder


def tampered(folder: Path, name: str, round: int = 3) -> None:
    """One weight of a checkpoint is another."""
    place = checkpoint_of(folder, name, round)
    state = checkpoint.load(place)
    weight = next(iter(state["keep"]["model"].values()))
    weight.view(-1)[0] += 1
    checkpoint.save(place, state)
