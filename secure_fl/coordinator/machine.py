"""The blind sum machine: it relays, counts and adds, whatever is being trained.

It knows public metadata only (`protocol.messages` lists it) and imports neither torch, nor an
algorithm, nor anything that could use a secret key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from secure_fl.coordinator.blame import FindingStep, Inquest
from secure_fl.coordinator.resume import OpenedSums, Saved, Unfinished
from secure_fl.coordinator.run_steps import STEPS
from secure_fl.coordinator.sum_steps import Reply, Rules, Sent, Step, StepContext
from secure_fl.crypto.blame.evidence import FalseShare
from secure_fl.errors import (
    CohortError,
    Disagreement,
    Misconduct,
    PartyFailed,
    SecureFLError,
    TamperError,
    TooFewParties,
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
from secure_fl.protocol.frames import Frame, Link, peek
from secure_fl.protocol.ports import Offered, TotalFor

COMES_BACK = ("restarted", TooFewParties.code)  # of processes that began anew, or wait for others


class Engine(Protocol):
    """Carries frames: all an engine has to do."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver a frame to each party and yield answers as they arrive.

        A party that does not answer within `deadline` seconds is simply not yielded.
        """


class Coordinator:
    """Runs one federation from `Start` to the last `Done`."""

    def __init__(
        self,
        links: Mapping[str, Link],
        engine: Engine,
        rules: Rules,
        total_for: TotalFor,
        recorder: EventLog,
        between: Callable[[tuple[str, ...], tuple[str, ...]], None] = lambda members, new: None,
    ) -> None:
        """Before each round `between` gets the members and the newcomers, and may stop the run."""
        self._between = between
        self._links = dict(sorted(links.items()))
        self._engine, self._rules, self._total_for = engine, rules, total_for
        self._recorder = recorder
        self.members = tuple(self._links)
        self.round = 0
        self._to_repeat: tuple[OpenedSums, ...] = ()  # opened before a crash, the next one first
        self._bad: dict[str, SecureFLError] = {}  # answers of this exchange that do not count
        self._offered = Offered()
        self._sent: Sent | None = None  # of the last sum
        self.failed: list[str] = []  # who cannot go on, contradicts the others, or forgets
        self.saved = Saved({})
        self.named: set[str] = set()  # who is shown to have broken the protocol
        self.inquired = False  # whether somebody complained of a sum

    @property
    def repeating(self) -> bool:
        """Whether sums follow that were opened before: over whom is settled."""
        return bool(self._to_repeat)

    def run(self) -> None:
        """Ask, collect, answer, until every party is done; a failure stops everybody."""
        reply: Reply | None = Reply({m: messages.Start(self.members) for m in self.members})
        try:
            while reply is not None:
                step = self._exchange(reply)
                self._set_apart(step)
                self._drop(step)
                if step.newest:
                    self._note_forgetful(self.saved.said(step.newest))
                began = self._recorder.clock()
                reply = step.reply(self.members)
                self._recorder.spent("answer", self._recorder.clock() - began)
                if step.round is not None:
                    if step.lacking:
                        lacking = tuple(step.lacking)
                        self._recorder.event(RoundsRepeated(to=step.round, parties=lacking))
                    self.saved.back_to(step.round - 1, self.members)
                    later = (sums for sums in self._to_repeat if sums.round >= step.round)
                    self._to_repeat = step.to_repeat or tuple(later)
                    self._between(self.members, step.newcomers)
                    self._enter(step.round)
                if step.newcomers:
                    self._recorder.event(MembersJoined(round=self.round, parties=step.newcomers))
                self._offered = step.offered or self._offered
                if reply is not None and step.takes in (messages.SumInput, messages.UnmaskShares):
                    self._sent = reply.sent
        except SecureFLError as error:
            if isinstance(error, Misconduct | TamperError) and "party" in error.where:
                self._name(str(error.where["party"]))
            self._stop(error)
            raise

    def _note_forgetful(self, parties: list[str]) -> None:
        if parties:
            self.failed += parties
            self._recorder.event(RoundsMissing(parties=tuple(parties)))

    def _enter(self, round: int) -> None:
        self.round = round
        for link in self._links.values():
            link.round = round
        self._recorder.event(RoundStarted(round=round, members=self.members))

    def _exchange(self, reply: Reply) -> Step:
        frames = {
            party: self._links[party].pack(message, reply.bulks.get(party))
            for party, message in reply.messages.items()
        }
        context = StepContext(
            self._rules,
            self.members,
            self._total_for,
            self._offered,
            reply.waiting_sum,
            reply.inquest,
            frozenset(self.named),
        )
        complaints: dict[str, Frame] = {}
        step: Step | None = None
        awaited, left, clock, adding = set(frames), list[str](), self._recorder.clock, 0.0
        self._bad.clear()
        for party, frame in self._engine.exchange(frames, self._rules.deadline):
            if party not in awaited:
                continue  # an engine may deliver twice; a sum that counts twice is wrong
            try:
                message = self._links[party].unpack(frame)
            except SecureFLError as error:  # not its answer: that one may still come
                self._refuse(party, error)
                continue
            awaited.remove(party)
            if isinstance(message, messages.Failed):
                self._fail(party, message.code)
                continue
            if isinstance(message, messages.Complaint):
                if self._may_complain(party, message, context):
                    if not complaints:  # now: what comes next may end this, or this process
                        self.inquired = True
                        self._recorder.event(SumDisputed(round=self.round, parties=(party,)))
                    complaints[party] = frame
                else:
                    self._refuse(party, WireError("a complaint of no total of the last sum"))
                continue
            if self._to_repeat and self._left_out(party, message):
                left.append(party)
                continue
            began = clock()
            step = self._add(step, party, message, frame, context)
            adding += clock() - began
        self._recorder.spent("add", adding)
        if left:
            self._recorder.event(MembersExcluded(round=self.round, parties=tuple(sorted(left))))
            self.members = tuple(m for m in self.members if m not in left)
        if complaints and self._sent is not None:
            heard = set(reply.messages) - awaited - self._bad.keys()
            return self._look_into(complaints, sorted(heard), self._sent, context)
        if step is None:
            why = next((e for e in self._bad.values() if not isinstance(e, WireError)), None)
            why = failed_alike(self._bad, len(reply.messages), self.round) or why
            raise why or TooFewParties("no party answered", round=self.round or None)
        return step

    def _fail(self, party: str, code: str) -> None:
        """Lose who cannot go on, where the others may; else the run ends."""
        error = PartyFailed(
            f"this party cannot go on ({code})",
            fix="its own log says why; nothing of this step was released",
            party=party,
            round=self.round or None,
            reason=code,
        )
        if not self._rules.spares or code in COMES_BACK:
            raise error
        self._bad[party] = error
        self.failed.append(party)
        self._recorder.event(MemberFailed(round=self.round, parties=(party,), code=code))

    def _may_complain(
        self, party: str, complaint: messages.Complaint, context: StepContext
    ) -> bool:
        """Whether it is about the last sum: shown with uploads of another, it would convict us."""
        if self._sent is None or party not in self._sent.heads or context.inquest is not None:
            return False
        try:
            total, given = peek(complaint.total).message, peek(self._sent.heads[party]).message
        except (ValueError, msgspec.MsgspecError):
            return False
        return getattr(total, "sum", None) == getattr(given, "sum", 0)

    def _look_into(
        self, complaints: Mapping[str, Frame], heard: list[str], sent: Sent, context: StepContext
    ) -> Step:
        """Begin an inquiry in place of what others answered: of one complaint, all are alike."""
        plaintiff = min(complaints)
        inquest = Inquest(sent, plaintiff, complaints[plaintiff], self._links[plaintiff].me.name)
        step = FindingStep(context._replace(inquest=inquest))
        step.heard += heard
        return step

    def _add(
        self,
        step: Step | None,
        party: str,
        message: messages.FromParty,
        frame: Frame,
        context: StepContext,
    ) -> Step | None:
        """Take one answer; one that contradicts itself is not added, and does not count."""
        if step is None:
            unmasks = isinstance(message, messages.Confirm | messages.UnmaskShares)
            finds = isinstance(message, messages.Finding)
            if unmasks == (context.waiting_sum is None) or finds == (context.inquest is None):
                other = CohortError("this party did not answer the sum it is in", party=party)
                if not self._rules.spares:
                    raise other
                self._refuse(party, other)
                return None
        taking = step or STEPS[type(message)](context)
        try:
            self._require_alike(taking, party, message)
            taking.take(party, message, frame.bulk)
        except (WireError, Disagreement) as error:
            if isinstance(error, Disagreement) and not (self._rules.spares and taking.heard):
                raise
            self._refuse(party, error)
            if isinstance(error, Misconduct):
                self._name_for_share(party, str(error.where["owner"]), frame)
            return step
        taking.heard.append(party)
        taking.heads[party] = frame.head
        return taking

    def _require_alike(self, step: Step, party: str, message: messages.FromParty) -> None:
        """Refuse what belongs to another step, or to another sum, than the others' answers."""
        if type(message) is not step.takes:
            raise Disagreement(
                f"this party sent {type(message).__name__} where others sent {step.takes.__name__}",
                fix="all parties must run the same algorithm with the same settings",
                party=party,
            )
        if isinstance(message, messages.Declare | messages.SumInput):
            if step.at not in (None, message.at):
                raise Disagreement("the parties are in different sums", party=party)
            step.at = message.at

    def _refuse(self, party: str, error: SecureFLError) -> None:
        self._bad[party] = error
        self._recorder.event(Refused(round=self.round, parties=(party,), code=error.code))

    def _name_for_share(self, party: str, owner: str, frame: Frame) -> None:
        """Keep what shows that a party revealed another share than it was dealt; go on without."""
        offer = self._offered.offers[owner]
        bound, deal = offer.public + offer.seed, offer.deals[party]
        evidence = FalseShare(owner, bound, deal, frame.head).text()
        self._name(party, evidence)

    def _name(self, party: str, evidence: str | None = None) -> None:
        self.named.add(party)
        self._recorder.event(Convicted(round=self.round, parties=(party,), evidence=evidence))

    def _left_out(self, party: str, message: messages.FromParty) -> bool:
        """Whether this sum was opened before, and without this party: it was lost, and is again."""
        if not isinstance(message, messages.Declare | messages.SumInput):
            return False
        before = next((sums for sums in self._to_repeat if sums.last >= message.at), None)
        return before is not None and party not in before.parties

    def _set_apart(self, step: Step) -> None:
        """Lose who sums up other values than most, where the others may go on; else name it."""
        for party in sorted(step.set_apart()):
            other = Disagreement(
                "this party sums up other values than most parties do",
                fix="all parties must begin with the same model; compare its folder with theirs",
                party=party,
                round=self.round or None,
            )
            if not self._rules.spares:
                raise other
            self._refuse(party, other)

    def _drop(self, step: Step) -> None:
        """Go on without those who did not answer, if enough are left."""
        if step.at is not None and self._to_repeat:
            at = step.at
            self._to_repeat = tuple(sums for sums in self._to_repeat if sums.last >= at)
        heard, unlike = set(step.heard), [e for e in self._bad.values() if type(e) is Disagreement]
        if len(unlike) >= len(heard):
            if len(step.heard) == 1 < len(unlike):  # who is alone with what it says came first
                unlike[0].where["party"] = step.heard[0]
            raise unlike[0]
        lost = [m for m in self.members if m not in heard]
        if not lost:
            return
        self._recorder.event(MembersLost(round=self.round, parties=tuple(lost)))
        self.failed += [m for m in lost if type(self._bad.get(m)) is Disagreement]
        self.members = tuple(m for m in self.members if m in heard)
        parties = [m for m in self.members if m != self._rules.host]
        why = ", ".join(f"{m} {self._silence(m)}" for m in lost)
        repeats = self._to_repeat and not isinstance(step, FindingStep)  # which ends the round
        if repeats and not self._to_repeat[0].parties.isdisjoint(lost):
            # Before some agree to a sum that others must refuse.
            raise TooFewParties(
                f"{why}, and this round can be repeated only with all who were in it",
                fix="bring them back and resume the run",
                round=self.round,
            )
        few = len(parties) < self._rules.threshold or self._rules.host in lost
        failed = [e for m in lost if isinstance(e := self._bad.get(m), PartyFailed)]
        if failed and (few or step.takes is messages.Done):  # the others have all they trained for
            raise failed_alike(self._bad, len(heard) + len(lost), self.round) or failed[0]
        if few:
            if isinstance(step, FindingStep):
                step.inquest.require_shown()
            raise TooFewParties(
                f"{len(parties)} parties are left ({why}); "
                f"the threshold is {self._rules.threshold}",
                fix="bring them back and resume the run",
                round=self.round or None,
            )

    def _silence(self, party: str) -> str:
        bad = self._bad.get(party)
        return "did not answer" if bad is None else f"sent what does not count ({bad.what})"

    def _stop(self, error: SecureFLError) -> None:
        party = str(error.where.get("party", ""))
        told = error.told if isinstance(error, Unfinished) else ()
        said = messages.Stop(error.code, party if party in self._links else "", told)
        stop = {m: self._links[m].pack(said) for m in self.members}
        for _ in self._engine.exchange(stop, self._rules.deadline):
            pass  # parties close their programs; there is nothing left to say
        self._recorder.event(Stopped(code=error.code, member=party))


def failed_alike(
    answers: Mapping[str, SecureFLError], asked: int, round: int
) -> PartyFailed | None:
    """Name nobody where most cannot go on for one reason: what was summed is the cause.

    Whoever gave it may say that it can go on, and who says first that it cannot is honest.
    """
    codes = Counter(e.reason for e in answers.values() if isinstance(e, PartyFailed))
    for code, count in codes.most_common(1):
        if 1 < count and asked < 2 * count:
            return PartyFailed(
                f"{count} of {asked} parties cannot go on, all for the same reason ({code})",
                fix="their own logs say why; what was summed cannot be used, and as it was "
                "sealed, nobody can tell who gave what",
                round=round or None,
                reason=code,
            )
    return None
