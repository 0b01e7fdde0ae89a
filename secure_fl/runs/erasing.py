"""Removal of runs, and checks that none is in progress or contains a privacy ledger."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from secure_fl.errors import RunError
from secure_fl.files import lock_file

DAY = 86_400.0  # seconds


def require_erasable(folder: Path, *, checkpoints: bool = False) -> None:
    """Refuse a folder that is not a run, is in use, or contains a privacy ledger.

    With `checkpoints`, only folders of rounds are removed, so a ledger may be there.
    """
    if not (folder / "settings.toml").is_file():
        fix = "secure-fl runs FOLDER lists the runs of a folder"
        raise RunError("there is no run in this folder", fix=fix, file=folder, reason="missing")
    if in_use(folder):
        fix = "wait until it ends, or stop it"
        raise RunError("the run is in progress", fix=fix, file=folder, reason="in-use")
    if not checkpoints and any(folder.glob("**/ledger*.sqlite")):
        fix = "move the ledger first, or add --checkpoints"
        what = "the folder contains a privacy ledger, which must be kept"
        raise RunError(what, fix=fix, file=folder, reason="exists")


def parts(folder: Path, *, checkpoints: bool = False) -> list[Path]:
    """Return the paths to remove: the run, or only its checkpoints."""
    rounds = "parties/*/*/round-*"  # records of opened sums are kept
    return list(folder.glob(rounds)) if checkpoints else [folder]


def size(paths: Iterable[Path]) -> int:
    """Sum the bytes of these files, and of all files in these folders."""
    inside = (file for path in paths for file in (path, *path.rglob("*")))
    return sum(file.stat().st_size for file in inside if file.is_file())


def erase(paths: Iterable[Path]) -> None:
    """Remove these files and folders. Call `require_erasable` first: nothing is checked here."""
    for path in paths:
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            what = f"it could not be removed completely ({error.strerror})"
            fix = "check its owner and permissions, and try again"
            raise RunError(what, file=path, fix=fix, reason="unwritable") from error


def due(folder: Path, days: int) -> list[Path]:
    """Find the runs without an event for this number of days."""
    runs = sorted(run.parent for run in folder.glob("*/settings.toml"))
    return [run for run in runs if _age(run) >= days * DAY and not in_use(run)]


def in_use(folder: Path) -> bool:
    """Check if a process uses this run now."""
    try:
        with (folder / ".lock").open("r+") as lock:
            return not lock_file(lock)
    except FileNotFoundError:
        return False
    except OSError:  # the lock cannot be read, so another user may have it
        return True


def _age(folder: Path) -> float:
    """Return the seconds since the last event or the result."""
    files = (folder / name for name in ("settings.toml", "events.jsonl", "result.json"))
    return time.time() - max(file.stat().st_mtime for file in files if file.exists())
