"""Progress of a pilot, from the events in its folder, for `secure-fl status`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secure_fl import events
from secure_fl.config import toml
from secure_fl.display.run_history import (  # `runs` would load torch
    EVENTS,
    RESULT,
    SETTINGS,
    events_of,
)
from secure_fl.errors import RunError

NOTES = 8  # last events that are shown


@dataclass(slots=True)
class _Progress:
    """The state of a run after the events read so far."""

    round: int = 0
    state: str = "gathering"
    waits: dict[str, Any] | None = None
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    approvals: tuple[dict[str, str], ...] = ()
    convicted: list[str] = field(default_factory=list)

    def member(self, name: str) -> dict[str, Any]:
        """Return the facts about a member, for changes."""
        return self.members.setdefault(name, {"up": None, "down": None, "state": "here"})

    def mark(self, names: Iterable[str], state: str) -> None:
        """Set the state of these members."""
        for name in names:
            self.member(name)["state"] = state

    def follow(self, event: events.Event) -> None:
        """Take one event into account."""
        self._follow_run(event)
        self._follow_members(event)
        if type(event) in NOTED and (text := event.sentence()):
            self.notes.append(text)

    def _follow_run(self, event: events.Event) -> None:
        match event:
            case events.MembersGathered():
                self.state, self.waits = "running", None
            case events.RoundStarted(round=number) | events.RoundSaved(round=number):
                self.round = max(self.round, number)
                self.state, self.waits = "running", None
            case events.MembersLost():
                self.state = "running"
            case events.PlanApproved(by=by):
                self.approvals = by
            case events.Waiting(parties=names, at=at, until=until):
                self.state = "waiting"
                self.waits = {"for": list(names), "since": at, "until": until}
            case events.Stragglers(parties=names, at=at, seconds=seconds):
                self.waits = {"for": list(names), "since": (at or 0) - seconds, "until": None}
            case events.StragglersAnswered(parties=names) if self.state != "waiting" and self.waits:
                late = [name for name in self.waits["for"] if name not in names]
                self.waits = {**self.waits, "for": late} if late else None
            case events.Resumed(after=after):
                self.state, self.waits = "gathering", None
                self.notes.append(f"resumed in round {after}")
            case events.Stopped(final=True, code=code):
                self.state, self.waits = f"stopped ({code})", None

    def _follow_members(self, event: events.Event) -> None:
        match event:
            case (
                events.MembersGathered(members=names)
                | events.RoundStarted(members=names)
                | events.RoundSaved(members=names)
                | events.MembersReturned(parties=names)
            ):
                self.mark(names, "here")
            case events.Traffic(bytes=sizes):
                for name, of_member in sizes.items():
                    self.member(name).update(of_member)
            case events.MembersLost(parties=names):
                self.mark(names, "lost")
            case events.Convicted(parties=names):
                self.mark(names, "convicted")
                self.convicted += [name for name in names if name not in self.convicted]
            case events.MembersExcluded(parties=names):
                self.mark(names, "excluded")
            case events.Refused(parties=names, code=code, round=None):
                self.mark(names, f"refused ({code})")
            case events.Waiting(parties=names, members=here):
                self.mark(names, "away")
                self.mark(here, "here")


NOTED = (
    events.Convicted, events.MemberFailed, events.MemberRestarted, events.MembersExcluded,
    events.MembersLost, events.MembersReturned, events.OtherEvent, events.Refused,
    events.RoundsMissing, events.RoundsRepeated, events.Withheld,
)  # fmt: skip
"""The events that `secure-fl status` lists."""


def progress(folder: Path) -> dict[str, Any]:
    """Return a pilot's rounds, members, bytes and last events."""
    try:
        plan = toml.parse((folder / SETTINGS).read_text("utf-8"), str(folder / SETTINGS))
    except OSError as error:
        fix = "give the folder after --out of `secure-fl coordinate`"
        raise RunError(
            "this is not the folder of a pilot's run", fix=fix, file=folder, reason="missing"
        ) from error
    if "data" in plan:  # a plan does not name records
        fix = f"secure-fl runs show {folder}"
        raise RunError("this run is not a pilot's", fix=fix, file=folder, reason="missing")
    rounds = plan.get("algorithm", {}).get("rounds", 0)
    so_far = _Progress()
    for event in events_of(folder / EVENTS):
        so_far.follow(event)
    for file in folder.glob("parties/*/transcript.jsonl"):  # at a hospital
        so_far.member(file.parent.name).update(_crossed(file))
    if (folder / RESULT).exists():
        so_far.state, so_far.waits = "finished", None
    return {
        "state": so_far.state,
        "round": min(so_far.round, rounds),
        "rounds": rounds,
        "members": dict(sorted(so_far.members.items())),
        "notes": so_far.notes[-NOTES:],
        "waits": so_far.waits,
        "approvals": list(so_far.approvals),
        "convicted": so_far.convicted,
    }


@dataclass(frozen=True, slots=True)
class EarlierEvents:
    """Facts from the events of a run, which a restarted coordinator needs."""

    convicted: frozenset[str] = frozenset()
    unsolved: tuple[str, ...] = ()  # the withholding member, or "", of each open inquiry
    saved: Mapping[str, int] = field(default_factory=dict)  # newest saved round of each member

    @classmethod
    def of(cls, folder: Path) -> EarlierEvents:
        """Read the events in a run's folder."""
        return cls.read(events_of(folder / EVENTS))

    @classmethod
    def read(cls, log: Iterable[events.Event]) -> EarlierEvents:
        """Read a coordinator's events; an inquiry without an end counts as unsolved, with ""."""
        convicted, unsolved, saved = set[str](), list[str](), dict[str, int]()
        under_way = False
        for event in log:
            match event:
                case events.SumDisputed() | events.MembersGathered():  # no inquiry outlives these
                    unsolved += [""] * under_way
                    under_way = isinstance(event, events.SumDisputed)
                case events.Convicted(parties=names):
                    convicted.update(names)
                    under_way = False
                case events.Withheld(parties=names):
                    unsolved += names
                    under_way = False
                case events.RoundStarted(members=names, round=number):
                    saved |= dict.fromkeys(names, number - 1)
                case events.MembersJoined(parties=names) | events.RoundsMissing(parties=names):
                    saved |= dict.fromkeys(names, 0)
        return cls(frozenset(convicted), (*unsolved, *[""] * under_way), saved)


def _crossed(transcript: Path) -> dict[str, int]:
    sizes = {"up": 0, "down": 0}
    for event in events_of(transcript):
        if isinstance(event, events.Crossing):
            sizes["up" if event.direction == "out" else "down"] += event.size
    return sizes
