"""A hospital's end of a pilot: it answers invitations by its own policy, then a session's frames.

It never runs what a coordinator sends: a plan is settings, read strictly and held against the
site's policy, and the programs are the installed package's. What is refused is told at the site,
with all rules that it breaks; across the wire goes a code.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secure_fl.coordinator.step import Rules
from secure_fl.crypto.party_keys import PartyKeys
from secure_fl.crypto.roster import Roster
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, RunError, SecureFLError, TamperError, WireError
from secure_fl.events import Event, Listener
from secure_fl.federation.ground_rules import require_ready, tasks_of
from secure_fl.federation.outcome import Outline, document_of, export_to
from secure_fl.federation.prepared import Prepared, prepare
from secure_fl.party.session import Session
from secure_fl.pilot.lobby import NONCE, run_id
from secure_fl.pilot.memory import Memory
from secure_fl.pilot.plan import read_plan, terms_of
from secure_fl.policy.rules import Plan
from secure_fl.protocol.frames import MAX_HEAD, SIGNATURE_BYTES, Envelope, Frame, digest, peek
from secure_fl.protocol.link import Link
from secure_fl.protocol.messages import Failed, Gather, Gathered, Hello, Invite, Stop
from secure_fl.runs.folder import RunFolder
from secure_fl.thresholds import require_maskable

MAX_WHY = 20_000  # characters of a refusal in the site's own log
RESTARTED = "restarted"  # the code of a site that does not know the run any more

Approve = Callable[[Plan], None]  # raises what the site's policy refuses
Records = Callable[[Plan], Silo]  # this site's records under the name that the plan uses


@dataclass(slots=True)
class Invited:
    """An invitation that was accepted, and not yet begun."""

    plan: Plan
    text: str
    link: Link
    nonce: bytes


class HospitalProcess:
    """One hospital in a pilot, for as long as its process lives."""

    def __init__(
        self,
        keys: PartyKeys,
        roster: Roster,
        approve: Approve,
        records: Records,
        folder: Path,
        listen: Listener = lambda event: None,
        ledger: Path | None = None,
        max_batch: int | None = None,
    ) -> None:
        """`ledger`: where this site's budget is kept, over all runs; None: beside them.

        `max_batch`: how many records its policy allows in memory at once.
        """
        self.name = keys.identity.name
        self._keys, self._roster = keys, roster
        self._approve, self._records = approve, records
        self._folder, self._listen = folder, listen
        self._ledger = ledger or folder / "ledger"
        self._max_batch = max_batch
        self._memory = Memory(self._ledger)
        self._invited: Invited | None = None
        self._session: Session | None = None
        self._link: Link | None = None  # the session's
        self._prepared: tuple[Prepared, Outline] | None = None
        self._runs: RunFolder | None = None
        self._run = b""
        self._last: tuple[bytes, Frame] | None = None
        self._calls: set[bytes] = set()  # invitations that were answered; one ends what runs here
        self.done = False  # the last run that began here has ended well

    def step(self, frame: Frame) -> Frame:
        """Answer one frame; what is not for this run, or not genuine, is an error."""
        if self._last is not None and frame.head == self._last[0]:
            return self._last[1]
        answer = self._answer(frame)
        self._last = frame.head, answer
        return answer

    def close(self) -> None:
        """Let go of the run's folder; what was finished stays there."""
        if self._runs is not None:
            self._runs.close()
        self._session = self._runs = self._invited = self._prepared = self._link = None

    def _answer(self, frame: Frame) -> Frame:
        head = self._verified(frame)
        if self._session is not None and head.run == self._run:
            link, answer = self._link, self._session.step(frame)
            problem = self._note_end(self._session, head)
            return answer if problem is None or link is None else link.pack(Failed(problem.code))
        if isinstance(head.message, Invite):
            return self._invite(frame, head.run)
        if self._invited is not None and head.run == self._invited.link.run:
            return self._begin(self._invited, frame)
        return self._not_known(frame, head)

    def _verified(self, frame: Frame) -> Envelope:
        """Decode a head that the coordinator signed; the link that it leads to checks the rest."""
        head = frame.head
        if not SIGNATURE_BYTES < len(head) <= MAX_HEAD + SIGNATURE_BYTES:
            raise WireError("a frame's size is out of bounds", party=self.name)
        unsigned, signature = head[:-SIGNATURE_BYTES], head[-SIGNATURE_BYTES:]
        self._roster.coordinator.verify(digest(unsigned), signature)
        try:
            return peek(head)
        except Exception as error:
            raise WireError("a frame does not decode", party=self.name) from error

    def _not_known(self, frame: Frame, head: Envelope) -> Frame:
        """A genuine frame of a run that was under way before this process began."""
        link = Link(head.run, self._keys.identity, self._roster.coordinator, asks=False)
        if isinstance(link.unpack(frame), Gather):
            raise WireError("a gathering without an invitation", party=self.name)
        return link.pack(Failed(RESTARTED))

    def _invite(self, frame: Frame, call: bytes) -> Frame:
        """Accept, or refuse with a code; another run that is under way here ends."""
        link = Link(call, self._keys.identity, self._roster.coordinator, asks=False)
        message = link.unpack(frame)
        if call in self._calls:
            raise WireError("an invitation that was answered before", party=self.name)
        self._calls.add(call)
        self.close()
        self.done = False
        try:
            self._memory.require_unforged(self._roster)
            plan = read_plan(message.plan)
            self._approve(plan)
            self._invited = Invited(plan, message.plan, link, os.urandom(NONCE))
        except Exception as error:
            return link.pack(self._refused(error))
        self._listen({"event": "invited", "party": self.name, "run": plan.run.name})
        return link.pack(Hello(self._invited.nonce))

    def _begin(self, invited: Invited, frame: Frame) -> Frame:
        """Begin the run of all who accepted."""
        message = invited.link.unpack(frame)
        if not isinstance(message, Gather):
            raise WireError("the coordinator did not say who takes part", party=self.name)
        try:
            self._check(message, invited.nonce)
            self._run = run_id(self._roster, invited.text, message.nonces)
            self._session = self._joined(invited, tuple(sorted(message.nonces)))
        except Exception as error:
            return invited.link.pack(self._refused(error))
        self._invited = None
        return invited.link.pack(Gathered(self._run))

    def _check(self, message: Gather, nonce: bytes) -> None:
        told = message.nonces.get(self.name, b"")
        strangers = set(message.nonces) - set(self._roster.names)
        if strangers or not hmac.compare_digest(told, nonce):
            raise CohortError(
                "the coordinator gathers others than the roster's members, or with another nonce "
                "than this site's",
                fix="it is not to be trusted; nothing was sent",
                party=self.name,
            )

    def _joined(self, invited: Invited, members: tuple[str, ...]) -> Session:
        plan, terms = invited.plan, terms_of(invited.plan, self._ledger)
        terms.require_sound()
        rules = rules_of_roster(self._roster, plan, members)
        silo = self._records(plan)
        require_ready(silo, terms.entry, terms.task)
        self._memory.begin(plan.run.name, plan.dataset, plan.run.seed)
        place = self._folder / plan.run.name
        resume = (place / "settings.toml").exists()
        self._runs = RunFolder.open(place, invited.text, resume=resume)
        task = tasks_of(terms.task, [silo], terms.entry)[silo.name]
        prepared = prepare(
            terms,
            silo,
            task,
            rules.threshold,
            folder=self._runs,
            listen=self._record,
            identity=self._keys.identity,
            max_batch=self._max_batch,
        )
        parties = sum(name != rules.host for name in self._roster.names)
        self._prepared = prepared, Outline(terms, rules, {silo.name: task}, (silo.name,), parties)
        self._link = Link(self._run, self._keys.identity, self._roster.coordinator, asks=False)
        return prepared.join(rules, self._keys, self._link)

    def _record(self, event: Event) -> None:
        if self._runs is not None:
            self._runs.record(event)
        self._listen(event)

    def _note_end(self, session: Session, head: Envelope) -> SecureFLError | None:
        """Tell the site's log why its session ended, if it did; and what its end lacks."""
        problem: SecureFLError | None = None
        if session.error is not None and not session.stopped:
            self._tell(session.error)
            if isinstance(session.error, TamperError) and "sum" in session.error.where:
                # Before the answer leaves: what opens and what does not tells about the key.
                self._memory.forged(self._runs.path.name if self._runs else "", self._roster)
        if session.done:
            try:
                self._finish()
                self.done = True
            except SecureFLError as error:
                problem = error
                self._tell(error)
        if session.done or session.error is not None or isinstance(head.message, Stop):
            self.close()
        return problem

    def _finish(self) -> None:
        """Write this site's result and its models; they concern its own records alone."""
        if self._prepared is None or self._runs is None:
            return
        prepared, outline = self._prepared
        site, recorder = prepared.site, prepared.site.recorder
        seconds = {"total": sum(recorder.seconds.values()), "party": {self.name: recorder.seconds}}
        accounts = {} if prepared.noise is None else {self.name: prepared.noise}
        try:
            export_to(self._runs.path, [site])
            self._runs.finish(document_of(outline, [site], seconds, accounts))
        except SecureFLError as error:
            raise error.at(party=self.name) from None
        except Exception as error:  # of the libraries that write models, each has its own
            raise RunError(
                f"the model could not be written ({type(error).__name__}: {error})",
                fix="the last round is kept: free disk space, then let the coordinator start again",
                file=self._runs.path,
                party=self.name,
            ) from error

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
        self._listen({"event": "refused", "party": self.name, "code": error.code, "why": why})


def rules_of_roster(roster: Roster, plan: Plan, members: tuple[str, ...]) -> Rules:
    """Take the run's rules from the signed roster, not from the coordinator."""
    host = roster.host.name if roster.host is not None else None
    parties, least = [name for name in members if name != host], plan.protection.min_cohort
    threshold = max(roster.t, plan.protection.threshold or 0)
    if len(parties) < max(threshold, least):
        raise CohortError(
            f"{len(parties)} parties accepted; sums need {threshold}, and no fewer than {least}",
            fix="wait for the others",
        )
    if plan.protection.mode != "none":
        require_maskable(len(parties))
    return Rules(host, least, threshold)
