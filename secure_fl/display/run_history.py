"""Reader of a run's folder, finished or in progress: curves, bytes, seconds, presence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from secure_fl.display.charts import Point
from secure_fl.display.figures import confusion_rows, of_round, protection
from secure_fl.errors import RunError
from secure_fl.events import (
    Convicted,
    Crossing,
    Event,
    MembersExcluded,
    MembershipChanged,
    MembersJoined,
    MembersLost,
    MembersReturned,
    RoundSaved,
    RoundStarted,
    Scored,
    TrainingProgress,
    metric_name,
    read_events,
)

RESULT, SETTINGS = "result.json", "settings.toml"
EVENTS, TRANSCRIPT = "events.jsonl", "transcript.jsonl"
LEAD = "secure-fl/lead/1"
SPLITS = ("dev", "test")
ROW = "of "  # before a class in the names of counts
FEWEST_SHARED = 3  # hospitals in a shared figure: of two, each could compute the other's


@dataclass(slots=True)
class RunHistory:
    """A run, as read from its folder."""

    name: str
    settings: Mapping[str, Any]
    text: str  # of the settings
    document: Mapping[str, Any]  # empty while it runs
    parties: list[str] = field(default_factory=list)
    round: int = 0  # the newest one
    pooled: dict[str, list[Point]] = field(default_factory=dict)  # "dev", "test", "dev loss"
    own: dict[str, dict[str, list[Point]]] = field(default_factory=dict)  # the same, by party
    train_loss: dict[str, dict[int, float]] = field(default_factory=dict)  # by party and round
    up: dict[int, int] = field(default_factory=dict)  # bytes by round, over all parties
    down: dict[int, int] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)  # when each round did
    here: dict[int, int] = field(default_factory=dict)  # members in each round
    notes: list[str] = field(default_factory=list)  # lost, returned and joined members
    convicted: list[str] = field(default_factory=list)  # members that spoiled a sum
    scored_class: str = ""  # of precision, recall and F1, by its events
    fewest: int = 1  # hospitals in a mean; means over fewer are omitted

    @property
    def metric(self) -> str:
        """The main metric's name."""
        known: str = self.document.get("main_metric", "")
        return known or next(iter(sorted(self._names & set(MAIN))), "accuracy")

    @property
    def metric_name(self) -> str:
        """The main metric's name, with the class of an F1."""
        return metric_name(self.metric, self.document.get("scored_class") or self.scored_class)

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return str(self.settings.get("algorithm", {}).get("name", "?"))

    @property
    def protection(self) -> str:
        """The protection of its sums."""
        mode = self.settings.get("protection", {}).get("mode", "he+secagg")
        return protection(self.algorithm, str(mode))

    @property
    def rounds(self) -> int:
        """The planned number of rounds."""
        asked = self.document.get("rounds") or self.settings.get("algorithm", {}).get("rounds")
        return int(asked or 0)

    @property
    def status(self) -> str:
        """The state: finished, or the current round."""
        return "finished" if self.document else f"round {self.round} of {self.rounds}"

    @property
    def seconds(self) -> list[Point]:
        """Seconds of each round whose start and end are known."""
        spent = {n: self.began[n + 1] - at for n, at in self.began.items() if n + 1 in self.began}
        return [(float(n), took) for n, took in sorted(spent.items()) if took >= 0]

    @property
    def _names(self) -> set[str]:
        return {key.split(" ", 1)[1] for key in self.pooled if " " in key}

    def curve(self, split: str, name: str = "", party: str = "") -> list[Point]:
        """Return a metric over rounds: pooled, or of one hospital."""
        found = self.own.get(party, {}) if party else self.pooled
        return found.get(f"{split} {name or self.metric}", [])

    def mean(self, split: str, name: str = "") -> list[Point]:
        """Return the hospitals' mean of a metric over rounds."""
        by_round: dict[float, list[float]] = {}
        for party in self.own:
            for at, value in self.curve(split, name, party):
                by_round.setdefault(at, []).append(value)
        return self._means(by_round)

    def losses(self) -> list[Point]:
        """Return the hospitals' mean training loss over rounds."""
        by_round: dict[float, list[float]] = {}
        for rounds in self.train_loss.values():
            for number, loss in rounds.items():
                by_round.setdefault(float(number), []).append(loss)
        return self._means(by_round)

    def _means(self, by_round: Mapping[float, Sequence[float]]) -> list[Point]:
        enough = {at: found for at, found in by_round.items() if len(found) >= self.fewest}
        return [(at, sum(found) / len(found)) for at, found in sorted(enough.items())]


MAIN = ("accuracy", "f1", "pearson", "auc", "macro_f1")


def read_run_history(folder: Path) -> RunHistory:
    """Read a run's folder; incomplete last lines of files are skipped."""
    if not (folder / SETTINGS).is_file():
        fix = "secure-fl runs FOLDER lists the runs of a folder"
        raise RunError("there is no run in this folder", fix=fix, file=folder, reason="missing")
    text = (folder / SETTINGS).read_text(encoding="utf-8")
    history = RunHistory(folder.name, _toml(text), text, _of_lead(_json(folder / RESULT)))
    for event in events_of(folder / EVENTS):
        _follow(history, event)
    for file in sorted(folder.glob(f"parties/*/{TRANSCRIPT}")):
        for event in events_of(file):
            if isinstance(event, Crossing):
                _cross(history, event)
    found = list(history.document.get("parties", ())) or sorted(history.own | history.train_loss)
    history.parties = [str(name) for name in found]
    return history


def shareable(history: RunHistory) -> RunHistory:
    """Copy a history without its figures of fewer than `FEWEST_SHARED` hospitals.

    The folder of a hospital in a pilot has its own figures only, and pooled scores.
    """
    document = dict(history.document)
    if metrics := document.get("metrics"):
        document["metrics"] = {which: _with_shared_means(one) for which, one in metrics.items()}
    history = replace(history, document=document, fewest=FEWEST_SHARED)
    if len(history.parties) >= FEWEST_SHARED:
        return history
    document |= {"bytes": {}, "seconds": {}}
    for account in ("privacy", "noise"):
        if found := document.get(account):
            document[account] = {"withheld": True} | {k: found[k] for k in ("delta", "unit")}
    return replace(history, document=document, up={}, down={})


def _with_shared_means(found: Mapping[str, Any]) -> dict[str, Any]:
    own = found.get("party", {}).values()

    def is_shared(split: str, name: str) -> bool:
        return sum(name in scores.get(split, {}) for scores in own) >= FEWEST_SHARED

    means = {
        split: {name: value for name, value in scores.items() if is_shared(split, name)}
        for split, scores in found.get("mean", {}).items()
    }
    return dict(found) | {"mean": means}


def events_of(file: Path) -> list[Event]:
    """Read an events file; a missing file has no events."""
    try:
        with file.open("rb") as lines:
            return list(read_events(lines))
    except OSError:
        return []


def _follow(history: RunHistory, event: Event) -> None:
    match event:
        case RoundStarted(round=number, at=at):
            if at is not None:
                earlier = {n: began for n, began in history.began.items() if n < number}
                history.began = earlier | {number: at}  # rounds from this one are repeated
            _reached(history, event)
        case RoundSaved(round=number, at=at):
            if at is not None:
                history.began.setdefault(number + 1, at)
            _reached(history, event)
        case TrainingProgress(loss=loss):
            history.train_loss.setdefault(event.party, {})[event.round] = loss
        case Scored(model=""):
            _measured(history, event)
        case MembersLost() | MembersReturned() | MembersJoined() | MembersExcluded():
            kind = str(type(event).__struct_config__.tag)
            history.notes.append(f"round {max(history.round, 1)}: {kind}: {event.names}")
        case MembershipChanged(left=left) if left:
            history.notes.append(f"round {max(history.round, 1)}: left: {', '.join(left)}")
        case Convicted(parties=names):
            history.convicted += [name for name in names if name not in history.convicted]


def _reached(history: RunHistory, event: RoundStarted | RoundSaved) -> None:
    rounds = history.rounds or event.round
    history.round = max(history.round, min(event.round, rounds))
    if event.round <= rounds:
        history.here[event.round] = len(event.members)


def _measured(history: RunHistory, event: Scored) -> None:
    history.scored_class = event.scored_class
    scores = history.pooled if event.pooled else history.own.setdefault(event.party, {})
    for name, value in event.numbers().items():
        points = scores.setdefault(f"{event.split} {name}", [])
        at = float(event.round)
        while points and points[-1][0] >= at:  # the round is repeated
            points.pop()
        points.append((at, value))


def _cross(history: RunHistory, crossing: Crossing) -> None:
    sums = history.up if crossing.direction == "out" else history.down
    number = min(max(crossing.round, 1), history.rounds or crossing.round)
    sums[number] = sums.get(number, 0) + crossing.size


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_lead(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a coordinator's document to the fields of a run's result."""
    if document.get("schema") != LEAD:
        return document
    seconds = document["seconds"]
    protection = {
        "mode": document["protection"],
        "statement": "This is the coordinator's record: members, sizes and times. The "
        "coordinator learned nothing about models or records.",
    }
    return document | {
        "parties": sorted(document["bytes"]),
        "protection": protection,
        "seconds": {"total": seconds.get("run", 0.0), "party": {}, "coordinator": seconds},
    }


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError:
        return {}


def confusion(document: Mapping[str, Any]) -> tuple[list[str], list[list[int]]] | None:
    """Return the confusion matrix over all hospitals' test records, last round."""
    rows = confusion_rows(document, _counts(document))
    return (list(rows), [[round(cell) for cell in row] for row in rows.values()]) if rows else None


def by_class(document: Mapping[str, Any]) -> dict[str, Sequence[float]] | None:
    """Return [hits, false alarms, misses] per class or type over all test records."""
    found = {n.removeprefix(ROW): r for n, r in _counts(document).items() if n.startswith(ROW)}
    if (square := confusion(document)) is not None:
        names, cells = square
        for k, name in enumerate(names):
            hits, row, column = cells[k][k], sum(cells[k]), sum(line[k] for line in cells)
            found[name] = [hits, column - hits, row - hits]
    return found or None


def _counts(document: Mapping[str, Any]) -> Mapping[str, Any]:
    counts: Mapping[str, Any] = of_round(document, "delivered").get("counts", {}).get("test", {})
    return counts
