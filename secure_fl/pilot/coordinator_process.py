"""The coordinator's process in a pilot: it invites members, leads the run, and gathers again.

A run that loses a member continues while enough are left. If the member returns, the run stops
after the round, is gathered again, and all resume from their checkpoints. Each gathering has its
own id, keys and counters.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from secure_fl import events
from secure_fl.coordinator.assembly import lead_run, links_to
from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.coordinator.resume import SavedRounds, Unfinished
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import (
    CohortError,
    Misconduct,
    PartyFailed,
    PlanRefused,
    SecureFLError,
    TooFewParties,
    UnusableKeys,
    WireError,
)
from secure_fl.pilot.member_faults import FaultBudget, lost_state_error
from secure_fl.pilot.plan import RESTARTED, rules_of_roster, run_id, write_plan
from secure_fl.pilot.progress import EarlierEvents
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Link
from secure_fl.protocol.messages import Failed, FromCoordinator, Gather, Gathered, Hello, Invite

LOBBY = 60.0  # seconds for an answer to an invitation or gathering
LONGEST_NAP = 15  # maximum seconds between two invitations while connections do not change


class GatherAgain(CohortError):  # noqa: N818 - it names a state
    """A member returned or was excluded: the run is gathered again after this round."""

    code = "returned"


class OperatorStop(TooFewParties):
    """The operator stopped the run after or before a round; it can be continued."""

    code = "operator"
    exit_status = 130


class HubEngine(Engine, Protocol):
    """An engine that knows who is connected."""

    def connected(self) -> frozenset[str]:
        """The members that are connected now."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Invitation of members to one plan, and agreement on the run's id."""

    hub: HubEngine
    me: Identity
    roster: Roster
    plan: Plan
    log: events.EventLog

    def links(self, run: bytes, names: Iterable[str]) -> dict[str, Link]:
        """Make the coordinator's ends of links to these members."""
        return links_to({n: self.roster.member(n).identity for n in names}, self.me, run)

    def gather(
        self, asked: Iterable[str], missing: Iterable[str] = ()
    ) -> tuple[bytes, tuple[str, ...]]:
        """Invite members; those that accept get all nonces and compute the run's id."""
        text = write_plan(self.plan)
        links = self.links(os.urandom(16), sorted(asked))
        nonces = self._accepted(links, Invite(text, tuple(sorted(missing))))
        members = tuple(sorted(nonces))
        self._require(members)
        run = run_id(self.roster, text, nonces)
        gathered = {name: links[name] for name in members}
        answers = dict(self._ask(gathered, Gather(nonces)))
        failed = {p: answer for p, answer in answers.items() if isinstance(answer, Failed)}
        for party, message in failed.items():
            self.log.event(events.Refused(parties=(party,), code=message.code))
        self._exclude(members, Counter(one.about for one in failed.values() if one.about))
        for party, answer in answers.items():
            if isinstance(answer, Failed):
                why = f"{answer.code}; with {answer.about}" if answer.about else answer.code
                what, fix = f"this site cannot begin ({why})", "see the log of that site"
                raise PlanRefused(what, fix=fix, party=party)
            if not isinstance(answer, Gathered) or answer.run != run:
                raise WireError("a site computed another run's id", party=party)
        self.log.event(events.MembersGathered(members=members))
        return run, members

    def _exclude(self, members: Collection[str], refused: Mapping[str, int]) -> None:
        """Gather again without a member with which most members take part in no run."""
        for name, count in refused.items():
            if name in members and 2 * count > len(members):
                self.log.event(events.MembersExcluded(parties=(name,)))
                raise GatherAgain("most members take part in no run with this one", party=name)

    def _accepted(self, links: Mapping[str, Link], invitation: Invite) -> dict[str, bytes]:
        """Invite members, and return the nonces of those that accept."""
        nonces: dict[str, bytes] = {}
        for party, message in self._ask(links, invitation):
            if isinstance(message, Failed):
                self.log.event(events.Refused(parties=(party,), code=message.code))
                raise PlanRefused(f"this site refuses the plan ({message.code})", party=party)
            if isinstance(message, Hello):
                nonces[party] = message.nonce
        return nonces

    def _require(self, members: tuple[str, ...]) -> None:
        """Refuse to begin with too few members, or without the host."""
        try:
            rules = rules_of_roster(self.roster, self.plan, members)
        except CohortError as error:
            raise TooFewParties(error.what, fix=error.fix) from None
        if rules.host is not None and rules.host not in members:
            raise TooFewParties("the host is not connected", fix="wait for it", party=rules.host)

    def _ask(self, links: Mapping[str, Link], message: FromCoordinator) -> list[tuple[str, object]]:
        """Send a message to all, and return the authentic answers."""
        frames = {name: link.pack(message) for name, link in links.items()}
        answers = []
        for party, frame in self.hub.exchange(frames, LOBBY):
            try:
                answers.append((party, links[party].unpack(frame)))
            except SecureFLError as error:
                self.log.event(events.MembersLost(parties=(party,), code=error.code))
        return answers


class RunLeader:
    """Leader of one plan to its end, over as many gatherings as needed."""

    def __init__(
        self,
        hub: HubEngine,
        me: Identity,
        roster: Roster,
        plan: Plan,
        recorder: events.EventLog,
        *,
        patience: float = 3600.0,
        earlier: EarlierEvents | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`earlier`: the events of the same run that earlier processes led."""
        earlier = earlier or EarlierEvents()
        self._hub, self._roster, self._plan = hub, roster, plan
        self.gathering = Gathering(hub, me, roster, plan, recorder)
        self._recorder, self._patience, self._sleep = recorder, patience, sleep
        self._waited = 0.0  # seconds since a round ended
        self._faults = FaultBudget(earlier.unsolved)
        self._saved = SavedRounds(earlier.saved)
        self._gathered: frozenset[str] = frozenset()  # members that accepted last
        self._coordinator: Coordinator | None = None  # of this gathering
        self._awaited: list[str] | None = None  # awaited members, as logged
        self._waits = 0  # since a round ended
        self._alone: frozenset[str] = frozenset()  # members that end a round without the others
        self._begun = False  # true once this gathering has begun a round
        self._links: list[dict[str, Link]] = []  # per gathering
        self._named = set(earlier.convicted)  # convicted members, which are not invited
        self.stopping = False  # set to stop after this round

    def stop(self) -> None:
        """Stop after this round; any thread or signal handler may call it."""
        self.stopping = True

    def run(self) -> None:
        """Gather and lead until the plan is done; wait for missing members."""
        try:
            while not self._tried():
                pass
        except SecureFLError as error:
            self._recorder.event(events.Stopped(code=error.code, member=error.party, final=True))
            raise

    def _tried(self) -> bool:
        """Gather and lead once; return True at the end of the run, False to try again."""
        self._coordinator = None
        self._require_not_stopping()
        self._faults.require_solved()
        try:
            self._lead(self._gather())
        except GatherAgain as error:
            self._alone = frozenset()
            self._faults.refused.update(filter(None, [error.party]))
        except Unfinished as error:  # some parties of a round that began are missing
            self._alone = error.able or self._able_without(self._saved.lost)
            if not self._alone and not self._gathered & self._faults.exhausted:
                self._faults.require_not_exhausted(error, self._gathered)
                blamed = lost_state_error(error, self._saved.lost)
                self._wait(blamed, missing=bool(error.began - self._gathered - self._named))
        except TooFewParties as error:  # a CohortError, too
            self._wait(error)
        except Misconduct as error:
            self._go_on_without(error)
        except UnusableKeys as error:  # it counts for all; at the limit they are left out
            self._recorder.event(events.MemberFailed(parties=error.members, code=error.reason))
            self._faults.failed += error.members
        except PartyFailed as error:
            if error.reason == RESTARTED:
                self._recorder.event(events.MemberRestarted(parties=error.members))
                for member in error.members:
                    self._faults.restarted(member)
            elif error.reason == TooFewParties.code:
                self._wait(error)
            elif error.reason != HIDDEN:
                raise
        else:
            return True
        return False

    def _able_without(self, lost: Collection[str]) -> frozenset[str]:
        """Return the gathered members without the lost ones, if they are enough."""
        left = self._gathered.difference(lost)
        host = self._roster.host
        enough = len(left - {host.name if host else ""}) >= self._least
        return left if left < self._gathered and enough else frozenset()

    def _go_on_without(self, error: Misconduct) -> None:
        """Stop if too few members are left without the convicted ones."""
        left = {m.name for m in self._roster.members if m.role != "host"} - self._named
        host = self._roster.host
        if len(left) < self._least or (host is not None and host.name in self._named):
            raise error

    def _note_unsolved(self, error: SecureFLError) -> None:
        """Count an inquiry without a conviction, and the member that is named for it, if any."""
        named = tuple(self._gathered.intersection([error.party]))
        if named:
            self._recorder.event(events.Withheld(parties=named))
        self._faults.unsolved.append("".join(named))

    def _wait(self, error: CohortError, *, missing: bool = True) -> None:
        """Wait a little for missing members, or raise the error if waiting cannot help."""
        parties = {m.name for m in self._roster.members if m.role != "host"}
        enough = len(parties - self._named - self._faults.exhausted) >= self._least
        if self.stopping:
            return  # the next try stops the run
        if not (missing and enough) or self._waited >= self._patience:
            raise error
        if self._awaited != (awaited := sorted(self._known - self._hub.connected())):
            here = parties & self._hub.connected()
            until = round(time.time() + self._patience - self._waited)
            more = max(0, self._least - len(here - self._named - self._faults.exhausted))
            self._recorder.event(
                events.Waiting(code=error.code, parties=tuple(awaited), more=more, until=until)
            )
            self._awaited = awaited
        self._wait_a_little()

    def _wait_a_little(self) -> None:
        """Wait longer each time, but only until a connection changes."""
        there = self._hub.connected()
        self._waits += 1
        for _ in range(min(self._waits, LONGEST_NAP)):
            self._sleep(1.0)
            self._waited += 1.0
            if self.stopping or self._waited >= self._patience or self._hub.connected() != there:
                return

    def _gather(self) -> tuple[bytes, tuple[str, ...]]:
        """Gather all connected members, or only those that can end a round without others."""
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
                if self._coordinator.inquired and not isinstance(error, Misconduct):
                    self._note_unsolved(error)
                raise
        self._recorder.event(events.Traffic(bytes=self.traffic()))

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
            "convicted": sorted(self._named),
            "bytes": self.traffic(),
            "seconds": dict(self._recorder.seconds),
        }

    def _between(self, members: tuple[str, ...], newcomers: tuple[str, ...]) -> None:
        """Between rounds, stop for the operator, or gather again after a return."""
        self._recorder.event(events.Traffic(bytes=self.traffic()))
        self._require_not_stopping()
        if exhausted := sorted(self._faults.exhausted.intersection(members)):
            self._recorder.event(events.MembersExcluded(parties=tuple(exhausted)))
            raise GatherAgain(f"the others continue without {', '.join(exhausted)}")
        if newcomers and not self._plan.joinable:
            self._leave_out(members, newcomers)
        if not self._begun:  # a silent connected member is invited again after a round
            self._begun = True
            return
        if self._coordinator is None or not self._faults.ended(self._coordinator.round):
            return  # a repeated round does not reset the limits on faults
        self._waited, self._waits = 0.0, 0
        back = sorted((self._hub.connected() & self._known) - set(members))
        if self._coordinator.repeating:
            return  # a repeated round is finished by the members that began it
        if back and self._plan.joinable:
            self._recorder.event(events.MembersReturned(parties=tuple(back)))
            raise GatherAgain(f"{', '.join(back)} returned", fix="the run continues with all")

    def _require_not_stopping(self) -> None:
        if self.stopping:
            raise OperatorStop("stopped by the operator", fix="start again to continue")

    @property
    def _known(self) -> set[str]:
        """The members that are invited when they are connected."""
        return set(self._roster.names) - self._named - self._faults.exhausted

    def _leave_out(self, members: tuple[str, ...], newcomers: tuple[str, ...]) -> None:
        """Continue without members that lack a round and cannot receive it."""
        able = frozenset(members) - set(newcomers)
        self._recorder.event(events.MembersExcluded(parties=newcomers))
        raise Unfinished(
            f"{', '.join(newcomers)} lack the last round, and cannot receive its state in this run",
            able=able if len(able) >= self._least else frozenset(),
            began=frozenset(),
            fix="restore their folders, or start a new run with all parties",
        )

    @property
    def _least(self) -> int:
        return max(self._roster.t, self._plan.protection.min_cohort)
