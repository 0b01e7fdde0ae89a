"""The engine's end of an exchange: a `Session` drives one party program, frame by frame.

The engine gives `Session.step` a frame from the coordinator and carries back the answer. A repeated
frame gets the same answer again, so an engine may deliver it twice. `party.exchange` is the
program's end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeAlias

from secure_fl.errors import (
    DISTRUST,
    CohortError,
    Disagreement,
    PeerKeysError,
    SecureFLError,
    TamperError,
)
from secure_fl.events import Convicted, Crossing, EventLog
from secure_fl.party.cohort import Cohort
from secure_fl.party.context import Checkpoints, Request
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Bulk, Frame, Link, Received
from secure_fl.protocol.messages import FromCoordinator, FromParty
from secure_fl.protocol.ports import SumInquiry, SumLayer

Program: TypeAlias = Callable[[Cohort], Coroutine[Request, Any, None]]
MOST_LOOKS = 256  # frames of inquiries: more than a sum has, and each costs as much as a sum


class Session:
    """One party's side of a run."""

    def __init__(
        self,
        program: Program,
        cohort: Cohort,
        link: Link,
        *,
        sums: SumLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        surroundings: Callable[[], AbstractContextManager[None]] = nullcontext,
        goes_back: bool = True,
    ) -> None:
        """`goes_back`: True if rounds before the last two may be repeated."""
        self.party = cohort.me
        self.error: SecureFLError | None = None
        self.done = False
        self.stopped = False  # by the coordinator, before an error occurred here
        self._begun = False
        self._program, self._cohort, self._link = program, cohort, link
        self._sums, self._checkpoints, self._recorder = sums, checkpoints, recorder
        self._surroundings, self._goes_back = surroundings, goes_back
        self._running: Coroutine[Request, Any, None] | None = None
        self._last: tuple[bytes, Frame] | None = None
        self.convicted = ""  # the member that spoiled a sum, by this party's own evidence
        self._inquiry: SumInquiry | None = None  # into the last failed sum
        self._lists = b""  # the coordinator's commitment to the uploads of the last sum
        self._complained = self._at_odds = self._over = False
        self.charged = ""  # the member that the coordinator names for an inquiry without a verdict
        self._looks = 0  # number of frames that inquiries examined
        self._survivor_log = frames.SurvivorLog(link.run)

    def step(self, frame: Frame) -> Frame:
        """Answer one frame of the coordinator."""
        return self.take(Received.of(frame, self._link.peer))

    def take(self, received: Received) -> Frame:
        """Answer one frame whose signature was verified on arrival."""
        frame, head = received.frame, frames.digest(received.frame.head)
        if self._last is not None and head == self._last[0]:
            return self._last[1]
        message = self._link.accept(received)
        try:
            self._note("in", message, frame, head)
            if isinstance(message, messages.Examine):
                answer, bulk = self._examine(message, frame)
            else:
                answer, bulk = self._answer(message, frame)
            reply = self._link.pack(answer, Bulk.of(bulk))
            self._note("out", answer, reply, frames.digest(reply.head))
        except Exception as error:  # such as a full disk: without an answer, all would wait
            problem = self._placed(error)
            self.error = self.error or problem
            reply = self._link.pack(messages.Failed(problem.code))
        self._last = (head, reply)
        return reply

    @property
    def explained(self) -> bool:
        """True if an inquiry showed that the coordinator changed nothing in the failed sum."""
        return self._inquiry is not None and self._inquiry.explained

    @property
    def disputes(self) -> bool:
        """True if this party disputes a sum or a member's keys, until the coordinator stops.

        It then can still take part in an inquiry, also into another member's complaint.
        """
        return (self._complained or self._at_odds) and not self._over

    def _examine(self, message: messages.Examine, frame: Frame) -> tuple[FromParty, bytes]:
        """Examine a frame of a failed sum, which the coordinator forwards."""
        culprit, self._looks = "", self._looks + 1
        try:
            if self._inquiry is None:
                self._inquiry = self._sums.inquiry(self._link.peer, self._lists)
            if self._inquiry is None or self._over:
                return messages.Failed(CohortError.code), b""
            if message.who and self._looks <= MOST_LOOKS:
                culprit = self._inquiry.look(frame)
        except Exception as error:
            problem = self._placed(error)
            self.error = self.error or problem
            return messages.Failed(problem.code), b""
        if culprit and not self.convicted:
            self.convicted = culprit
            self._recorder.event(Convicted(round=self._recorder.round, parties=(culprit,)))
            if (case := self._inquiry.case()) is not None:
                self._checkpoints.convict(culprit, case.to_bytes())
        asked = message.show == self.party
        return messages.Finding(culprit), self._sums.upload(message.sum) if asked else b""

    def _answer(self, message: Any, frame: Frame) -> tuple[FromParty, bytes]:
        try:
            with self._surroundings():
                answer = self._advance(message, frame.bulk)
            if isinstance(message, messages.Unmask):  # one that was refused commits to nothing
                self._lists = frame.head
            return answer
        except Exception as error:
            problem = self._placed(error)
        self.error = self.error or problem  # the first is the cause; later ones only follow
        place = problem.where.get("segment")  # of a total that fails its check
        if isinstance(problem, TamperError) and isinstance(place, int):
            self._inquiry = self._sums.inquiry(self._link.peer, self._lists)
            if self._inquiry is not None:
                self._complained = True
                return messages.Complaint(frame.head, place), frame.bulk
        names = isinstance(problem, PeerKeysError | Disagreement)
        about = (problem.party or "") if names and problem.party != self.party else ""
        self._at_odds = bool(about)
        return messages.Failed(problem.code, about), b""  # the text may be private

    def _placed(self, error: Exception) -> SecureFLError:
        """Return an error with its place; an unexpected one becomes the cause of one of ours."""
        problem = error
        if not isinstance(problem, SecureFLError):
            problem = SecureFLError(f"{type(error).__name__}: {error}")
            problem.__cause__ = error
        return problem.at(party=self.party, round=self._recorder.round or None)

    def _advance(self, message: FromCoordinator, data: bytes) -> tuple[FromParty, bytes]:
        """Start or resume the program, until its next request."""
        answer: tuple[FromCoordinator, bytes] | None = (message, data)
        match message:
            case messages.Stop():
                self._stop(message)
            case messages.Start(members=members) if not self._cohort.members:
                self._cohort.begin(members)
                kept = self._checkpoints
                offer = self._sums.next_keys(members, next(reversed(kept.statements()), None))
                return messages.Ready(kept.available(), offer, kept.opened()), b""
            case messages.Begin() if not self._begun:
                self._begin(message)
                answer = None
            case messages.Unmask():
                self._checkpoints.keep_statement(
                    self._survivor_log.verify(self._link.peer, message)
                )
        if self._running is None:
            raise CohortError("a message arrived before the run began or after it ended")
        try:
            return self._running.send(answer)
        except StopIteration:
            self._running, self.done = None, True
            return messages.Done(), b""
        except BaseException:
            self._running = None
            raise

    def _begin(self, message: messages.Begin) -> None:
        """Check the members, the round to continue after and all keys; start the program."""
        self._begun = True  # once: other sums of the same inputs reveal one
        self._cohort.confirm_members(message.members)
        self._require_near(message.after_round)
        self._cohort.resume_after = message.after_round
        self._cohort.newcomers = self._newcomers(message)
        self._sums.accept(message.offers, message.members)
        self._require_one_story(frames.statements_of(message.offers.values()))
        self._running = self._program(self._cohort)

    def _stop(self, message: messages.Stop) -> NoReturn:
        """Close the program, and raise the reason that the coordinator gives."""
        self._close()
        party, others = message.party, set(self._cohort.roster) - {self.party}
        self.charged = party if self._complained and party in others else ""
        self._over = True
        self._require_one_story(message.statements)
        self.stopped = self.error is None
        raise CohortError(
            f"the coordinator stopped the run ({message.code})", party=party or self.party
        )

    def _require_near(self, after: int) -> None:
        """Refuse to repeat finished rounds unasked: each spends privacy budget again."""
        newest = max(self._checkpoints.available(), default=0)
        if newest - after > 1 and not self._goes_back:
            raise CohortError(
                f"the run would go back to round {after}, and this party has round {newest}: "
                "another party lost its later rounds, or the coordinator claims so",
                fix="ask which party lost its rounds; if one did, restart this site with --go-back "
                "(`secure-fl join`, `secure-fl serve`) or `join(..., goes_back=True)` in its "
                "script; nothing was deleted",
                field="after_round",
            )

    def _require_one_story(self, others: Sequence[messages.SurvivorStatement]) -> None:
        """Convict a coordinator that signed different lists for two members."""
        proof = frames.find_equivocation(self._checkpoints.statements(), others, self._link.peer)
        if proof is None:
            return
        self.convicted = proof.accused
        self._recorder.event(Convicted(round=self._recorder.round, parties=(proof.accused,)))
        self._checkpoints.convict(proof.accused, proof.to_bytes())
        raise TamperError(
            "the coordinator told two members different things about who was in a sum, and signed "
            "both",
            party=proof.accused,
            reason="equivocation",
        )

    def _newcomers(self, message: messages.Begin) -> tuple[str, ...]:
        """Return the members without the round to continue after; check it for this party."""
        if not set(message.newcomers) <= set(message.members):
            raise CohortError("the coordinator names newcomers that take no part", fix=DISTRUST)
        has = message.after_round in (0, *self._checkpoints.available())
        if has == (self.party in message.newcomers):
            raise CohortError(
                f"the coordinator says that this party {'lacks' if has else 'has'} round "
                f"{message.after_round}, which is not so",
                fix=DISTRUST,
            )
        return message.newcomers

    def _close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _note(self, direction: str, message: object, frame: Frame, digest: bytes) -> None:
        audience = "parties" if isinstance(message, _FOR_PARTIES) else "coordinator"
        self._recorder.crossing(
            Crossing(
                round=self._link.round,
                exchange=self._link.exchange,
                direction=direction,
                kind=type(message).__name__,
                audience=getattr(message, "audience", audience),
                head_bytes=len(frame.head),
                bulk_bytes=len(frame.bulk),
                digest=digest.hex(),
            )
        )


_FOR_PARTIES = (
    *(messages.Broadcast, messages.Share, messages.Relayed, messages.Total),
    *(messages.Handover, messages.HandedOver),
)


class LocalEngine:
    """Steps the sessions one after the other, in an order that must not matter."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        order: Callable[[Sequence[str]], Sequence[str]] = sorted,
    ) -> None:
        self._sessions, self._order = sessions, order

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Answers arrive one by one; in one process nobody is ever late."""
        for party in self._order(list(frames)):
            yield party, self._sessions[party].step(frames[party])
