"""What a coordinator notes of a run: in its folder and page, as numbers, in words for its log."""

from __future__ import annotations

from collections.abc import Sequence
from logging import Logger
from threading import Lock

from secure_fl.display.result_tables import listed, until_text
from secure_fl.display.run_page import PageWriter
from secure_fl.display.status_line import CoordinatorStatus
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.errors import TooFewParties
from secure_fl.events import Event, EventLog, Resumed, RoundStarted, Stopped, Waiting
from secure_fl.pilot.metrics import Meter
from secure_fl.runs.folder import RunFolder


class CoordinatorLog:
    """Where a run's events go, all of them."""

    def __init__(
        self, run: RunFolder, rounds: int, log: Logger, standing: CoordinatorStatus
    ) -> None:
        self.meter, self.page = Meter(), PageWriter(run.path)
        self.recorder = EventLog("coordinator", self._note)
        self._run, self._rounds, self._log, self._writing = run, rounds, log, Lock()
        self._standing = standing

    def watch(self, hub: FlareHub, names: Sequence[str]) -> None:
        """Let the numbers tell who is connected, too, and whose answer is late."""
        self.meter.connected = lambda: {name: name in hub.connected() for name in names}
        self.meter.dropped, self.meter.slow = hub.refused, hub.waited_for
        self._standing.waited_for, self._standing.connected = hub.waited_for, hub.connected

    def _note(self, event: Event) -> None:
        with self._writing:  # another thread notes stragglers
            self._run.record(event)
            self.page(event)
        self.meter.note(event)
        self._standing(event)
        if (line := log_line(event, self._rounds)) is not None:
            self._log.log(event.LEVEL, line)


def log_line(event: Event, rounds: int) -> str | None:
    """Describe an event for the coordinator's log, or return None for one that it leaves out."""
    match event:
        case RoundStarted(round=number, members=members):
            return f"round {number} of {rounds}: {', '.join(members)}" if number <= rounds else None
        case Resumed(after=after, state=state):
            ended = state.startswith(("stopped", "finished"))
            how = f"the run was {state}" if ended else "the previous process ended unexpectedly"
            return f"resumed in round {after} of {rounds}: {how}"
        case Waiting(parties=parties, more=more):
            needed = f" ({more} more {'is' if more == 1 else 'are'} needed)" if more else ""
            return f"waits for {listed(parties)}{needed}{until_text(event.until)}"
        case Stopped(final=False, code=code):
            few = code == TooFewParties.code
            return "too few members are left; this round stops" if few else None
        case Stopped(code="operator"):
            return "stopped by the operator; start again to continue"
        case Stopped(code=code, member=member):
            return f"stopped ({code}) {member}".rstrip()
    return event.sentence()
