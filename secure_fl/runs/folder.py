"""A run's folder: settings, events, checkpoints of every party, models and the result.

RUN/settings.toml            what was asked for, resolved
RUN/events.jsonl             what happened, as it happened
RUN/result.json              the outcome (docs/result-schema.md)
RUN/model/                   the shared model, as a transformers folder
RUN/parties/NAME/            what belongs to one party: checkpoints, trainings by DP-SGD that may be
                             repeated, transcript, own model, evidence against who spoiled a sum,
                             what the coordinator signed of who is in each sum
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from secure_fl.errors import RunError, SecureFLError
from secure_fl.events import Crossing, Event, MembersGathered, RoundStarted, read_events
from secure_fl.files import write_again, write_whole
from secure_fl.party.rounds import Stateful
from secure_fl.runs import checkpoint, resuming
from secure_fl.runs.party_checkpoints import OPENED, PartyCheckpoints
from secure_fl.runs.saved_trainings import SavedTrainings

SETTINGS, EVENTS, RESULT = "settings.toml", "events.jsonl", "result.json"
SPENT = "spent.json"  # seconds and bytes of the sessions so far, for one that goes on
TRAININGS = "trainings"  # what DP-SGD came to in the last rounds: a repeated one sends it again
JOINING = ("data.party.",)  # who takes part may change: `config` looks at that


class RunFolder:
    """One run on disk, open for writing by one process."""

    def __init__(self, path: Path, lock: IO[str], *, fresh: bool = False) -> None:
        self.path = path
        self._fresh = fresh  # nothing was here before
        self._lock = lock
        self._files: dict[Path, IO[bytes]] = {}

    @classmethod
    def open(cls, path: Path, settings: str, *, resume: bool) -> RunFolder:
        """Make a new run, or go on with one that was asked for with the same settings.

        Parties may have joined or left: the settings that are kept then are the new ones. So are
        they where nothing came of the old ones, as after a plan that was refused.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # models, leftovers of updates
            lock = (path / ".lock").open("w")
        except OSError as error:
            raise RunError(
                f"the run's folder cannot be written ({error.strerror})",
                file=path,
                reason="unwritable",
            ) from error
        fresh = not (path / SETTINGS).exists()
        try:
            _claim(path, lock, settings, resume=resume)
        except RunError:
            lock.close()
            raise
        return cls(path, lock, fresh=fresh)

    def known(self) -> frozenset[str]:
        """Who has taken part in this run so far."""
        folder = self.path / "parties"
        return frozenset(p.name for p in folder.iterdir()) if folder.exists() else frozenset()

    def party(self, name: str, site: Stateful, opened: Path | None = None) -> PartyCheckpoints:
        """The checkpoints of one party; `opened`: see `PartyCheckpoints`."""
        return PartyCheckpoints(self.path / "parties" / name / "checkpoints", site, opened)

    def trainings(self, name: str) -> SavedTrainings:
        """What one party's DP-SGD came to, for rounds that are repeated."""
        return SavedTrainings(self.path / "parties" / name / TRAININGS)

    def record(self, event: Event) -> None:
        """Append an event; crossings go to the party's own transcript."""
        file = self.path / EVENTS
        if isinstance(event, Crossing):
            file = self.path / "parties" / event.party / "transcript.jsonl"
        try:
            if file not in self._files:
                file.parent.mkdir(parents=True, exist_ok=True)
                self._files[file] = file.open("ab")
            self._files[file].write(event.line())
            self._files[file].flush()
        except OSError as error:
            raise RunError(
                f"what happened cannot be written down ({error.strerror})",
                fix="free disk space, then run again with --resume",
                file=file,
                reason="unwritable",
            ) from error

    def spent(self) -> dict[str, Any]:
        """What earlier sessions of this run spent: seconds and bytes, as a result has them."""
        try:
            found = json.loads((self.path / SPENT).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note_spent(self, seconds: Mapping[str, Any], crossed: Mapping[str, Any]) -> None:
        """Write down what was spent so far, after a round."""
        with suppress(OSError):  # a full disk is told by what must not be lost
            text = json.dumps({"seconds": seconds, "bytes": crossed})
            write_again(self.path / SPENT, text)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the outcome."""
        write_json(self.path / RESULT, result)

    def withdraw(self, error: type[BaseException] | None, *_: object) -> None:
        """Leave nothing of a start that was refused, so that the next one is not in its way."""
        refused = error is not None and issubclass(error, SecureFLError)
        if refused and self._fresh and not _came_of_it(self.path):
            for name in (SETTINGS, EVENTS, SPENT, "report.html", ".lock"):
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.path / "parties", ignore_errors=True)
            with suppress(OSError):  # something else lies there
                self.path.rmdir()

    def drop_checkpoints(self) -> None:
        """Remove every party's rounds: the run is finished, and its models are written."""
        for kept in self.path.glob("parties/*/*/round-*"):  # of trainings, too
            checkpoint.remove(kept)

    def close(self) -> None:
        """Let others work in this folder."""
        for file in self._files.values():
            with suppress(OSError):  # what could not be written was told when it was tried
                file.close()
        self._files.clear()
        self._lock.close()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write whole or not at all."""
    write_whole(path, json.dumps(document, indent=2) + "\n")


def _claim(path: Path, lock: IO[str], settings: str, *, resume: bool) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fix = "wait until it has ended, or take another folder"
        raise RunError(
            "another process is working in this run", file=path, fix=fix, reason="in-use"
        ) from None
    found = path / SETTINGS
    if resume and found.exists() and not _begun(path):
        (path / EVENTS).unlink(missing_ok=True)  # of waiting, and of the refusal
        write_whole(found, settings)
    elif resume:
        _require_same(found, settings)
        if found.read_text() != settings:  # other parties
            write_whole(found, settings)
    elif found.exists():
        raise RunError(
            "there is a run in this folder already",
            fix="choose another folder, or add --resume to go on with it",
            file=path,
            reason="exists",
        )
    else:
        write_whole(found, settings)


def _begun(path: Path) -> bool:
    """Whether anything came of it: a party at work here, or at a coordinator a gathering."""
    if (path / "parties").exists() or (path / RESULT).exists():
        return True
    try:
        with (path / EVENTS).open("rb") as lines:
            written = list(lines)
        events = list(read_events(written))
        began = any(isinstance(event, MembersGathered | RoundStarted) for event in events)
        return began or len(events) < len(written)  # an unreadable line may belong to such a run
    except FileNotFoundError:
        return False
    except OSError:  # an unreadable file may belong to a run that began
        return True


def append_event(path: Path, event: Event) -> None:
    """Note what happened to a run that nobody works in now, if it has begun."""
    if (path / SETTINGS).exists():
        with suppress(OSError), (path / EVENTS).open("ab") as file:
            file.write(event.line())


def _came_of_it(path: Path) -> bool:
    """Whether a round was saved, a sum opened, or privacy spent."""
    sums = (file.stat().st_size for file in path.glob(f"parties/*/checkpoints/{OPENED}"))
    kept = (*path.glob("parties/*/checkpoints/round-*"), *path.glob("**/ledger*"))
    return bool(kept) or any(sums) or (path / RESULT).exists()


def finished(path: Path) -> bool:
    """Whether a run has ended and kept no checkpoint to go on from."""
    return (path / RESULT).exists() and not any(path.glob("parties/*/checkpoints/round-*"))


def _require_same(found: Path, settings: str) -> None:
    resuming.require_run(found)
    try:
        before = tomllib.loads(found.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"the settings that this run began with cannot be read ({error})",
            fix="start a new run in another folder",
            file=found,
            reason="unreadable",
        ) from error
    resuming.require_same(before, tomllib.loads(settings), JOINING, found.parent)
