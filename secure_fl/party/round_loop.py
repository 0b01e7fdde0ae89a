"""The loop over the rounds of a run: restore, hand the state to newcomers, save a checkpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from secure_fl.events import EventLog, MembersJoined, RoundSaved
from secure_fl.party.exchange import ask
from secure_fl.party.hooks import RoundHook
from secure_fl.party.joining import Handover
from secure_fl.party.members import Members
from secure_fl.party.rounds import Checkpoints, Round, Stateful
from secure_fl.protocol import messages
from secure_fl.protocol.ports import PrivacyLayer


class Boundaries:
    """The boundaries of one run's rounds, with what its checkpoints hold."""

    def __init__(
        self,
        who: Members,
        layer: PrivacyLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        begin_round: Callable[[int], None],
        *,
        whole: Mapping[str, Stateful],
        shared: Mapping[str, Stateful],  # of these, what is equal at all members
    ) -> None:
        self._who, self._layer = who, layer
        self._checkpoints, self._recorder = checkpoints, recorder
        self._begin_round = begin_round
        self._whole, self._shared = whole, shared

    async def first(self, after: int, newcomers: tuple[str, ...]) -> int:
        """Continue after this round; these do not have it. Returns the number of the next one."""
        self._recorder.round = after
        if after and self._who.me not in newcomers:
            self._layer.transcript.restore(self._checkpoints.restore(after, self._whole))
        if joining := tuple(name for name in newcomers if name in self._who.here):
            await self._hand_over(after, joining)  # who was lost since joins another time
        self._checkpoints.roll_back(after)
        return self._begin(after + 1)

    async def end(self, number: int) -> None:
        """Save this round, and go on with those who did."""
        with self._recorder.phase("checkpoint"):
            self._layer.transcript.turn()
            self._checkpoints.save(number, self._whole, self._layer.transcript.state())
        answer, _ = await ask(messages.Boundary(number), messages.Continue)
        self._who.confirm_members(answer.members)
        self._recorder.event(RoundSaved(round=number, members=self._who.here))
        self._begin(number + 1)

    def _begin(self, number: int) -> int:
        self._recorder.round = number
        self._begin_round(number)
        return number

    async def _hand_over(self, after: int, newcomers: tuple[str, ...]) -> None:
        """Give newcomers what is equal everywhere; a newcomer takes it, and saves the round."""
        who, envelopes, transcript = self._who, self._layer.envelopes, self._layer.transcript
        new = Handover(after, who.here, newcomers, who.host, who.threshold)
        common = transcript.common()  # refuses before anything is noted
        self._checkpoints.let_in(after, new.holders)
        message, bulk, state, source = messages.Handover(), b"", b"", new.donor
        joins = who.me in new.newcomers
        if who.me in new.holders:
            state, source = self._checkpoints.export(self._shared, common), who.me
            equal, own = (new.digest(envelopes, state, of) for of in ("", who.me))
            message = messages.Handover(equal, envelopes.vouch(own))
            bulk = envelopes.seal(state, new.seal) if who.me == new.donor else b""
        answer, data = await ask(message, messages.HandedOver, bulk)
        who.confirm_members(answer.members)
        if joins:
            state = envelopes.open(data, new.seal)
        if joins or who.me in new.holders:
            new.check(answer.proofs, who.here, state, source, envelopes)
        if joins:
            transcript.adopt(self._checkpoints.adopt(state, self._shared))
            self._checkpoints.save(after, self._whole, transcript.state())
        if joins or who.me in new.holders:
            transcript.saw(state, new.seal, host=False)
        self._recorder.event(MembersJoined(round=after + 1, parties=new.newcomers))


class Rounds:
    """Asynchronous iterator over the rounds of a run."""

    def __init__(
        self,
        total: int,
        first: Callable[[], Awaitable[int]],
        end: Callable[[int], Awaitable[None]],
        until: int | None = None,  # stop early, where others join
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        self._total, self._first, self._end = total, first, end
        self._until, self._hooks = until, hooks
        self._number: int | None = None

    def __aiter__(self) -> Rounds:
        return self

    async def __anext__(self) -> Round:
        if self._number is None:
            self._number = await self._first()
        else:
            await self._end(self._number)
            self._number += 1
        undone = sum(hook.undone for hook in self._hooks)
        last = self._total + undone
        if self._until is not None:
            last = min(self._until, last)
        if self._number > last or any(hook.stops for hook in self._hooks):
            for hook in self._hooks:
                hook.close()
            raise StopAsyncIteration
        return Round(self._number, self._total, undone)
