"""The coordinator's end of a pilot: gather, lead; and begin again when somebody returns.

A run that lost somebody goes on while enough are left. At the next round's boundary it stops and is
gathered anew if one of them is back, and all resume from their checkpoints. Each gathering has an
id, keys and counters of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.machine import Coordinator
from secure_fl.coordinator.resume import SavedRounds, Unfinished
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import CohortError, Misconduct, PartyFailed, SecureFLError, TooFewParties
from secure_fl.events import (
    EventLog,
    MemberRestarted,
    MembersExcluded,
    MembersReturned,
    Stopped,
    Traffic,
    Waiting,
    Withheld,
)
from secure_fl.federation.validation import require_masks
from secure_fl.pilot.invitations import Gathering, HubEngine
from secure_fl.pilot.member_faults import FaultBudget, lost_state_error
from secure_fl.pilot.run_id import RESTARTED, rules_of_roster
from secure_fl.policy.questions import Proposal
from secure_fl.policy.rules import Plan
from secure_fl.protocol.frames import Link

LONGEST_NAP = 15  # seconds between two invitations, while nobody comes or goes


class GatherAgain(CohortError):  # noqa: N818 - it names a state
    """Somebody is back, or not asked any more: the run is gathered again, after this round."""

    code = "returned"


class OperatorStop(TooFewParties):
    """The operator stops the run, after a round or before there is one; it can go on."""

    code = "operator"
    exit_status = 130


class RunLeader:
    """Leads one plan to its end, however often it has to be gathered."""

    def __init__(
        self,
        hub: HubEngine,
        me: Identity,
        roster: Roster,
        plan: Proposal,
        recorder: EventLog,
        *,
        patience: float = 3600.0,
        named: Iterable[str] = (),
        unsolved: Iterable[str] = (),
        saved: Mapping[str, int] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`named`: who was, before this process began; `unsolved`, `saved`: see `progress`."""
        if isinstance(plan, Plan):
            require_masks(ALGORITHMS[plan.algorithm.name], plan.protection)
        self._hub, self._roster = hub, roster
        self._plan = plan
        self.gathering = Gathering(hub, me, roster, plan, recorder)
        self._recorder, self._patience, self._sleep = recorder, patience, sleep
        self._waited = 0.0  # seconds since a round ended
        self._faults = FaultBudget(unsolved)
        self._saved = SavedRounds(saved or {})
        self._gathered: frozenset[str] = frozenset()  # who accepted last
        self._coordinator: Coordinator | None = None  # of this gathering
        self._awaited: list[str] | None = None  # for whom the run waits, as the log says
        self._waits = 0  # since a round ended
        self._alone: frozenset[str] = frozenset()  # who ends a round without the others
        self._begun = False  # whether this gathering has begun a round
        self._links: list[dict[str, Link]] = []  # of each gathering
        self._named = set(named)  # who broke the protocol, and is not asked any more
        self.stopping = False  # set by an operator: stop cleanly after this round

    def stop(self) -> None:
        """Stop after this round; any thread or signal handler may call it."""
        self.stopping = True

    def run(self) -> None:
        """Gather and lead until the plan is done; wait for those who are missing."""
        try:
            while not self._tried():
                pass
        except SecureFLError as error:
            at = str(error.where.get("party", ""))
            self._recorder.event(Stopped(code=error.code, member=at, final=True))
            raise

    def _tried(self) -> bool:
        """Whether one more gathering has led to the end; what can be waited for is no error."""
        self._coordinator = None
        self._require_not_stopping()
        self._faults.require_solved()
        try:
            self._lead(self._gather())
        except GatherAgain:
            self._alone = frozenset()
        except Unfinished as error:  # before those who began the round could go on
            self._alone = error.able or self._able_without(self._saved.lost)
            if not self._alone and not self._gathered & self._faults.exhausted:
                self._faults.require_not_exhausted(error, self._gathered)
                blamed = lost_state_error(error, self._saved.lost)
                self._wait(blamed, missing=bool(error.began - self._gathered))
        except TooFewParties as error:  # a CohortError, too
            self._wait(error)
        except Misconduct as error:
            self._go_on_without(error)
        except PartyFailed as error:
            if error.reason == RESTARTED:
                self._recorder.event(MemberRestarted(parties=(str(error.where["party"]),)))
                self._faults.restarted(str(error.where["party"]))
            elif error.reason == HIDDEN:
                self._hid(error)
            elif error.reason == TooFewParties.code:
                self._wait(error)
            else:
                raise
        else:
            return True
        return False

    def _able_without(self, lost: Collection[str]) -> frozenset[str]:
        """Who is left of those who were here without these, if that is enough to try it so."""
        left = self._gathered.difference(lost)
        host = self._roster.host
        enough = len(left - {host.name if host else ""}) >= self._least
        return left if left < self._gathered and enough else frozenset()

    def _go_on_without(self, error: Misconduct) -> None:
        """Gather again without who was convicted, if that leaves enough."""
        left = {m.name for m in self._roster.members if m.role != "host"} - self._named
        host = self._roster.host
        if len(left) < self._least or (host is not None and host.name in self._named):
            raise error

    def _hid(self, error: PartyFailed) -> None:
        """Repeat the round with who did not show an upload that is in doubt, but not for ever."""
        party = str(error.where["party"])
        self._recorder.event(Withheld(parties=(party,)))
        self._faults.unsolved.append(party)
        self._faults.require_solved()

    def _wait(self, error: CohortError, *, missing: bool = True) -> None:
        """Give those who are missing a second, if there is hope and patience left."""
        parties = {m.name for m in self._roster.members if m.role != "host"}
        hope = len(parties - self._named - self._faults.exhausted) >= self._least
        if self.stopping:
            return  # as the next try says
        if not (missing and hope) or self._waited >= self._patience:
            raise error
        if self._awaited != (awaited := sorted(self._known - self._hub.connected())):
            here = parties & self._hub.connected()
            until = round(time.time() + self._patience - self._waited)
            more = max(0, self._least - len(here - self._named - self._faults.exhausted))
            self._recorder.event(
                Waiting(code=error.code, parties=tuple(awaited), more=more, until=until)
            )
            self._awaited = awaited
        self._wait_a_little()

    def _wait_a_little(self) -> None:
        """Wait for a second, longer each time, but only until somebody comes or goes."""
        there = self._hub.connected()
        self._waits += 1
        for _ in range(min(self._waits, LONGEST_NAP)):
            self._sleep(1.0)
            self._waited += 1.0
            if self.stopping or self._waited >= self._patience or self._hub.connected() != there:
                return

    def _gather(self) -> tuple[bytes, tuple[str, ...]]:
        """Gather all who are there, or those alone who can end a round without the others."""
        there = self._hub.connected() & self._known
        asked = self._alone if self._alone and self._alone <= there else there
        run, members = self.gathering.gather(asked, self._known - there)
        self._gathered = frozenset(members)
        self._awaited = None
        return run, members

    def _lead(self, gathered: tuple[bytes, tuple[str, ...]]) -> None:
        run, members = gathered
        rules = rules_of_roster(self._roster, self._plan, members)
        links = self.gathering.links(run, members)
        self._links.append(links)
        self._begun = False
        self._coordinator = lead_run(
            links,
            self._hub,
            rules,
            self._plan.protection,
            recorder=self._recorder,
            roster=self._roster.names,
            between=self._between,
        )
        self._coordinator.named, self._coordinator.failed = self._named, self._faults.failed
        self._coordinator.saved = self._saved
        with self._recorder.phase("run"):
            try:
                self._coordinator.run()
            except SecureFLError as error:
                hid = isinstance(error, PartyFailed) and error.reason == HIDDEN
                if self._coordinator.inquired and not (hid or isinstance(error, Misconduct)):
                    self._faults.unsolved.append("")  # somebody else ended it, and nobody was named
                raise
        self._recorder.event(Traffic(bytes=self.traffic()))

    def traffic(self) -> dict[str, dict[str, int]]:
        """Bytes from and to each member so far, over all gatherings."""
        found: dict[str, dict[str, int]] = {}
        for links in self._links:
            for name, link in links.items():
                at = found.setdefault(name, {"up": 0, "down": 0})
                at["up"] += link.bytes_in
                at["down"] += link.bytes_out
        return dict(sorted(found.items()))

    def document(self) -> dict[str, Any]:
        """What a coordinator can say of a finished run: nothing of what was learned."""
        return {
            "schema": "secure-fl/lead/1",
            "status": "finished",
            "run": self._plan.run.name,
            "algorithm": self._plan.work,
            "rounds": self._plan.rounds,
            "protection": self._plan.protection.mode,
            "roster": self._roster.fingerprint(),
            "gatherings": len(self._links),
            "convicted": sorted(self._named),
            "bytes": self.traffic(),
            "seconds": dict(self._recorder.seconds),
        }

    def _between(self, members: tuple[str, ...], newcomers: tuple[str, ...]) -> None:
        """At a boundary: stop if the operator asks, gather again if somebody is back."""
        self._recorder.event(Traffic(bytes=self.traffic()))
        self._require_not_stopping()
        if exhausted := sorted(self._faults.exhausted.intersection(members)):
            self._recorder.event(MembersExcluded(parties=tuple(exhausted)))
            raise GatherAgain(f"the others go on without {', '.join(exhausted)}")
        if newcomers and not self._joinable:
            self._leave_out(members, newcomers)
        if not self._begun:  # who is there and does not answer is asked again after a round
            self._begun = True
            return
        if self._coordinator is None or not self._faults.ended(self._coordinator.round):
            return  # a round that had ended before: whoever makes all repeat it gets no more of it
        self._waited, self._waits = 0.0, 0
        back = sorted((self._hub.connected() & self._known) - set(members))
        if self._coordinator.repeating:
            return  # what is repeated is finished by those who began it
        if back and self._joinable:
            self._recorder.event(MembersReturned(parties=tuple(back)))
            raise GatherAgain(f"{', '.join(back)} came back", fix="the run goes on with all")

    def _require_not_stopping(self) -> None:
        if self.stopping:
            raise OperatorStop("stopped by the operator", fix="start again to go on")

    @property
    def _known(self) -> set[str]:
        """Who is asked to take part, whenever it is there."""
        return set(self._roster.names) - self._named - self._faults.exhausted

    @property
    def _joinable(self) -> bool:
        """Whether the state of a run can be given to who does not have it."""
        return self._plan.joinable

    def _leave_out(self, members: tuple[str, ...], newcomers: tuple[str, ...]) -> None:
        """Go on without those who lack a round that nobody can give them."""
        able = frozenset(members) - set(newcomers)
        self._recorder.event(MembersExcluded(parties=newcomers))
        raise Unfinished(
            f"{', '.join(newcomers)} lack the last round, and parties of other tiers cannot give "
            "it to them",
            able=able if len(able) >= self._least else frozenset(),
            began=frozenset(),
            fix="put their folders back as they were, or start a new run with all parties",
        )

    @property
    def _least(self) -> int:
        return max(self._roster.t, self._plan.protection.min_cohort)
