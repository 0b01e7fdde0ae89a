"""The coordinator's state machine: it relays, counts and adds, whatever is being trained.

It knows public metadata only (`protocol.messages` lists it). It imports neither torch, nor an
algorithm, nor a module that can use a secret key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from secure_fl.coordinator.blame import Inquest, SentSum
from secure_fl.coordinator.resume import OpenedSums, SavedRounds, Unfinished
from secure_fl.coordinator.run_steps import STEPS, FindingStep
from secure_fl.coordinator.sum_steps import CoordinatorRules, Reply, Step, StepContext
from secure_fl.crypto.blame.evidence import FalseShare, taken_by
from secure_fl.errors import (
    CohortError,
    Disagreement,
    Misconduct,
    PartyFailed,
    SecureFLError,
    TamperError,
    TooFewParties,
    UnusableKeys,
    WireError,
)
from secure_fl.events import (
    Convicted,
    EventLog,
    MemberFailed,
    MembersExcluded,
    MembersJoined,
    MembersLost,
    Refused,
    RoundsMissing,
    RoundsRepeated,
    RoundStarted,
    Stopped,
    SumDisputed,
)
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame, Link
from secure_fl.protocol.ports import OfferedKeys, TotalFor

RETURNING = ("restarted", TooFewParties.code)  # failures of parties that can take part again


class Engine(Protocol):
    """Carries frames: all an engine has to do."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver a frame to each party and yield answers as they arrive.

        A party that does not answer within `deadline` seconds is simply not yielded.
        """


@dataclass
class Exchange:
    """Answers to one reply: the step holds those that count, and this the others."""

    context: StepContext
    awaited: set[str]  # parties whose answer has not arrived
    step: Step | None = None
    rejected: dict[str, SecureFLError] = field(default_factory=dict)
    complaints: dict[str, Frame] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)  # parties that the repeated sum has not
    at_odds: list[tuple[str, str]] = field(default_factory=list)  # a party, and whose keys fail
    adding: float = 0.0  # seconds spent on adding


class Coordinator:
    """Runs one federation from `Start` to the last `Done`.

    The next frames are sent by `_exchange`, which collects the answers in a step. `_advance` then
    drops parties that did not answer as they should, and asks the step for the next reply.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        engine: Engine,
        rules: CoordinatorRules,
        total_for: TotalFor,
        recorder: EventLog,
        between: Callable[[tuple[str, ...], tuple[str, ...]], None] = lambda members, new: None,
    ) -> None:
        """Before each round `between` gets the members and the newcomers, and may stop the run."""
        self._links = dict(sorted(links.items()))
        self._engine, self._rules, self._total_for = engine, rules, total_for
        self._recorder, self._between = recorder, between
        # The run.
        self.members = tuple(self._links)
        self.round = 0
        self._saved = SavedRounds({})
        self._failed: list[str] = []  # since `take_failed` was called
        self._convicted: set[str] = set()  # parties that were shown to have broken the protocol
        self.inquired = False  # True once a party complained about a total
        # Its sums.
        self._to_repeat: tuple[OpenedSums, ...] = ()  # sums opened before a crash, the next first
        self._offered = OfferedKeys()  # keys for the next sum
        self._sent: SentSum | None = None  # the last sum whose total was sent
        self._newcomers: tuple[str, ...] = ()  # members that joined with `Begin`
        # The last exchange.
        self._last = Exchange(self._context(Reply({})), set())

    def resume(self, saved: SavedRounds, convicted: Iterable[str]) -> None:
        """Continue a run of earlier sessions; `saved` is updated with the members' reports."""
        self._saved, self._convicted = saved, set(convicted)

    @property
    def convicted(self) -> frozenset[str]:
        """Parties that were shown to have broken the protocol, in this session or earlier."""
        return frozenset(self._convicted)

    def take_failed(self) -> list[str]:
        """Return parties that failed, answered wrongly or lost a round since the last call."""
        failed, self._failed = self._failed, []
        return failed

    @property
    def repeating(self) -> bool:
        """True while sums follow that were opened before: their participants are fixed."""
        return bool(self._to_repeat)

    def run(self) -> None:
        """Exchange messages until every party is done; an error stops all parties."""
        reply: Reply | None = Reply({m: messages.Start(self.members) for m in self.members})
        try:
            while reply is not None:
                reply = self._advance(self._exchange(reply))
        except SecureFLError as error:
            if isinstance(error, Misconduct | TamperError) and error.party:
                self._name(error.party)
            self._stop(error)
            raise

    def _advance(self, step: Step) -> Reply | None:
        """Drop parties that did not answer properly; reply, and enter the round that begins."""
        self._reject_outliers(step)
        self._drop_lost(step)
        if step.newest and (forgot := self._saved.update(step.newest)):
            self._failed += forgot
            self._recorder.event(RoundsMissing(parties=tuple(forgot)))
        began = self._recorder.clock()
        reply = step.reply(self.members)
        self._recorder.spent("answer", self._recorder.clock() - began)
        if step.round is not None:
            if step.behind:
                self._recorder.event(RoundsRepeated(to=step.round, parties=tuple(step.behind)))
            self._enter_round(step, step.round)
        if step.newcomers:
            self._recorder.event(MembersJoined(round=self.round, parties=step.newcomers))
        self._offered = step.offered or self._offered
        if reply is not None and step.collects in (messages.SumInput, messages.UnmaskShares):
            self._sent = reply.sent
        return reply

    def _enter_round(self, step: Step, round: int) -> None:
        self._saved.back_to(round - 1, self.members)
        later = tuple(sums for sums in self._to_repeat if sums.round >= round)
        self._to_repeat = step.to_repeat or later
        self._between(self.members, step.newcomers)
        self.round = round
        for link in self._links.values():
            link.round = round
        self._recorder.event(RoundStarted(round=round, members=self.members))

    # --- one exchange -----------------------------------------------------------------------------

    def _context(self, reply: Reply) -> StepContext:
        self._newcomers = reply.newcomers or self._newcomers  # other steps precede the handover
        return StepContext(
            self._rules,
            self.members,
            self._total_for,
            self._offered,
            reply.waiting_sum,
            reply.inquest,
            self.convicted,
            self._newcomers,
            frozenset(self._links),
        )

    def _exchange(self, reply: Reply) -> Step:
        """Send a reply and collect the answers; returns the step that they belong to."""
        frames = {
            party: self._links[party].pack(message, reply.bulks.get(party))
            for party, message in reply.messages.items()
        }
        answers = self._last = Exchange(self._context(reply), set(frames))
        for party, frame in self._engine.exchange(frames, self._rules.deadline):
            if party in answers.awaited:  # an engine may deliver twice, and a sum must count once
                self._receive(party, frame, answers)
        self._recorder.spent("add", answers.adding)
        if not answers.complaints:
            self._require_usable_keys(answers.at_odds)
        if answers.excluded:
            parties = sorted(answers.excluded)
            self._recorder.event(MembersExcluded(round=self.round, parties=tuple(parties)))
            self.members = tuple(m for m in self.members if m not in parties)
        if answers.complaints and self._sent is not None:
            return self._begin_inquiry(answers, sorted(set(frames) - answers.awaited), self._sent)
        if answers.step is None:
            causes = (e for e in answers.rejected.values() if not isinstance(e, WireError))
            error = _common_failure(answers.rejected, len(frames), self.round) or next(causes, None)
            raise error or TooFewParties("no party answered", round=self.round or None)
        return answers.step

    def _receive(self, party: str, frame: Frame, answers: Exchange) -> None:
        """Verify one frame and pass it to the step, if it is an answer to the last reply."""
        try:
            message = self._links[party].unpack(frame)
        except SecureFLError as error:  # somebody else's frame; the party's own may still come
            self._reject(party, error)
            return
        answers.awaited.remove(party)
        if isinstance(message, messages.Failed):
            self._fail(party, message)
        elif isinstance(message, messages.Complaint):
            try:
                if self._sent is None or answers.context.inquest:
                    raise WireError("a complaint of no total of the last sum", party=party)
                self._sent.disputed(party, message, frame.bulk)
            except SecureFLError as error:
                self._reject(party, error)
                return
            if not answers.complaints:  # recorded first: the next frame may end this process
                self.inquired = True
                self._recorder.event(SumDisputed(round=self.round, parties=(party,)))
            answers.complaints[party] = frame
        elif self._to_repeat and self._left_out(party, message):
            answers.excluded.append(party)
        else:
            began = self._recorder.clock()
            answers.step = self._add(answers.step, party, message, frame, answers.context)
            answers.adding += self._recorder.clock() - began

    def _add(
        self,
        step: Step | None,
        party: str,
        message: messages.FromParty,
        frame: Frame,
        context: StepContext,
    ) -> Step | None:
        """Add one answer to the step; an answer that contradicts itself does not count."""
        if step is None:
            unmasks = isinstance(message, messages.Confirm | messages.UnmaskShares)
            finds = isinstance(message, messages.Finding)
            if unmasks == (context.waiting_sum is None) or finds == (context.inquest is None):
                other = CohortError("this party did not answer the sum it is in", party=party)
                if not self._rules.spares and context.inquest is None:
                    raise other
                self._reject(party, other)  # no member can end an inquiry by a wrong answer
                return None
        if type(message) not in STEPS:
            self._reject(party, WireError("this message belongs to no run", party=party))
            return step
        adding = step or STEPS[type(message)](context)
        try:
            _require_same_step(adding, party, message)
            adding.receive(party, message, frame.bulk)
        except (WireError, Disagreement) as error:
            spares = self._rules.spares or context.inquest is not None
            if isinstance(error, Disagreement) and not (spares and adding.heard):
                raise
            self._reject(party, error)
            if isinstance(error, Misconduct):
                self._name_for_share(party, str(error.where["owner"]), frame, context)
            return step
        adding.heard.append(party)
        adding.heads[party] = frame.head
        return adding

    def _left_out(self, party: str, message: messages.FromParty) -> bool:
        """Return True if this sum was opened before without this party: it is excluded again."""
        if not isinstance(message, messages.Declare | messages.SumInput):
            return False
        before = next((sums for sums in self._to_repeat if sums.last >= message.at), None)
        return before is not None and party not in before.parties

    # --- complaints -------------------------------------------------------------------------------

    def _begin_inquiry(self, answers: Exchange, heard: list[str], sent: SentSum) -> Step:
        """Begin an inquiry in place of the other answers; one complaint stands for all."""
        plaintiff = min(answers.complaints)
        name = self._links[plaintiff].me.name
        inquest = Inquest(sent, plaintiff, answers.complaints[plaintiff], name)
        step = FindingStep(answers.context._replace(inquest=inquest))
        step.heard += heard
        return step

    # --- parties that drop out --------------------------------------------------------------------

    def _reject(self, party: str, error: SecureFLError) -> None:
        self._last.rejected[party] = error
        self._recorder.event(Refused(round=self.round, parties=(party,), code=error.code))

    def _fail(self, party: str, message: messages.Failed) -> None:
        """Drop a party that cannot continue, if the others may; otherwise end the run."""
        inquiry = self._last.context.inquest is not None
        if message.about in self.members and message.about != party and not inquiry:
            self._last.at_odds.append((party, message.about))
            return
        code = message.code
        error = PartyFailed(
            f"this party cannot go on ({code})",
            fix="its own log says why; nothing of this step was released",
            party=party,
            round=self.round or None,
            reason=code,
        )
        disputed = inquiry or bool(self._last.complaints)
        if (not self._rules.spares or code in RETURNING) and not disputed:
            raise error  # but nobody ends an inquiry by leaving it
        self._last.rejected[party] = error
        self._failed.append(party)
        self._recorder.event(MemberFailed(round=self.round, parties=(party,), code=code))

    def _require_usable_keys(self, at_odds: Sequence[tuple[str, str]]) -> None:
        """Raise the error that names a member whose keys most refuse, or else a pair at odds.

        Most: over half of all members, since half of them may lie about one that is honest.
        """
        if not at_odds:
            return
        owner, count = Counter(owner for _, owner in at_odds).most_common(1)[0]
        if 2 * count > len(self.members):
            raise UnusableKeys((owner,), "most members cannot use what this one sent")
        pair = min(at_odds)
        raise UnusableKeys(pair, "the first of these cannot use what the second sent")

    def _reject_outliers(self, step: Step) -> None:
        """Drop parties whose values differ from most others', if the others may continue."""
        for party in sorted(step.remove_outliers()):
            other = Disagreement(
                "this party contributes different values than most parties do",
                fix="all parties must begin with the same model; compare its folder with theirs",
                party=party,
                round=self.round or None,
            )
            if not self._rules.spares:
                raise other
            self._reject(party, other)

    def _drop_lost(self, step: Step) -> None:
        """Continue without the parties that did not answer, if enough are left."""
        if step.at is not None and self._to_repeat:
            at = step.at
            self._to_repeat = tuple(sums for sums in self._to_repeat if sums.last >= at)
        rejected, heard = self._last.rejected, set(step.heard)
        unlike = {p: error for p, error in rejected.items() if type(error) is Disagreement}
        if len(unlike) >= len(heard):  # then the first answer is the odd one, or nobody knows
            odd = step.heard[:1] if len(unlike) > len(heard) else sorted({*heard, *unlike})
            error = next(iter(unlike.values()))
            error.where["party"] = " and ".join(odd)
            raise error
        lost = [m for m in self.members if m not in heard]
        if lost:
            self._recorder.event(MembersLost(round=self.round, parties=tuple(lost)))
            # Of awaited parties only others' frames were rejected, and `_fail` counts failures.
            wrong = {m for m, error in rejected.items() if not isinstance(error, PartyFailed)}
            self._failed += [m for m in lost if m in wrong - self._last.awaited]
            self.members = tuple(m for m in self.members if m in heard)
            self._require_enough(step, lost)

    def _require_enough(self, step: Step, lost: list[str]) -> None:
        """Raise the error that ends the run, if it cannot continue without the lost parties."""
        rejected, parties = self._last.rejected, [m for m in self.members if m != self._rules.host]
        why = ", ".join(f"{m} {_reason(rejected.get(m))}" for m in lost)
        inquiry = step if isinstance(step, FindingStep) else None
        if self._to_repeat and inquiry is None and not self._to_repeat[0].parties.isdisjoint(lost):
            # Stop here, before some parties agree to a sum that the others must refuse.
            raise TooFewParties(
                f"{why}, and this round can be repeated only with all who were in it",
                fix="bring them back and resume the run",
                round=self.round,
            )
        few = len(parties) < self._rules.threshold or self._rules.host in lost
        if few and inquiry is not None:
            inquiry.inquest.require_shown(*lost)
        failed = [e for m in lost if isinstance(e := rejected.get(m), PartyFailed)]
        if failed and (few or step.collects is messages.Done):  # at the end nothing was lost by it
            count = len(step.heard) + len(lost)
            raise _common_failure(rejected, count, self.round) or failed[0]
        if few:
            raise TooFewParties(
                f"{len(parties)} parties are left ({why}); "
                f"the threshold is {self._rules.threshold}",
                fix="bring them back and resume the run",
                round=self.round or None,
            )

    def _name_for_share(self, party: str, owner: str, frame: Frame, context: StepContext) -> None:
        """Record the evidence that a party revealed a different share than it was dealt."""
        assert context.waiting_sum is not None  # noqa: S101 - shares belong to a sum
        taken = taken_by(party, context.offered.offers, self._rules.host)
        upload = context.waiting_sum.heads[party]
        self._name(party, FalseShare(owner, taken, upload, frame.head).text())

    def _name(self, party: str, evidence: str | None = None) -> None:
        self._convicted.add(party)
        event = Convicted(round=self.round, parties=(party,), evidence=evidence)
        self._recorder.event(event)

    def _stop(self, error: SecureFLError) -> None:
        party = error.party
        statements = error.statements if isinstance(error, Unfinished) else ()
        message = messages.Stop(error.code, party if party in self._links else "", statements)
        frames = {m: self._links[m].pack(message) for m in self.members}
        for _ in self._engine.exchange(frames, self._rules.deadline):
            pass  # the answers carry nothing: parties close their programs
        self._recorder.event(Stopped(code=error.code, member=party))


def _require_same_step(step: Step, party: str, message: messages.FromParty) -> None:
    """Refuse an answer that belongs to another step, or another sum, than the others' answers."""
    if type(message) is not step.collects:
        kinds = type(message).__name__, step.collects.__name__
        raise Disagreement(
            f"this party sent {kinds[0]} where others sent {kinds[1]}",
            fix="all parties must run the same algorithm with the same settings",
            party=party,
        )
    if isinstance(message, messages.Declare | messages.SumInput):
        if step.at not in (None, message.at):
            raise Disagreement("the parties are in different sums", party=party)
        step.at = message.at


def _reason(rejected: SecureFLError | None) -> str:
    return "did not answer" if rejected is None else f"sent an invalid answer ({rejected.what})"


def _common_failure(
    rejected: Mapping[str, SecureFLError], asked: int, round: int
) -> PartyFailed | None:
    """Return an error that blames no party, if most parties failed for the same reason.

    Then the opened sum is the cause. The party that spoiled it may claim that it can continue, and
    the first one to report the failure is honest.
    """
    failed = [e for e in rejected.values() if isinstance(e, PartyFailed)]
    for code, count in Counter(e.reason for e in failed).most_common(1):
        if 1 < count and asked < 2 * count:
            return PartyFailed(
                f"{count} of {asked} parties cannot go on, all for the same reason ({code})",
                fix="their own logs say why; the opened sum cannot be used, and since it was "
                "sealed, nobody can tell which party spoiled it",
                round=round or None,
                reason=code,
                members=tuple(sorted(e.party for e in failed if e.reason == code)),
            )
    return None
