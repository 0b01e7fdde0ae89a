"""The coordinator's process in a pilot: a loop of sessions, called gatherings.

In each gathering the coordinator invites the connected members, agrees on a run id with those that
accept, and leads rounds. A run that loses a member continues while enough are left. If the member
returns, the gathering ends after the round, and in the next one all resume from their checkpoints.
Each gathering has its own id, keys and counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.machine import Coordinator
from secure_fl.coordinator.resume import SavedRounds, Unfinished
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import (
    CohortError,
    Misconduct,
    PartyFailed,
    SecureFLError,
    SettingsError,
    TooFewParties,
    UnusableKeys,
)
from secure_fl.events import (
    EventLog,
    MemberFailed,
    MemberRestarted,
    MembersExcluded,
    MembersReturned,
    Stopped,
    Traffic,
    Waiting,
    Withheld,
)
from secure_fl.pilot.gathering import AgreedRun, GatherAgain, Gathering, HubEngine
from secure_fl.pilot.member_faults import FaultBudget, lost_state_error
from secure_fl.pilot.plan import RESTARTED, rules_of_roster
from secure_fl.pilot.progress import EarlierEvents
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Link

MAX_POLL_SECONDS = 15  # between two invitations while connections do not change


class OperatorStop(CohortError):  # noqa: N818 - it names a state
    """The operator stopped the run after or before a round; it can be continued."""

    code = "operator"
    exit_status = 130


class RunLeader:
    """Leader of one plan to its end, over as many gatherings as needed."""

    def __init__(
        self,
        hub: HubEngine,
        me: Identity,
        roster: Roster,
        plan: Plan,
        recorder: EventLog,
        *,
        patience: float = 3600.0,
        earlier: EarlierEvents | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`earlier`: the events of the same run that earlier processes led."""
        earlier = earlier or EarlierEvents()
        self._hub, self._roster, self._plan = hub, roster, plan
        if len(roster.parties) < self._min_parties:
            what = (
                f"sums need {self._min_parties} parties, and the roster has {len(roster.parties)}"
            )
            fix = "lower protection.threshold or min_cohort in the plan, or sign a larger roster"
            raise SettingsError(what, fix=fix, field="protection")
        self.gathering = Gathering(hub, me, roster, plan, recorder)
        self._recorder, self._patience, self._sleep = recorder, patience, sleep
        self.stopping = False  # set to stop after this round
        # The run. Members that were convicted, or failed too often, are not invited.
        self._convicted = frozenset(earlier.convicted)
        self._faults = FaultBudget(earlier.unsolved)
        self._saved = SavedRounds(earlier.saved)
        self._finishing: frozenset[str] = frozenset()  # members that can finish a round; empty: any
        self._links: list[dict[str, Link]] = []  # of each gathering
        # Waiting, since a new round ended.
        self._waited = 0.0  # seconds
        self._polls = 0
        self._logged_missing: list[str] | None = None  # since the last gathering
        # This gathering.
        self._members: frozenset[str] = frozenset()
        self._coordinator: Coordinator | None = None
        self._round_began = False

    def stop(self) -> None:
        """Stop after this round; any thread or signal handler may call it."""
        self.stopping = True

    def run(self) -> None:
        """Gather and lead until the plan is done; wait for missing members."""
        try:
            while not self._try_once():
                pass
        except SecureFLError as error:
            self._recorder.event(Stopped(code=error.code, member=error.party, final=True))
            raise

    @property
    def _parties(self) -> set[str]:
        """All hospitals on the roster that contribute to sums."""
        return {member.name for member in self._roster.parties}

    @property
    def _invitable(self) -> set[str]:
        """The members that are invited when they are connected."""
        return set(self._roster.names) - self._convicted - self._faults.exhausted

    @property
    def _min_parties(self) -> int:
        """The number of parties that a sum needs, by the roster and the plan."""
        protection = self._plan.protection
        return max(self._roster.t, protection.threshold or 0, protection.min_cohort)

    def _enough(self, members: Collection[str]) -> bool:
        return len(self._parties.intersection(members)) >= self._min_parties

    def _try_once(self) -> bool:
        """Gather and lead once; return True at the end of the run, False to try again.

        | exception | reaction |
        | --- | --- |
        | `OperatorStop` | stop |
        | `GatherAgain` | try again, without the member that most refuse |
        | `Unfinished` | invite only members that can finish the round, or wait for others |
        | `TooFewParties` | wait for members; stop if that cannot help |
        | `Misconduct` | try again without the convicted member; stop if too few are left |
        | `UnusableKeys` | try again; it counts as a failure of all members that it names |
        | another `PartyFailed` | see `_react_to_failure` |
        | any other | stop |
        """
        self._coordinator = None
        self._require_not_stopping()
        self._faults.require_solved()
        try:
            self._lead(self._gather())
        except OperatorStop:
            raise
        except GatherAgain as error:
            self._finishing = frozenset()
            self._faults.refused.update(filter(None, [error.party]))
        except Unfinished as error:
            self._react_to_unfinished(error)
        except TooFewParties as error:
            self._wait_or_raise(error)
        except Misconduct as error:
            self._require_enough_without_convicted(error)
        except UnusableKeys as error:
            self._recorder.event(MemberFailed(parties=error.members, code=error.reason))
            self._faults.failed += error.members
        except PartyFailed as error:
            self._react_to_failure(error)
        else:
            return True
        return False

    def _react_to_unfinished(self, error: Unfinished) -> None:
        """Choose members that can finish a round that others began, or wait for those others."""
        self._finishing = error.able or self._without_lost_rounds()
        if self._finishing or self._members & self._faults.exhausted:
            return  # the next gathering is another one
        self._faults.require_not_exhausted(error, self._members)
        blamed = lost_state_error(error, self._saved.lost)
        self._wait_or_raise(blamed, missing=bool(error.began - self._members - self._convicted))

    def _react_to_failure(self, error: PartyFailed) -> None:
        """Try again after a restart or a withheld upload, wait if a site is alone, else stop."""
        if error.reason == RESTARTED:
            self._recorder.event(MemberRestarted(parties=error.members))
            for member in error.members:
                self._faults.restarted(member)
        elif error.reason == TooFewParties.code:
            self._wait_or_raise(error)
        elif error.reason != HIDDEN:  # `_lead` has counted this one
            raise error

    def _without_lost_rounds(self) -> frozenset[str]:
        """Return the members that lost no saved round, if some did and enough are left."""
        left = self._members.difference(self._saved.lost)
        return left if left < self._members and self._enough(left) else frozenset()

    def _require_enough_without_convicted(self, error: Misconduct) -> None:
        """Stop if too few members are left, or the host is convicted."""
        host = self._roster.host
        if not self._enough(self._parties - self._convicted) or (
            host is not None and host.name in self._convicted
        ):
            raise error

    def _note_unsolved(self, error: SecureFLError) -> None:
        """Count a search for a misbehaving member that convicted none, and the one it suspects."""
        suspect = error.party if error.party in self._members else ""
        if suspect:
            self._recorder.event(Withheld(parties=(suspect,)))
        self._faults.unsolved.append(suspect or "")

    def _wait_or_raise(self, error: CohortError, *, missing: bool = True) -> None:
        """Wait a little for missing members, or raise the error if waiting cannot help."""
        if self.stopping:
            return  # the next try stops the run
        can_help = missing and self._enough(self._invitable)
        if not can_help or self._waited >= self._patience:
            raise error
        self._log_waiting(error)
        self._poll_connections()

    def _log_waiting(self, error: CohortError) -> None:
        """Log the members that are waited for, when they change."""
        missing = sorted(self._invitable - self._hub.connected())
        if missing == self._logged_missing:
            return
        self._logged_missing = missing
        ready = self._parties & self._invitable & self._hub.connected()
        until = round(time.time() + self._patience - self._waited)
        more = max(0, self._min_parties - len(ready))
        self._recorder.event(
            Waiting(code=error.code, parties=tuple(missing), more=more, until=until)
        )

    def _poll_connections(self) -> None:
        """Wait longer each time, but only until a connection changes."""
        connected = self._hub.connected()
        self._polls += 1
        for _ in range(min(self._polls, MAX_POLL_SECONDS)):
            self._sleep(1.0)
            self._waited += 1.0
            if (
                self.stopping
                or self._waited >= self._patience
                or self._hub.connected() != connected
            ):
                return

    def _gather(self) -> AgreedRun:
        """Gather all connected members, or only those that can finish a round without others."""
        connected = self._hub.connected() & self._invitable
        only = self._finishing if self._finishing <= connected else frozenset[str]()
        began = time.monotonic()
        try:
            session = self.gathering.gather(only or connected, self._invitable - connected)
        finally:
            self._waited += int(time.monotonic() - began)  # for connected members without an answer
        self._members = frozenset(session[1])
        self._logged_missing = None
        return session

    def _lead(self, session: AgreedRun) -> None:
        """Lead the rounds of one gathering, and take over the faults that were found."""
        run, members = session
        links = self.gathering.links(run, members)
        self._links.append(links)
        self._round_began = False
        coordinator = self._coordinator = lead_run(
            links,
            self._hub,
            rules_of_roster(self._roster, self._plan, members),
            self._plan.protection,
            recorder=self._recorder,
            roster=self._roster.names,
            between=self._between,
        )
        coordinator.resume(self._saved, self._convicted)
        with self._recorder.phase("run"):
            try:
                coordinator.run()
            except SecureFLError as error:
                if coordinator.inquired and not isinstance(error, Misconduct):
                    self._note_unsolved(error)
                raise
            finally:
                self._take_faults(coordinator)
        self._recorder.event(Traffic(bytes=self.traffic()))

    def _take_faults(self, coordinator: Coordinator) -> None:
        """Take over the convictions and failures that the coordinator found so far."""
        self._convicted |= coordinator.convicted
        self._faults.failed += coordinator.take_failed()

    def traffic(self) -> dict[str, dict[str, int]]:
        """Return the bytes from and to each member, over all gatherings."""
        totals: dict[str, dict[str, int]] = {}
        for links in self._links:
            for name, link in links.items():
                total = totals.setdefault(name, {"up": 0, "down": 0})
                total["up"] += link.bytes_in
                total["down"] += link.bytes_out
        return dict(sorted(totals.items()))

    def document(self) -> dict[str, Any]:
        """Return the coordinator's record of a finished run, without scores."""
        return {
            "schema": "secure-fl/lead/1",
            "status": "finished",
            "run": self._plan.run.name,
            "algorithm": self._plan.work,
            "rounds": self._plan.rounds,
            "protection": self._plan.protection.mode,
            "roster": self._roster.fingerprint(),
            "gatherings": len(self._links),
            "convicted": sorted(self._convicted),
            "bytes": self.traffic(),
            "seconds": dict(self._recorder.seconds),
        }

    def _between(self, members: tuple[str, ...], newcomers: tuple[str, ...]) -> None:
        """Before each round, raise an error if the round needs another gathering, or a stop."""
        self._recorder.event(Traffic(bytes=self.traffic()))
        self._require_not_stopping()
        assert self._coordinator is not None  # noqa: S101 - it calls this
        self._take_faults(self._coordinator)
        self._exclude_exhausted(members)
        if newcomers and not self._plan.joinable:
            self._exclude_newcomers(members, newcomers)
        if not self._round_began:  # silent members are invited again after a round, not before
            self._round_began = True
        elif self._faults.ended(self._coordinator.round):  # else a repeated one: limits stay
            self._waited, self._polls = 0.0, 0
            if not self._coordinator.repeating:  # members that began a round finish it
                self._readmit_returned(members)

    def _exclude_exhausted(self, members: tuple[str, ...]) -> None:
        """Gather without the members that failed too often."""
        if exhausted := sorted(self._faults.exhausted.intersection(members)):
            self._recorder.event(MembersExcluded(parties=tuple(exhausted)))
            raise GatherAgain(f"the others continue without {', '.join(exhausted)}")

    def _readmit_returned(self, members: tuple[str, ...]) -> None:
        """Gather with connected members that are not in this gathering, if they can join.

        A connected member that did not answer the invitation is one of them.
        """
        returned = sorted((self._hub.connected() & self._invitable) - set(members))
        if returned and self._plan.joinable:
            self._recorder.event(MembersReturned(parties=tuple(returned)))
            raise GatherAgain(f"{', '.join(returned)} returned", fix="the run continues with all")

    def _exclude_newcomers(self, members: tuple[str, ...], newcomers: tuple[str, ...]) -> None:
        """Gather without members that lack a round and cannot receive its state."""
        able, host = frozenset(members) - set(newcomers), self._roster.host
        complete = self._enough(able) and (host is None or host.name in able)
        self._recorder.event(MembersExcluded(parties=newcomers))
        raise Unfinished(
            f"{', '.join(newcomers)} lack the last round, and cannot receive its state in this run",
            able=able if complete else frozenset(),
            began=frozenset(),
            fix="restore their folders, or start a new run with all parties",
        )

    def _require_not_stopping(self) -> None:
        if self.stopping:
            raise OperatorStop("stopped by the operator", fix="start again to continue")
