"""Reads a pilot's progress from the events in its folder, for `secure-fl status`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secure_fl.config import toml
from secure_fl.display.story import EVENTS, RESULT, SETTINGS  # `runs` would load torch
from secure_fl.errors import RunError

NOTES = 8  # of the last events that are told


@dataclass(slots=True)
class _SoFar:
    """What a coordinator's events come to, one after the other."""

    round: int = 0
    state: str = "gathering"
    waits: dict[str, Any] | None = None
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    approvals: list[dict[str, str]] = field(default_factory=list)
    convicted: list[str] = field(default_factory=list)

    def mark(self, names: list[str], state: str) -> None:
        """Note how these are."""
        for name in names:
            self.members.setdefault(name, {"up": None, "down": None})["state"] = state

    def hear(self, event: dict[str, Any]) -> None:
        """Take one event in."""
        match event["event"]:
            case "gathered" | "round" as what:
                if what == "round":
                    self.round = max(self.round, event["round"])
                self.state, self.waits = "running", None
                self.mark(event["members"], "here")
            case "traffic":
                for name, bytes_of in event["bytes"].items():
                    self.members.setdefault(name, {"state": "here"}).update(bytes_of)
            case "failed":
                self.notes.append(f"failed ({event['code']}): {', '.join(event['parties'])}")
            case "lost":
                self.state = "running"
                self.mark(event["parties"], "lost")
                self.notes.append(
                    f"lost {', '.join(event['parties'])} in round {event.get('round', 0)}"
                )
            case "named":
                self.mark(event["parties"], "named")
                self.convicted += [n for n in event["parties"] if n not in self.convicted]
                self.notes.append(f"named, with evidence: {', '.join(event['parties'])}")
            case "forgot":
                self.notes.append(f"lacks rounds that it had saved: {', '.join(event['parties'])}")
            case "hidden":
                self.notes.append(f"did not show what it sent: {', '.join(event['parties'])}")
            case "goes back":
                who = ", ".join(event["parties"])
                self.notes.append(f"all would repeat rounds from {event['to']} on: {who} lack them")
            case "approved":
                self.approvals = event["by"]
            case "guard" if event["refused"]:
                self.notes.append(vote_told(event))
            case "refused" | "left out" as what:
                said = f"refused ({event['code']})" if what == "refused" else what
                if what == "left out" or "round" not in event:  # else it was one frame of it
                    self.mark(event["parties"], said)
                self.notes.append(f"{said}: {', '.join(event['parties'])}")
            case "waiting" | "slow" as what:
                self.state = what if what == "waiting" else self.state
                self.waits = {
                    "for": event["parties"],
                    "since": event["at"] - event.get("seconds", 0.0),
                    "until": event.get("until"),
                }
                if what == "waiting":
                    self.mark(event["parties"], "away")
                    self.mark(event.get("members", []), "here")
            case "not awaited" if self.state != "waiting":
                late = [n for n in (self.waits or {"for": []})["for"] if n not in event["parties"]]
                self.waits = self.waits and {**self.waits, "for": late} if late else None
            case "begun again":
                self.state = "gathering"
                self.notes.append(f"begun again in round {event['after']}")
            case "returned" | "restarted" as what:
                self.notes.append(f"{what} {', '.join(event['parties'])}")
            case "stopped" if event.get("final"):  # else a gathering alone ended
                self.state, self.waits = f"stopped ({event['code']})", None


def progress(folder: Path) -> dict[str, Any]:
    """Rounds, who takes part, bytes, and what happened last."""
    try:
        plan = toml.parse((folder / SETTINGS).read_text(), str(folder / SETTINGS))
        lines = (folder / EVENTS).read_text().splitlines() if (folder / EVENTS).exists() else []
    except OSError as error:
        fix = "give the folder after --out of `secure-fl coordinate`"
        raise RunError(
            "there is no pilot's run here", fix=fix, file=folder, reason="missing"
        ) from error
    if "data" in plan:  # no plan says whose records
        fix = f"secure-fl runs show {folder}"
        raise RunError(
            "this run is one process's, and no pilot's", fix=fix, file=folder, reason="missing"
        )
    rounds = plan.get("algorithm", {}).get("rounds", 0)  # questions are asked in none
    so_far = _SoFar()
    for event in _events(lines):
        so_far.hear(event)
    for file in folder.glob("parties/*/transcript.jsonl"):  # a hospital knows its own bytes
        so_far.members.setdefault(file.parent.name, {"state": "here"}).update(_crossed(file))
    if (folder / RESULT).exists():
        so_far.state, so_far.waits = "finished", None
    return {
        "state": so_far.state,
        "round": min(so_far.round, rounds),
        "rounds": rounds,
        "members": dict(sorted(so_far.members.items())),
        "notes": so_far.notes[-NOTES:],
        "waits": so_far.waits,
        "approvals": so_far.approvals,
        "convicted": so_far.convicted,
    }


def named(folder: Path) -> set[str]:
    """Who broke the protocol in this run so far, as its coordinator wrote down."""
    told = (event["parties"] for event in _events_of(folder) if event["event"] == "named")
    return {str(party) for parties in told for party in parties}


def unsolved(folder: Path) -> list[str]:
    """The inquiries of this run so far that named nobody: who hid what it had sent, or nothing."""
    return unsolved_in(_events_of(folder))


def unsolved_in(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same, of a coordinator's events; one that was killed in an inquiry named nobody."""
    found, under_way = list[str](), False
    for event in events:
        match event["event"]:
            case "complaint":
                found += [""] * under_way
                under_way = True
            case "named":
                under_way = False
            case "hidden":
                found += map(str, event["parties"])
                under_way = False
    return found + [""] * under_way


def saved(folder: Path) -> dict[str, int]:
    """The newest round that each member of this run has said it has."""
    return saved_in(_events_of(folder))


def saved_in(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The same, of a coordinator's events."""
    found = dict[str, int]()
    for event in events:
        match event["event"]:
            case "round":
                found |= dict.fromkeys(event["members"], event["round"] - 1)
            case "joined" | "forgot":
                found |= dict.fromkeys(event["parties"], 0)
    return found


def _events_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / EVENTS
    return _events(file.read_text().splitlines() if file.exists() else [])


def vote_told(event: dict[str, Any]) -> str:
    """What became of a round's votes, for a person at this hospital."""
    spoiled = ", by a ballot that is none" if event["spoiled"] else ""
    of = f"{event['against']} of {event['voters']} parties against it{spoiled}"
    return f"round {event['round']} was refused and undone: {of}"


def _crossed(transcript: Path) -> dict[str, int]:
    found = {"up": 0, "down": 0}
    for event in _events(transcript.read_text().splitlines()):
        way = "up" if event["direction"] == "out" else "down"
        found[way] += event["head_bytes"] + event["bulk_bytes"]
    return found


def _events(lines: list[str]) -> list[dict[str, Any]]:
    """All whole lines; the last one may be under way."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
