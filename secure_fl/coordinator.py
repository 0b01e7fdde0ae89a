"""The blind sum machine: it relays, counts and adds, whatever is being trained.

It knows public metadata only (`wire` lists it) and imports neither torch, nor an algorithm, nor
anything that could use a secret key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from secure_fl import wire
from secure_fl.errors import PartyFailed, SecureFLError, TooFewParties
from secure_fl.link import Link
from secure_fl.protocol import NewTotal, Offered
from secure_fl.recorder import Recorder
from secure_fl.step import Answers, Reply, Rules, Step
from secure_fl.steps import open_step
from secure_fl.wire import Frame


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
        new_total: NewTotal,
        recorder: Recorder,
        between: Callable[[tuple[str, ...], tuple[str, ...]], None] = lambda members, new: None,
    ) -> None:
        """Before each round `between` gets the members and the newcomers, and may stop the run."""
        self._between = between
        self._links = dict(sorted(links.items()))
        self._engine, self._rules, self._new_total = engine, rules, new_total
        self._recorder = recorder
        self.members = tuple(self._links)
        self.round = 0
        self._repeats = False  # whether this round was begun before
        self._offered = Offered()

    def run(self) -> None:
        """Ask, collect, answer, until every party is done; a failure stops everybody."""
        reply: Reply | None = Reply({m: wire.Start(self.members) for m in self.members})
        try:
            while reply is not None:
                step = self._exchange(reply)
                self._drop(step)
                with self._recorder.phase("answer"):
                    reply = step.reply(self.members)
                if step.round is not None:
                    self._between(self.members, step.newcomers)
                    self._repeats = step.repeats
                    self._enter(step.round)
                if step.newcomers:
                    self._recorder.event("joined", round=self.round, parties=list(step.newcomers))
                self._offered = step.offered or self._offered
        except SecureFLError as error:
            self._stop(error)
            raise

    def _enter(self, round: int) -> None:
        self.round = round
        for link in self._links.values():
            link.round = round
        self._recorder.event("round", round=round, members=list(self.members))

    def _exchange(self, reply: Reply) -> Step:
        frames = {
            party: self._links[party].pack(message, reply.bulks.get(party))
            for party, message in reply.messages.items()
        }
        answers = Answers(self._rules, self.members, self._new_total, self._offered, reply.pending)
        step: Step | None = None
        awaited = set(frames)
        for party, frame in self._engine.exchange(frames, self._rules.deadline):
            if party not in awaited:
                continue  # an engine may deliver twice; a sum that counts twice is wrong
            awaited.remove(party)
            message = self._links[party].unpack(frame)
            if isinstance(message, wire.Failed):
                raise PartyFailed(
                    f"this party cannot go on ({message.code})",
                    fix="its own log says why; nothing of this step was released",
                    party=party,
                    round=self.round or None,
                    reason=message.code,
                )
            with self._recorder.phase("add"):
                step = open_step(step, message, answers, party)
                step.add(party, message, frame.bulk)
        if step is None:
            raise TooFewParties("no party answered", round=self.round or None)
        return step

    def _drop(self, step: Step) -> None:
        lost = [m for m in self.members if m not in step.heard]
        if not lost:
            return
        self._recorder.event("lost", round=self.round, parties=lost)
        self.members = tuple(m for m in self.members if m in step.heard)
        parties = [m for m in self.members if m != self._rules.host]
        if self._repeats:  # before some agree to a sum that others must refuse
            raise TooFewParties(
                f"{', '.join(lost)} did not answer, and this round can be repeated only with all",
                fix="bring them back and resume the run",
                round=self.round,
            )
        if len(parties) < self._rules.threshold or self._rules.host in lost:
            raise TooFewParties(
                f"{len(parties)} parties are left ({', '.join(lost)} did not answer); "
                f"the threshold is {self._rules.threshold}",
                fix="bring them back and resume the run",
                round=self.round or None,
            )

    def _stop(self, error: SecureFLError) -> None:
        party = str(error.where.get("party", ""))
        stop = {
            m: self._links[m].pack(wire.Stop(error.code, party if party in self._links else ""))
            for m in self.members
        }
        for _ in self._engine.exchange(stop, self._rules.deadline):
            pass  # parties close their programs; there is nothing left to say
        self._recorder.event("stopped", code=error.code, at=party)
