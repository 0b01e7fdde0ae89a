"""Limits on members' faults, and the log of members that a run waits for.

A member that restarts, fails, loses its state or withholds an upload makes all repeat a round,
which is allowed a few times. Counts begin with this process; only inquiries without a conviction
are read from the run's folder (`progress`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Event
from typing import Protocol

from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.resume import Unfinished
from secure_fl.errors import CohortError, PartyFailed
from secure_fl.events import EventLog, Stragglers, StragglersAnswered, Waiting
from secure_fl.pilot.plan import RESTARTED

RESTARTS = 5  # of one party's process per round; one more ends the run
MOST_RESTARTS = 25  # of one party over the run
MOST_FAILURES = 2  # of one party over the run; the others continue without it
MOST_UNSOLVED = 1  # inquiries without a conviction that one member, or nobody, is named for
FAILED = "failed"  # a party without which a round cannot end


class FaultBudget:
    """Fault counters of one run, over all its gatherings."""

    def __init__(self, unsolved: Iterable[str] = ()) -> None:
        """`unsolved`: the withholding member, or "", of each inquiry without a conviction."""
        self.unsolved = list(unsolved)
        self.refused: set[str] = set()  # members with which most sites take part in no run
        self.failed: list[str] = []  # a member for each failure or lost state
        self.newest = 0  # newest finished round
        self._restarts: Counter[str] = Counter()  # since that round
        self._all_restarts: Counter[str] = Counter()

    def ended(self, round: int) -> bool:
        """Note the end of a round; return False for a repeated one."""
        if round <= self.newest:
            return False
        self.newest = round
        self._restarts.clear()
        return True

    @property
    def exhausted(self) -> set[str]:
        """Members with too many failures; the run continues without them."""
        counts = Counter(self.failed).items()
        return self.refused | {party for party, count in counts if count > MOST_FAILURES}

    def restarted(self, party: str) -> None:
        """Count a restart of a party's process, and raise at the limit."""
        self._restarts[party] += 1
        self._all_restarts[party] += 1
        if self._restarts[party] > RESTARTS or self._all_restarts[party] > MOST_RESTARTS:
            raise PartyFailed(
                f"this party's process restarted {self._all_restarts[party]} times, "
                f"{self._restarts[party]} of them since the last round",
                fix="see the log of that site; after its repair, start again to continue",
                party=party,
                reason=RESTARTED,
            )

    def require_not_exhausted(self, error: Unfinished, gathered: Collection[str]) -> None:
        """Stop if a round cannot end without a member that failed too often."""
        if stuck := sorted((error.began & self.exhausted).difference(gathered)):
            party = stuck[0]
            raise PartyFailed(
                "this party failed, contradicted others, lost its saved state or withheld uploads "
                "too often. A sum with its input was opened, so the round cannot be repeated "
                "without it",
                fix="see the log of that site; after its repair, start again to continue. Or start "
                "a new run without it, with another seed",
                party=party,
                round=error.where.get("round"),
                reason=FAILED,
            ) from error

    def require_solved(self) -> None:
        """Stop before failed sums make sites retire their keys, or if a member causes them."""
        for party, count in Counter(self.unsolved).most_common():
            if count <= MOST_UNSOLVED:
                return
            raise PartyFailed(
                f"{count} inquiries into failed sums ended without a conviction"
                + f"; {party} did not show its upload, or left" * bool(party),
                fix="start another run, with another name and seed: sites refuse this member "
                "until there is a new roster"
                if party
                else "after one more, sites retire their keys: look for changes of frames on this "
                "machine, then start another run, with another name and seed",
                party=party or None,
                reason=HIDDEN,
            )


def lost_state_error(error: Unfinished, lost: Collection[str]) -> CohortError:
    """Return an error that names a party with lost rounds, or else `error`."""
    if not (missing := sorted(error.began.intersection(lost))):
        return error
    return PartyFailed(
        "this party lost saved rounds, and too few others have them",
        fix="ask that site to restore its run's folder. After that, or once the other members of "
        "the round are connected, start again to continue",
        party=missing[0],
        round=error.where.get("round"),
        reason=FAILED,
    )


PATIENCE = 60.0  # seconds after which missing answers to a step are logged


class Presence(Protocol):
    """An engine that knows which members are connected."""

    def wait_for(self, parties: Collection[str], timeout: float) -> frozenset[str]:
        """Wait until members are connected; return those that are not."""

    def waited_for(self) -> Mapping[str, float]:
        """Return the members without an answer to the current step, with their seconds."""


def arrived(
    hub: Presence,
    names: Collection[str],
    patience: float,
    log: EventLog,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until all are connected, for `patience` seconds or a stop; log missing members."""
    until, noted = time.monotonic() + patience, None
    while missing := hub.wait_for(names, min(1.0, max(0.0, until - time.monotonic()))):
        if missing != noted:
            here = sorted(set(names) - missing)
            end = round(time.time() + max(0.0, until - time.monotonic()))
            away, there = tuple(sorted(missing)), tuple(here)
            log.event(Waiting(code="arrival", parties=away, members=there, until=end))
            noted = missing
        if stopping() or time.monotonic() >= until:
            return


class StragglerWatch:
    """Watch for stragglers, called every few seconds."""

    def __init__(self, hub: Presence, log: EventLog, patience: float = PATIENCE) -> None:
        self._hub, self._log, self._patience = hub, log, patience
        self._noted: dict[str, float] = {}  # stragglers, and the second of the next log line

    def __call__(self, over: Event) -> None:
        """Log stragglers at once, and again each time the delay has doubled."""
        waited = self._hub.waited_for()
        late = {n: s for n, s in waited.items() if s > self._patience}
        if over.is_set():
            return
        if back := sorted(self._noted.keys() - late.keys()):
            self._log.event(StragglersAnswered(parties=tuple(back)))
        self._noted = {n: at for n, at in self._noted.items() if n in late}
        if any(seconds > self._noted.get(name, 0.0) for name, seconds in late.items()):
            slowest = max(late.values())
            self._log.event(Stragglers(parties=tuple(sorted(late)), seconds=slowest))
            self._noted = {name: 2 * seconds for name, seconds in late.items()}
