"""What members have cost the others so far, and from when on it is too much.

Whoever restarts, fails, forgets or hides makes all repeat a round. Each may, a few times: a
hospital has bad days. Counts are of this process; inquiries in vain are told it (`progress`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.resume import Unfinished
from secure_fl.errors import CohortError, PartyFailed
from secure_fl.pilot.run_id import RESTARTED

RESTARTS = 5  # of one party's process between two ends of rounds; one more ends the run
MOST_RESTARTS = 25  # of one over the whole run: each costs all others the work of a round
MOST_FAILURES = 2  # of one over the whole run, while the others go on
MOST_UNSOLVED = 1  # inquiries that name nobody: each counts as a forged sum at all sites
FAILED = "failed"  # of whom a round cannot be ended without


class FaultBudget:
    """Of one run, over all its gatherings."""

    def __init__(self, unsolved: Iterable[str] = ()) -> None:
        """`unsolved`: who hid an upload in doubt, or "", for each inquiry in vain before."""
        self.unsolved = list(unsolved)
        self.failed: list[str] = []  # who was lost by its own answer, or forgot, each time
        self.newest = 0  # round that has ended
        self._restarts: Counter[str] = Counter()  # since it did
        self._all_restarts: Counter[str] = Counter()

    def ended(self, round: int) -> bool:
        """Whether a round ended for the first time: one that is repeated is no step forward."""
        if round <= self.newest:
            return False
        self.newest = round
        self._restarts.clear()
        return True

    @property
    def exhausted(self) -> set[str]:
        """Who could not go on too often: the others go on without, and wait for it no longer."""
        return {party for party, count in Counter(self.failed).items() if count > MOST_FAILURES}

    def restarted(self, party: str) -> None:
        """Count a process that began anew, but not for ever."""
        self._restarts[party] += 1
        self._all_restarts[party] += 1
        if self._restarts[party] > RESTARTS or self._all_restarts[party] > MOST_RESTARTS:
            raise PartyFailed(
                f"this party's process began anew {self._all_restarts[party]} times, "
                f"{self._restarts[party]} of them since a round ended",
                fix="its own log says why; when it is mended, start again to go on",
                party=party,
                reason=RESTARTED,
            )

    def require_not_exhausted(self, error: Unfinished, gathered: Collection[str]) -> None:
        """Name who was in a round that cannot end without it, and in which it failed too often."""
        if stuck := sorted((error.began & self.exhausted).difference(gathered)):
            party = stuck[0]
            raise PartyFailed(
                "this party could not go on, contradicted the others, or lacked what it had saved, "
                f"{self.failed.count(party)} times; it is in a sum of the round that was opened, "
                "so no others may repeat it",
                fix="its own log says why; when it is mended, start again to go on. Or begin a new "
                "run without it, with another seed",
                party=party,
                round=error.where.get("round"),
                reason=FAILED,
            ) from error

    def require_solved(self) -> None:
        """Stop before sums fail so often that sites give up their keys, in any process of ours."""
        if len(self.unsolved) <= MOST_UNSOLVED:
            return
        hid = [party for party in self.unsolved if party]
        said = f", and {' and '.join(sorted(set(hid)))} did not show what it had sent" * bool(hid)
        raise PartyFailed(
            f"{len(self.unsolved)} sums failed, and nobody could be named{said}",
            fix="one more, and sites take their keys for attacked. Begin another run, with another "
            "name, without who hides; if nobody does, look for what changes frames here",
            party=hid[-1] if hid else None,
            reason=HIDDEN,
        )


def lost_state_error(error: Unfinished, lost: Collection[str]) -> CohortError:
    """The error that names whose rounds are missing, if it lost them; else this one."""
    if not (missing := sorted(error.began.intersection(lost))):
        return error
    return PartyFailed(
        "this party lacks rounds that it had saved, and without it too few hold them",
        fix="ask that site what became of its run's folder; if it is put back as it was, or the "
        "others that were in the round are back, start again to go on",
        party=missing[0],
        round=error.where.get("round"),
        reason=FAILED,
    )
