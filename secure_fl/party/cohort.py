"""The only door out of a hospital: what a party program may ask of the other parties.

Each call names who learns the result. The program is a coroutine; awaiting the door hands one
message to the `Session`, which puts it on the wire and resumes the program with the answer.
What each call does stands in the files beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial as bind
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.events import EventLog, PredictionNoise
from secure_fl.party.hooks import RoundHook
from secure_fl.party.members import Members
from secure_fl.party.noise_account import NoiseAccount, Reserved
from secure_fl.party.relays import Relays
from secure_fl.party.round_loop import Boundaries, Rounds
from secure_fl.party.rounds import Checkpoints, Stateful
from secure_fl.party.sum_request import Arrays, SumRequest
from secure_fl.party.summing import Summing
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Noise, PrivacyLayer, Rule

Values = Mapping[str, Any]  # name -> tensor, array or number


class Cohort:
    """The other parties, as one party sees them."""

    def __init__(
        self,
        me: str,
        *,
        host: str | None,
        min_cohort: int,
        threshold: int,
        layer: PrivacyLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        noise: NoiseAccount | None = None,
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        self.me = me
        self.host = host
        self.min_cohort = min_cohort
        self.threshold = threshold
        self.resume_after = 0
        self.newcomers: tuple[str, ...] = ()  # members that do not have that round
        self.until: int | None = None  # the round that the program ends with, if not its last
        self._who = Members(me, host, min_cohort, threshold, layer.transcript)
        self._summing = Summing(self._who, layer, checkpoints, recorder, hooks)
        self._relays = Relays(self._who, layer.envelopes, layer.transcript)
        self._reserved, self._noised = Reserved(me, noise), noise is not None
        self._layer, self._checkpoints, self._recorder = layer, checkpoints, recorder
        self._hooks = hooks

    @property
    def roster(self) -> tuple[str, ...]:
        """All members that the run began with, here or lost since."""
        return self._who.roster

    @property
    def members(self) -> tuple[str, ...]:
        """All that are here."""
        return self._who.here

    @property
    def parties(self) -> tuple[str, ...]:
        """The members that contribute to sums: all but the host."""
        return self._who.parties

    @property
    def survivors(self) -> tuple[str, ...]:
        """Those whose values are in the last sum; some may have been lost since."""
        return self._summing.survivors

    @property
    def is_host(self) -> bool:
        """Whether this party is the one that learns host sums."""
        return self._who.is_host

    def begin(self, members: tuple[str, ...]) -> None:
        """Take part in a run of these members."""
        self._who.begin(members)

    def confirm_members(self, members: Sequence[str]) -> None:
        """Go on with these members: the coordinator may lose some, never add any."""
        self._who.confirm_members(members)

    async def sum(
        self,
        values: Values,
        *,
        reveal: Audience = Audience.PARTIES,
        partial: bool = False,
        read: Values | None = None,
        carry: bool = False,
        bound: float | None = None,
        noise: Noise | None = None,
        together: bool = False,
        questions: tuple[str, ...] = (),
    ) -> Arrays:
        """Add values over the parties; nobody sees one party's values.

        `partial`: this party contributes only the names it has; who contributes which name is
        public. Without it every party contributes the same names. `read` (of a partial sum): names
        that this party does not contribute to and reads nevertheless, with values of the right
        shapes; a name that nobody contributes is left out of the result. `carry`: keep what
        rounding and clipping left over and add it next time a value of this name is sent (error
        feedback; for updates, not for predictions). `bound`: a public bound of all values, which
        a host sum needs. `noise`: this party's share of differential-privacy noise. `together`: to
        be opened over exactly those who were in the last sum, or not at all, and then the result is
        {}. For values that follow from the same inputs as the last sum's: over others, the two
        would differ by the input of whoever left. `questions`: digests of what is asked of records
        that do not change: this site answers them over the same sites in all runs, or not at all.

        The host contributes nothing: to a host sum it passes values of the same names and shapes,
        of which only names and shapes count; to any other sum it passes {}.
        Returns the sums that this party may see.
        """
        rule = Rule(reveal, carry, bound, noise)
        if (self._noised or noise is not None) and not self._who.is_host:  # the host adds none
            self._reserved.spend(rule)
        only = frozenset(self.survivors) if together else None
        return await self._summing.sum(
            SumRequest(values, rule, read or {}, partial, only, questions)
        )

    def leftover(self, name: str) -> NDArray[np.float32] | None:
        """What rounding and clipping left over of the value of this name that was summed last.

        For values that must not be added to the next of their name, because their basis changes.
        It is taken: the next sum adds nothing of it. None if nothing was lost, as in the clear, or
        if no sum of this round carried the name: a resumed run could not know its shape.
        """
        return self._summing.leftover(name)

    def prediction_noise(self, examples: int, classes: int, releases: int) -> Noise | None:
        """The noise that each sum of so many centred predictions must carry, or None.

        Centred: probabilities minus 1/classes, `examples * classes` numbers in one vector, which is
        all that the sum holds. `releases`: such sums in the whole run. The noise follows from the
        run's settings and members alone, so it is equal at all of them, and stays so in a resumed
        run. Refuses noise that would drown the signal, unless the settings force it, and a run that
        this party's budget has no room for. None: the run asks for no noise.
        """
        parties = sum(member != self.host for member in self.roster)
        sized = self._reserved.size(examples, classes, releases, parties)
        if sized is None:
            return None
        noise, facts = sized
        self._recorder.event(PredictionNoise(facts=facts))
        return noise

    def reserve(self, noise: Noise, releases: int) -> None:
        """Enter so many noised sums into this party's ledger, before any of them is computed.

        Once per round, for all noised sums of that round: a round that is repeated releases again,
        and reserves again. A crash does not give them back; a spent budget refuses. The host adds
        no noise, so it has nothing to enter.
        """
        if not self.is_host:
            self._reserved.reserve(noise, releases, self._summing.round)

    async def broadcast(self, value: Values | None = None) -> dict[str, NDArray[Any]]:
        """The host's value, at every party; only the host passes one."""
        return await self._relays.broadcast(value)

    async def share(self, values: Values) -> dict[str, dict[str, NDArray[Any]]]:
        """Every party's values, at every party, never at the coordinator. Opt-in, audited."""
        return await self._relays.share(values)

    async def agree(self, fingerprint: bytes, about: str) -> None:
        """Stop the run unless every party holds the same state."""
        await self._relays.agree(fingerprint, about)

    def rounds(
        self,
        total: int,
        keep: Mapping[str, Stateful] | None = None,
        shared: Mapping[str, Stateful] | None = None,
    ) -> Rounds:
        """Iterate over the rounds; a checkpoint after each of them holds `keep` and `shared`.

        Scores are pooled before it. Where rounds wait for a better score, the last one may come
        early, and what is kept and shared is then what it was after the best.

        `shared`: what is equal at all members (the model, a replicated server). Who joins late, or
        lost its disk, is given it by another member. `keep`: what is this party's own (its private
        models, what it has not sent yet); a newcomer starts it afresh.
        """
        keep, shared = keep or {}, shared or {}
        if both := keep.keys() & shared.keys():
            raise ValueError(f"either this party's own or shared, not both: {sorted(both)}")
        own, common = dict(keep), dict(shared)
        for hook in self._hooks:
            more_own, more_common = hook.watch(keep, shared, self._layer.transcript)
            own, common = {**own, **more_own}, {**common, **more_common}
        between = Boundaries(
            self._who,
            self._layer,
            self._checkpoints,
            self._recorder,
            self._begin,
            whole={**own, **common},
            shared=common,
        )
        first = bind(between.first, self.resume_after, self.newcomers)
        return Rounds(total, first, bind(self._end, between), self.until, self._hooks)

    def _begin(self, number: int) -> None:
        self._summing.begin_round(number)
        for hook in self._hooks:
            hook.begin()

    async def _end(self, between: Boundaries, number: int) -> None:
        """Let every hook have the round, and save it."""
        for hook in self._hooks:
            await hook.end(number, self._summing, self._who)
        await between.end(number)
