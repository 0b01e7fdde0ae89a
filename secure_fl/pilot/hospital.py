"""A hospital's end of a pilot: it answers invitations by its own policy, then a session's frames.

It never runs what a coordinator sends: a plan is settings, read strictly and held against the
site's policy, and the programs are the installed package's. What is refused is told at the site,
with all rules that it breaks; across the wire goes a code.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from secure_fl.errors import CohortError, QuestionRefused, SecureFLError, TamperError, WireError
from secure_fl.events import PlanAccepted, Refused, Waiting
from secure_fl.pilot.plan import read_proposal
from secure_fl.pilot.run_id import NONCE, RESTARTED, run_id
from secure_fl.pilot.site_run import HospitalContext, SiteRun
from secure_fl.policy.questions import Proposal, QuestionPlan
from secure_fl.policy.rules import Plan
from secure_fl.protocol.frames import Frame, Link, Received
from secure_fl.protocol.messages import Failed, Gather, Gathered, Hello, Invite, Stop
from secure_fl.runs.folder import append_event

if TYPE_CHECKING:  # tables of records, and what reads them, are loaded by the first question
    from secure_fl.pilot.site_questions import SiteQuestions
    from secure_fl.statistics.site import StatisticsSite

Run: TypeAlias = "SiteRun | SiteQuestions"
MAX_WHY = 20_000  # characters of a refusal in the site's own log

Approve = Callable[[Plan], None]  # raises what the site's policy refuses
Approved = dict[str, str]  # who has approved a plan, when, and which


class Asked(NamedTuple):
    """What a hospital does with questions."""

    approve: Callable[[QuestionPlan], None]  # raises what the site's policy refuses
    site: Callable[[QuestionPlan], StatisticsSite]  # its records, rules and note


@dataclass(slots=True)
class Invited:
    """An invitation that was accepted, and not yet begun."""

    plan: Proposal
    text: str
    link: Link
    nonce: bytes
    approvals: list[Approved]


class HospitalProcess:
    """One hospital in a pilot, for as long as its process lives."""

    def __init__(
        self,
        context: HospitalContext,
        approve: Approve,
        *,
        asked: Asked | None = None,
        approvals: Callable[[Proposal], list[Approved]] = lambda plan: [],
    ) -> None:
        """`approve`: raises if the site's policy refuses a plan. `asked`: answers questions.

        `approvals`: returns the approvals of a plan by people at this site; raises if one is
        missing.
        """
        self.name = context.keys.identity.name
        self._context, self._memory = context, context.memory
        self._roster, self._listen = context.roster, context.listen
        self._approve, self._asked, self._approvals = approve, asked, approvals
        self._invited: Invited | None = None
        self._under_way: Run | None = None
        self._last: tuple[bytes, Frame] | None = None
        self._awaited: tuple[str, ...] | None = None  # for whom a run waits, as was noted
        self._calls: set[bytes] = set()  # invitations that were answered; one ends what runs here
        self.done = False  # the last run that began here has ended well

    @property
    def joined(self) -> bool:
        """Whether a run is under way here."""
        return self._under_way is not None

    def step(self, frame: Frame) -> Frame:
        """Answer one frame; what is not for this run, or not genuine, is an error."""
        if self._last is not None and frame.head == self._last[0]:
            return self._last[1]
        answer = self._answer(frame)
        self._last = frame.head, answer
        return answer

    def close(self) -> None:
        """Let go of the run's folder; what was finished stays there."""
        if self._under_way is not None:
            self._under_way.close()
        self._under_way = self._invited = None

    def _answer(self, frame: Frame) -> Frame:
        """Verify and decode a frame, once, and let whom it is for look at it."""
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
        """A genuine frame of a run that was under way before this process began."""
        link = self._link(received.envelope.run)
        if isinstance(link.accept(received), Gather):
            raise WireError("a gathering without an invitation", party=self.name)
        return link.pack(Failed(RESTARTED))

    def _invite(self, received: Received) -> Frame:
        """Accept, or refuse with a code; another run that is under way here ends."""
        call = received.envelope.run
        link = self._link(call)
        message = link.accept(received)
        if call in self._calls:
            raise WireError("an invitation that was answered before", party=self.name)
        self._calls.add(call)
        before = self._invited
        self.close()
        self.done = False
        try:
            self._memory.require_unforged(self._roster)
            plan = read_proposal(message.plan)
            if isinstance(plan, Plan):
                self._approve(plan)
            else:
                self._questions.approve(plan)
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
        else:  # nothing came of the last invitation
            self._wait(plan.run.name, message.missing)
        return link.pack(Hello(self._invited.nonce))

    def _wait(self, run: str, missing: tuple[str, ...]) -> None:
        """Note for whom the run waits, once; the coordinator asks again every few seconds."""
        if self._awaited != missing:
            self._awaited = missing
            event = Waiting(party=self.name, run=run, parties=missing)
            append_event(self._context.folder / run, event)
            self._listen(event)

    def _begin(self, invited: Invited, received: Received) -> Frame:
        """Begin the run of all who accepted."""
        message = invited.link.accept(received)
        if not isinstance(message, Gather):
            raise WireError("the coordinator did not say who takes part", party=self.name)
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

    @property
    def _questions(self) -> Asked:
        if self._asked is None:
            raise QuestionRefused("this site answers no questions", party=self.name)
        return self._asked

    def _run(self, invited: Invited, members: tuple[str, ...], link: Link) -> Run:
        plan = invited.plan
        if isinstance(plan, Plan):
            return SiteRun(self._context, plan, invited.text, members, link)
        from secure_fl.pilot.site_questions import SiteQuestions

        site = self._questions.site(plan)
        return SiteQuestions(self._context, plan, invited.text, members, link, site)

    def _require_known(self, names: Collection[str]) -> None:
        if strangers := set(names) - set(self._roster.names):
            raise CohortError(
                f"the coordinator names {len(strangers)} who are not on the roster",
                fix="it is not to be trusted; nothing was sent",
                party=self.name,
            )

    def _check(self, message: Gather, nonce: bytes) -> None:
        told = message.nonces.get(self.name, b"")
        self._require_known(message.nonces)
        if not hmac.compare_digest(told, nonce):
            raise CohortError(
                "the coordinator gathers with another nonce than this site's",
                fix="it is not to be trusted; nothing was sent",
                party=self.name,
            )

    def _advance(self, run: Run, received: Received) -> Frame:
        """Let the session answer; where the run ends here with less than it should, say so."""
        session = run.session
        answer = session.take(received)
        problem = self._note_end(run)
        ended = session.done or (session.error is not None and not session.disputes)
        if ended or isinstance(received.envelope.message, Stop):
            self.close()
        return answer if problem is None else run.link.pack(Failed(problem.code))

    def _note_end(self, run: Run) -> SecureFLError | None:
        """Tell the site's log why its session ended, if it did; and what its end lacks."""
        session = run.session
        if session.error is not None and not session.stopped and not run.told:
            run.told = True
            self._tell(session.error)
            if isinstance(session.error, TamperError) and "sum" in session.error.where:
                # Before the answer leaves: what opens and what does not tells about the key.
                self._memory.forged(run.name, self._roster)
        if session.convicted not in ("", self._roster.coordinator.name) and not run.cleared:
            run.cleared = True
            if run.told:  # a member did it, who has these keys: nobody learns them by it
                self._memory.explained(run.name, self._roster)
        if session.done:
            try:
                run.finish()
                self.done = True
            except SecureFLError as problem:
                self._tell(problem)
                return problem
        return None

    def _refused(self, error: Exception) -> Failed:
        """The text stays here; the coordinator gets the code."""
        if not isinstance(error, SecureFLError):  # of a plan that nobody here foresaw
            error = SecureFLError(f"{type(error).__name__}: {error}", party=self.name)
        self._tell(error)
        self.close()
        return Failed(error.code)

    def _tell(self, error: SecureFLError) -> None:
        why = str(error)[:MAX_WHY]  # it may quote what the coordinator wrote, control codes too
        why = "".join(c if c.isprintable() or c == "\n" else "?" for c in why)
        self._listen(Refused(party=self.name, code=error.code, why=why))
