"""A run's folder: settings, events, checkpoints of every party, models and the result.

RUN/settings.toml            all settings
RUN/events.jsonl             events in their order
RUN/result.json              the result (`runs.result_schema`)
RUN/run.mark                 a random text, in simulations with DP: the ledger's name of the run
RUN/model/                   the shared model, as a transformers folder
RUN/parties/NAME/            files of one party: checkpoints, saved trainings by DP-SGD, transcript,
                             own model, evidence against members that spoiled a sum, and the
                             coordinator's signed lists of each sum's members
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from secure_fl.errors import RunError, SecureFLError
from secure_fl.events import Crossing, Event, MembersGathered, RoundStarted, read_events
from secure_fl.files import OPENED, RUN_MARK, lock_file, remove_file, write_again, write_whole
from secure_fl.party.rounds import Stateful
from secure_fl.runs import resuming

if TYPE_CHECKING:  # they need torch, and a coordinator imports this module without it
    from secure_fl.runs.party_checkpoints import PartyCheckpoints, SavedTrainings

SETTINGS, EVENTS, RESULT = "settings.toml", "events.jsonl", "result.json"
SPENT = "spent.json"  # seconds and bytes of earlier sessions
TRAININGS = "trainings"  # results of DP-SGD in the last rounds: a repeated round sends the same
JOINING = ("data.party.",)  # members may change; `config` checks that


class RunFolder:
    """One run on disk, open for writing by one process."""

    def __init__(self, path: Path, lock: IO[str], *, fresh: bool = False) -> None:
        self.path = path
        self._fresh = fresh  # the folder was empty
        self._lock = lock
        self._files: dict[Path, IO[bytes]] = {}

    @classmethod
    def open(cls, path: Path, settings: str, *, resume: bool) -> RunFolder:
        """Create a run, or continue one with the same settings.

        If parties joined or left, the new settings replace the old ones. They also do if the old
        run did not begin, for example because its plan was refused.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # models, temporary files
            lock = (path / ".lock").open("w")
        except OSError as error:
            what = f"the run's folder cannot be written ({error.strerror})"
            raise RunError(what, file=path, reason="unwritable") from error
        fresh = not (path / SETTINGS).exists()
        try:
            _claim(path, lock, settings, resume=resume)
        except RunError:
            lock.close()
            raise
        return cls(path, lock, fresh=fresh)

    def known(self) -> frozenset[str]:
        """The parties of this run so far."""
        folder = self.path / "parties"
        return frozenset(p.name for p in folder.iterdir()) if folder.exists() else frozenset()

    def party(self, name: str, site: Stateful, opened: Path | None = None) -> PartyCheckpoints:
        """Return the checkpoints of one party; `opened`: see `PartyCheckpoints`."""
        from secure_fl.runs.party_checkpoints import PartyCheckpoints

        return PartyCheckpoints(self.path / "parties" / name / "checkpoints", site, opened)

    def trainings(self, name: str) -> SavedTrainings:
        """Return one party's saved trainings by DP-SGD, for repeated rounds."""
        from secure_fl.runs.party_checkpoints import SavedTrainings

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
            what = f"events cannot be written ({error.strerror})"
            fix = "free disk space, then run again with --resume"
            raise RunError(what, fix=fix, file=file, reason="unwritable") from error

    def spent(self) -> dict[str, Any]:
        """Seconds and bytes of earlier sessions of this run, as in a result."""
        try:
            found = json.loads((self.path / SPENT).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note_spent(self, seconds: Mapping[str, Any], crossed: Mapping[str, Any]) -> None:
        """Save the seconds and bytes so far, after a round."""
        with suppress(OSError):  # other writes report a full disk
            text = json.dumps({"seconds": seconds, "bytes": crossed})
            write_again(self.path / SPENT, text)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        write_json(self.path / RESULT, result)

    def withdraw(self, error: type[BaseException] | None, *_: object) -> None:
        """Remove the files of a refused start, which would prevent the next one."""
        refused = error is not None and issubclass(error, SecureFLError)
        if refused and self._fresh and not _came_of_it(self.path):
            for name in (SETTINGS, EVENTS, SPENT, RUN_MARK, "report.html", ".lock"):
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.path / "parties", ignore_errors=True)
            with suppress(OSError):  # it contains other files
                self.path.rmdir()

    def drop_checkpoints(self) -> None:
        """Remove all parties' checkpoints of a finished run."""
        for kept in self.path.glob("parties/*/*/round-*"):  # and their saved trainings
            remove_file(kept)

    def close(self) -> None:
        """Unlock this folder."""
        for file in self._files.values():
            with suppress(OSError):  # a failed write has been reported
                file.close()
        self._files.clear()
        self._lock.close()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON atomically."""
    write_whole(path, json.dumps(document, indent=2) + "\n")


def require_no_run(path: Path | None) -> None:
    """Refuse a folder with a run, for a command that continues none."""
    if path is not None and (path / SETTINGS).exists():
        what = "there are files of a run in this folder already"
        fix = f"name another folder with --out, or remove this one: secure-fl runs rm {path}"
        raise RunError(what, fix=fix, file=path, reason="exists")


def _claim(path: Path, lock: IO[str], settings: str, *, resume: bool) -> None:
    if not lock_file(lock):
        fix = "wait until it ends, or use another folder"
        raise RunError("another process is using this run", file=path, fix=fix, reason="in-use")
    found = path / SETTINGS
    if resume and found.exists() and not _begun(path):
        (path / EVENTS).unlink(missing_ok=True)  # events of waiting and of the refusal
        write_whole(found, settings)
    elif resume:
        _require_same(found, settings)
        if found.read_text() != settings:  # other parties
            write_whole(found, settings)
    elif found.exists():
        what = "there is a run in this folder already"
        fix = "name another folder (--out), or add --resume to continue it"
        raise RunError(what, fix=fix, file=path, reason="exists")
    else:
        write_whole(found, settings)


def _begun(path: Path) -> bool:
    """Check if the run began: a party has worked here, or a coordinator has gathered members."""
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
    """Append an event to a run that is not in use, if it has begun."""
    if (path / SETTINGS).exists():
        with suppress(OSError), (path / EVENTS).open("ab") as file:
            file.write(event.line())


def _came_of_it(path: Path) -> bool:
    """Check if a round was saved, a sum opened, or privacy spent."""
    sums = (file.stat().st_size for file in path.glob(f"parties/*/checkpoints/{OPENED}"))
    kept = (*path.glob("parties/*/checkpoints/round-*"), *path.glob("**/ledger*"))
    return bool(kept) or any(sums) or (path / RESULT).exists()


def finished(path: Path) -> bool:
    """Check if a run is finished and has no checkpoints."""
    return (path / RESULT).exists() and not any(path.glob("parties/*/checkpoints/round-*"))


def _require_same(found: Path, settings: str) -> None:
    resuming.require_run(found)
    try:
        before = tomllib.loads(found.read_text())
    except (OSError, ValueError) as error:
        what = f"this run's settings cannot be read ({error})"
        fix = "start a new run in another folder"
        raise RunError(what, fix=fix, file=found, reason="unreadable") from error
    resuming.require_same(before, tomllib.loads(settings), JOINING, found.parent)
