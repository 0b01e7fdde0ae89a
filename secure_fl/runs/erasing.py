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
    """Return the folders to remove: the run, or only its checkpoints."""
    rounds = "parties/*/*/round-*"  # records of opened sums are kept
    return list(folder.glob(rounds)) if checkpoints else [folder]


def size(folders: Iterable[Path]) -> int:
    """Sum the bytes of all files in these folders."""
    return sum(p.stat().st_size for folder in folders for p in folder.rglob("*") if p.is_file())


def erase(folders: Iterable[Path]) -> None:
    """Remove these folders. Call `require_erasable` first: nothing is checked here."""
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            what = f"the folder could not be removed completely ({error.strerror})"
            fix = "check its owner and permissions, and try again"
            raise RunError(what, file=folder, fix=fix, reason="unwritable") from error


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
