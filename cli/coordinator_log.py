"""What a coordinator notes of a run: in its folder and page, as numbers, in words for its log."""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO, WARNING, Logger
from threading import Lock
from typing import Any

from secure_fl.display.results import listed, until_told
from secure_fl.display.run_page import PageWriter
from secure_fl.display.standing import LeadStanding
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.errors import TooFewParties
from secure_fl.events import EventLog
from secure_fl.pilot.metrics import Meter
from secure_fl.runs.folder import RunFolder

BAD = (
    "begun again",
    "lost",
    "left out",
    "failed",
    "refused",
    "named",
    "complaint",
    "goes back",
    "hidden",
    "forgot",
    "waiting",
    "slow",
    "stopped",
)


class CoordinatorLog:
    """Where a run's events go, all of them."""

    def __init__(self, run: RunFolder, rounds: int, log: Logger, standing: LeadStanding) -> None:
        self.meter, self.page = Meter(), PageWriter(run.path)
        self.recorder = EventLog("coordinator", self._note)
        self._run, self._rounds, self._log, self._writing = run, rounds, log, Lock()
        self._standing = standing

    def watch(self, hub: FlareHub, names: Sequence[str]) -> None:
        """Let the numbers tell who is connected, too, and whose answer is late."""
        self.meter.connected = lambda: {name: name in hub.connected() for name in names}
        self.meter.dropped, self.meter.slow = hub.refused, hub.waited_for
        self._standing.waited_for, self._standing.connected = hub.waited_for, hub.connected

    def _note(self, event: dict[str, Any]) -> None:
        with self._writing:  # who is slow is noted by another thread
            self._run.record(event)
            self.page(event)
        self.meter.note(event)
        self._standing(event)
        if (line := told(event, self._rounds)) is not None:
            self._log.log(WARNING if event["event"] in BAD else INFO, line)


def told(event: dict[str, Any], rounds: int) -> str | None:
    """What an operator wants to hear of an event."""
    match event["event"]:
        case "gathered":
            return f"gathered: {', '.join(event['members'])}"
        case "round" if 0 < event["round"] <= rounds:
            return f"round {event['round']} of {rounds}: {', '.join(event['members'])}"
        case "begun again":
            return f"begun again, in round {event['after']} of {rounds}: {_ended(event['state'])}"
        case "lost" | "returned" | "restarted" | "left out":
            return f"{event['event']}: {', '.join(map(str, event['parties']))}"
        case "forgot":
            return f"lacks rounds that it had saved: {', '.join(event['parties'])}"
        case "failed":
            return f"cannot go on ({event['code']}): {', '.join(event['parties'])}"
        case "refused":
            return f"refused ({event['code']}): {', '.join(map(str, event['parties']))}"
        case "named":
            return f"named, with evidence, and left out: {', '.join(event['parties'])}"
        case "complaint":
            return f"a sum failed; all look into it: {', '.join(event['parties'])} complained"
        case "goes back":
            who = ", ".join(event["parties"])
            return f"all would repeat rounds from {event['to']} on, for these lack them: {who}"
        case "hidden":
            return f"did not show what it sent to a sum that failed: {', '.join(event['parties'])}"
        case "waiting":
            return _awaited(event)
        case "not awaited":
            return f"this step waits no longer for {', '.join(event['parties'])}"
        case "slow":
            return f"this step waits for {listed(event['parties'])}, for {event['seconds']:.0f} s"
        case "stopped":
            return _stopped(event)
    return None


def _ended(state: str) -> str:
    """How the process before this one ended."""
    if state.startswith(("stopped", "finished")):
        return f"it was {state} before"
    return "the process before this one ended without a word"


def _awaited(event: dict[str, Any]) -> str:
    """For whom, how many of them it takes, until when."""
    more, whom = event.get("more", 0), listed(event["parties"])
    if more:
        whom += f" ({more} more {'is' if more == 1 else 'are'} needed)"
    return f"waits for {whom}{until_told(event)}"


def _stopped(event: dict[str, Any]) -> str | None:
    """That the run is over; or why a round breaks off, unless another line has said so."""
    if not event.get("final"):
        few = event["code"] == TooFewParties.code
        return "too few are left for this round, which breaks off" if few else None
    if event["code"] == "operator":
        return "stopped, as the operator asked; start again to go on"
    return f"stopped ({event['code']}) {event['at']}".rstrip()
