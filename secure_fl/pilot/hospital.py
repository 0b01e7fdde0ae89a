"""A hospital's process in a pilot: it answers invitations by its own policy, then the session.

A coordinator cannot send programs: a plan is settings, which are read strictly and checked against
the site's policy. A refusal is logged at the site with all violated rules; the coordinator receives
only a code.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from msgspec import structs

from secure_fl.crypto.sealing.anonymous_file import require_memory_files
from secure_fl.errors import CohortError, SecureFLError, TamperError, WireError
from secure_fl.events import PlanAccepted, Refused, Waiting
from secure_fl.pilot.plan import NONCE, RESTARTED, read_plan, run_id
from secure_fl.pilot.site_run import HospitalContext, SiteRun
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Frame, Link, Received
from secure_fl.protocol.messages import Failed, Gather, Gathered, Hello, Invite, Stop
from secure_fl.runs.folder import append_event

MAX_WHY = 20_000  # characters of a refusal in the site's log

Approve = Callable[[Plan], None]  # raises if the site's policy refuses
Approved = dict[str, str]  # facts of one approval


@dataclass(slots=True)
class Invited:
    """An accepted invitation to a run that has not begun."""

    plan: Plan
    text: str
    link: Link
    nonce: bytes
    approvals: list[Approved]


class HospitalProcess:
    """One hospital in a pilot."""

    def __init__(
        self,
        context: HospitalContext,
        approve: Approve,
        *,
        approvals: Callable[[Plan], list[Approved]] = lambda plan: [],
    ) -> None:
        """`approve`: raises if the site's policy refuses a plan.

        `approvals`: returns the approvals of a plan by people at this site; raises if one is
        missing.
        """
        require_memory_files()
        self.name = context.keys.identity.name
        self._context, self._memory = context, context.memory
        self._roster, self._listen = context.roster, context.listen
        self._approve, self._approvals = approve, approvals
        self._invited: Invited | None = None
        self._under_way: SiteRun | None = None
        self._last: tuple[bytes, Frame] | None = None
        self._awaited: tuple[str, ...] | None = None  # awaited members, as logged
        self._calls: set[bytes] = set()  # answered invitations
        self.done = False  # true if the last run here has finished

    @property
    def joined(self) -> bool:
        """True during a run."""
        return self._under_way is not None

    @property
    def run(self) -> str:
        """The name of the run under way; empty without one."""
        return self._under_way.name if self._under_way is not None else ""

    def sign(self, digest: bytes) -> bytes:
        """Sign a digest with this site's key."""
        return self._context.keys.identity.sign(digest)

    def step(self, frame: Frame) -> Frame:
        """Answer one frame; a forged frame, or one of another run, is an error."""
        if self._last is not None and frame.head == self._last[0]:
            return self._last[1]
        answer = self._answer(frame)
        self._last = frame.head, answer
        return answer

    def close(self) -> None:
        """Close the run's folder."""
        if self._under_way is not None:
            self._under_way.close()
        self._under_way = self._invited = None

    def _answer(self, frame: Frame) -> Frame:
        """Verify and decode a frame once, and dispatch it."""
        received = Received.of(frame, self._roster.coordinator)
        run, message = received.envelope.run, received.envelope.message
        if self._under_way is not None and run == self._under_way.link.run:
            return self._advance(self._under_way, received)
        if isinstance(message, Invite):
            return self._invite(received)
        if self._invited is not None and run == self._invited.link.run:
            return self._begin(self._invited, received)
        return self._not_known(received)

    def _link(self, run: bytes) -> Link:
        return Link(run, self._context.keys.identity, self._roster.coordinator, asks=False)

    def _not_known(self, received: Received) -> Frame:
        """Answer an authentic frame of a run that an earlier process had joined."""
        link = self._link(received.envelope.run)
        if isinstance(link.accept(received), Gather):
            raise WireError("a gathering without an invitation", party=self.name)
        return link.pack(Failed(RESTARTED))

    def _invite(self, received: Received) -> Frame:
        """Accept or refuse an invitation; it ends another run here."""
        call = received.envelope.run
        link = self._link(call)
        message = link.accept(received)
        if call in self._calls:
            raise WireError("an invitation that was already answered", party=self.name)
        self._calls.add(call)
        before = self._invited
        self.close()
        self.done = False
        try:
            self._roster.require_current()
            self._memory.require_unforged(self._roster)
            plan = read_plan(message.plan)
            self._approve(plan)
            self._require_known(message.missing)
            approved = self._approvals(plan)
            self._invited = Invited(plan, message.plan, link, os.urandom(NONCE), approved)
        except Exception as error:
            return link.pack(self._refused(error))
        if before is None or before.text != message.plan:
            names = tuple(one["who"] for one in approved)
            run, rounds = plan.run.name, plan.rounds
            event = PlanAccepted(party=self.name, run=run, rounds=rounds, approved=names)
            self._listen(event)
        else:  # the last invitation did not lead to a run
            self._wait(plan.run.name, message.missing)
        return link.pack(Hello(self._invited.nonce))

    def _wait(self, run: str, missing: tuple[str, ...]) -> None:
        """Log awaited members once; the coordinator repeats the invitation every few seconds."""
        if self._awaited != missing:
            self._awaited = missing
            event = Waiting(party=self.name, run=run, parties=missing)
            append_event(self._context.folder / run, event)
            self._listen(event)

    def _begin(self, invited: Invited, received: Received) -> Frame:
        """Begin the run of all members that accepted."""
        message = invited.link.accept(received)
        if not isinstance(message, Gather):
            raise WireError("the coordinator did not list the members", party=self.name)
        if charged := sorted(self._memory.charged(self._roster).intersection(message.nonces)):
            error = CohortError(
                f"{charged[0]} cut short two inquiries into failed sums",
                fix="this site takes part in no run with that member under this roster. Repair "
                "that site; then a new roster (`secure-fl keys roster --after`)",
                party=charged[0],
            )
            return invited.link.pack(structs.replace(self._refused(error), about=charged[0]))
        try:
            self._check(message, invited.nonce)
            members = tuple(sorted(message.nonces))
            link = self._link(run_id(self._roster, invited.text, message.nonces))
            self._under_way = self._run(invited, members, link)
            self._under_way.note_approvals(invited.approvals)
        except Exception as error:
            return invited.link.pack(self._refused(error))
        self._invited = self._awaited = None
        return invited.link.pack(Gathered(link.run))

    def _run(self, invited: Invited, members: tuple[str, ...], link: Link) -> SiteRun:
        return SiteRun(self._context, invited.plan, invited.text, members, link)

    def _require_known(self, names: Collection[str]) -> None:
        if strangers := set(names) - set(self._roster.names):
            what = f"the coordinator names {len(strangers)} members that are not on the roster"
            fix = "do not trust this coordinator; nothing was sent"
            raise CohortError(what, fix=fix, party=self.name)

    def _check(self, message: Gather, nonce: bytes) -> None:
        received = message.nonces.get(self.name, b"")
        self._require_known(message.nonces)
        if not hmac.compare_digest(received, nonce):
            what = "the coordinator gathers with another nonce than this site's"
            fix = "do not trust this coordinator; nothing was sent"
            raise CohortError(what, fix=fix, party=self.name)

    def _advance(self, run: SiteRun, received: Received) -> Frame:
        """Let the session answer, or report that the run could not be finished here."""
        session = run.session
        answer = session.take(received)
        problem = self._note_end(run)
        ended = session.done or (session.error is not None and not session.disputes)
        if ended or isinstance(received.envelope.message, Stop):
            self.close()
        return answer if problem is None else run.link.pack(Failed(problem.code))

    def _note_end(self, run: SiteRun) -> SecureFLError | None:
        """Log why the session ended, if it did; return the error of an unfinished result."""
        session = run.session
        if session.error is not None and not session.stopped and not run.error_logged:
            if isinstance(session.error, TamperError) and "sum" in session.error.where:
                # Before the answer is sent: success or failure reveals bits of the key. If the note
                # cannot be written, there is no answer, and the next request notes it.
                self._memory.forged(run.name, self._roster)
                run.suspects = True
            run.error_logged = True
            self._log(session.error)
        if run.suspects and self._clear(run):
            run.suspects = False
        if session.done:
            try:
                run.finish()
                self.done = True
            except SecureFLError as problem:
                self._log(problem)
                return problem
        return None

    def _clear(self, run: SiteRun) -> bool:
        """Note that a failed sum is no forged one, if a member caused it."""
        session = run.session
        if session.explained or session.convicted not in ("", self._roster.coordinator.name):
            self._memory.explained(run.name, self._roster)  # no coordinator probed the key
            return True
        return bool(session.charged) and self._memory.charge(
            run.name, self._roster, session.charged
        )

    def _refused(self, error: Exception) -> Failed:
        """Log an error here, and return only its code for the coordinator."""
        if not isinstance(error, SecureFLError):  # an unexpected plan
            error = SecureFLError(f"{type(error).__name__}: {error}", party=self.name)
        self._log(error)
        self.close()
        return Failed(error.code)

    def _log(self, error: SecureFLError) -> None:
        why = str(error)[:MAX_WHY]  # it may quote the coordinator, with control characters
        why = "".join(c if c.isprintable() or c == "\n" else "?" for c in why)
        self._listen(Refused(party=self.name, code=error.code, why=why))
