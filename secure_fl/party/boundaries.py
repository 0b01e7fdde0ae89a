"""Before the first round and after each: restore, give to newcomers, save, and go on together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from secure_fl.events import EventLog
from secure_fl.party.exchange import ask
from secure_fl.party.joining import Handover
from secure_fl.party.members import Members
from secure_fl.party.rounds import Checkpoints, Stateful
from secure_fl.protocol import messages
from secure_fl.protocol.ports import PartySum


class Boundaries:
    """The boundaries of one run's rounds, with what its checkpoints hold."""

    def __init__(
        self,
        who: Members,
        sums: PartySum,
        checkpoints: Checkpoints,
        recorder: EventLog,
        begin_round: Callable[[], None],
        *,
        whole: Mapping[str, Stateful],
        shared: Mapping[str, Stateful],  # of these, what is equal at all members
    ) -> None:
        self._who, self._sums = who, sums
        self._checkpoints, self._recorder = checkpoints, recorder
        self._begin_round = begin_round
        self._whole, self._shared = whole, shared

    async def first(self, after: int, newcomers: tuple[str, ...]) -> int:
        """Continue after this round; these do not have it. Returns the number of the next one."""
        self._recorder.round = after
        if after and self._who.me not in newcomers:
            self._sums.restore(self._checkpoints.restore(after, self._whole))
        if newcomers:
            await self._hand_over(after, newcomers)
        self._checkpoints.roll_back(after)
        return self._begin(after + 1)

    async def end(self, number: int) -> None:
        """Save this round, and go on with those who did."""
        with self._recorder.phase("checkpoint"):
            self._sums.turn()
            self._checkpoints.save(number, self._whole, self._sums.state())
        answer, _ = await ask(messages.Boundary(number), messages.Continue)
        self._who.enter(answer.members)
        self._recorder.event("round", round=number, members=list(self._who.here))
        self._begin(number + 1)

    def _begin(self, number: int) -> int:
        self._recorder.round = number
        self._begin_round()
        return number

    async def _hand_over(self, after: int, newcomers: tuple[str, ...]) -> None:
        """Give newcomers what is equal everywhere; a newcomer takes it, and saves the round."""
        who, sums = self._who, self._sums
        new = Handover(after, who.here, newcomers, who.host, who.threshold)
        common = sums.common()  # refuses before anything is noted
        self._checkpoints.let_in(after, new.holders)
        message, bulk, state, source = messages.Handover(), b"", b"", new.donor
        joins = who.me in new.newcomers
        if who.me in new.holders:
            state, source = self._checkpoints.export(self._shared, common), who.me
            equal, own = (new.digest(sums, state, of) for of in ("", who.me))
            message = messages.Handover(equal, sums.vouch(own))
            bulk = sums.envelope(state, new.seal) if who.me == new.donor else b""
        answer, data = await ask(message, messages.HandedOver, bulk)
        who.enter(answer.members)
        if joins:
            state = sums.unwrap(data, new.seal)
        if joins or who.me in new.holders:
            new.check(answer.proofs, who.here, state, source, sums)
        if joins:
            sums.adopt(self._checkpoints.adopt(state, self._shared))
            self._checkpoints.save(after, self._whole, sums.state())
        if joins or who.me in new.holders:
            sums.saw(state, new.seal, host=False)
        self._recorder.event("joined", round=after + 1, parties=list(new.newcomers))
