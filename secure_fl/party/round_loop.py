"""The loop over the rounds of a run: restore, hand the state to newcomers, save a checkpoint.

Each holder of a round signs a keyed digest of its state. The first holder by name sends the state
in an envelope that the coordinator cannot open, and the newcomer compares it with every proof. So
it detects a holder that sends another state, and a coordinator that names false newcomers. A state
that one hospital and the coordinator invent lacks the signatures of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secure_fl.errors import CohortError, Disagreement, TooFewParties
from secure_fl.events import EventLog, MembersJoined, RoundSaved
from secure_fl.party.context import Checkpoints, Members, ask
from secure_fl.party.hooks import RoundHook, States
from secure_fl.party.rounds import Round
from secure_fl.party.summing import Summing
from secure_fl.protocol import messages
from secure_fl.protocol.ports import EnvelopeLayer, PrivacyLayer
from secure_fl.thresholds import quorum


class Rounds:
    """Asynchronous iterator over the rounds of a run."""

    def __init__(
        self,
        total: int,
        boundary: RoundBoundary,
        summing: Summing,
        hooks: Sequence[RoundHook],
        resume: tuple[int, tuple[str, ...]],
        until: int | None,
    ) -> None:
        """`resume`: the round to continue after, and the members that lack it."""
        self._total, self._boundary, self._summing = total, boundary, summing
        self._hooks, self._resume, self._until = hooks, resume, until
        self._number: int | None = None

    def __aiter__(self) -> Rounds:
        return self

    async def __anext__(self) -> Round:
        if self._number is None:
            await self._boundary.enter(*self._resume)
            self._number = self._resume[0] + 1
        else:
            for hook in self._hooks:
                await hook.end(self._number, self._summing, self._boundary.members)
            await self._boundary.save(self._number)
            self._number += 1
        self._boundary.recorder.round = self._number
        self._summing.begin_round(self._number)
        for hook in self._hooks:
            hook.begin()
        undone = sum(hook.undone for hook in self._hooks)
        last = self._total + undone
        if self._until is not None:
            last = min(self._until, last)
        if self._number > last or any(hook.stops for hook in self._hooks):
            for hook in self._hooks:
                hook.close()
            raise StopAsyncIteration
        return Round(self._number, self._total, undone)


class RoundBoundary:
    """The exchanges between two rounds, and the states that a checkpoint holds."""

    def __init__(
        self,
        members: Members,
        layer: PrivacyLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        own: States,
        shared: States,
    ) -> None:
        """`own`: states of this party alone. `shared`: states that are equal at all members."""
        self.members, self.recorder = members, recorder
        self._layer, self._checkpoints = layer, checkpoints
        self._shared, self._all = shared, {**own, **shared}

    async def enter(self, after: int, newcomers: tuple[str, ...]) -> None:
        """Restore the state after this round, and hand it to newcomers, which do not have it."""
        self.recorder.round = after
        if after and self.members.me not in newcomers:
            self._layer.transcript.restore(self._checkpoints.restore(after, self._all))
        # A newcomer that was lost since then joins another time.
        if joining := tuple(name for name in newcomers if name in self.members.here):
            await self._hand_over(after, joining)
        self._checkpoints.roll_back(after)

    async def save(self, number: int) -> None:
        """Save this round, and continue with the members that saved it."""
        with self.recorder.phase("checkpoint"):
            self._layer.transcript.turn()
            self._checkpoints.save(number, self._all, self._layer.transcript.state())
        answer, _ = await ask(messages.Boundary(number), messages.Continue)
        self.members.confirm_members(answer.members)
        self.recorder.event(RoundSaved(round=number, members=self.members.here))

    async def _hand_over(self, after: int, newcomers: tuple[str, ...]) -> None:
        """Give the shared state to newcomers, which check it, load it and save the round."""
        members, envelopes, transcript = self.members, self._layer.envelopes, self._layer.transcript
        new = StateHandover(after, members.here, newcomers, members.host, members.threshold)
        common = transcript.common()  # it may refuse, so it comes before anything is recorded
        self._checkpoints.note_handover(after, new.holders)
        message, bulk, state, source = messages.Handover(), b"", b"", new.donor
        joins, holds = members.me in new.newcomers, members.me in new.holders
        if holds:
            state, source = self._checkpoints.export(self._shared, common), members.me
            equal, own = (new.digest(envelopes, state, of) for of in ("", members.me))
            message = messages.Handover(equal, envelopes.vouch(own))
            bulk = envelopes.seal(state, new.seal) if members.me == new.donor else b""
        answer, data = await ask(message, messages.HandedOver, bulk)
        members.confirm_members(answer.members)
        if joins:
            state = envelopes.open(data, new.seal)
        if joins or holds:
            new.check(answer.proofs, members.here, state, source, envelopes)
        if joins:
            transcript.adopt(self._checkpoints.adopt(state, self._shared))
            self._checkpoints.save(after, self._all, transcript.state())
        if joins or holds:
            transcript.saw(state, new.seal, host=False)
        self.recorder.event(MembersJoined(round=after + 1, parties=new.newcomers))


@dataclass(frozen=True, slots=True)
class StateHandover:
    """A handover of the state after one round, from its holders to newcomers."""

    after: int
    members: tuple[str, ...]
    newcomers: tuple[str, ...]
    host: str | None
    threshold: int

    def __post_init__(self) -> None:
        strangers = set(self.newcomers) - set(self.members)
        if strangers or not self.after or len(set(self.newcomers)) < len(self.newcomers):
            raise CohortError("the coordinator names newcomers that cannot join", round=self.after)
        self.require_quorum(self.members)

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that have the round; the host opens other sums, so it does not vouch."""
        return tuple(m for m in self.members if m not in (*self.newcomers, self.host))

    @property
    def donor(self) -> str:
        """The holder that sends the state."""
        return self.holders[0]

    @property
    def seal(self) -> bytes:
        """The context of the envelope; the run's key binds it to the run."""
        return f"{self._about()} from {self.donor}".encode()

    def require_quorum(self, members: tuple[str, ...]) -> None:
        """Refuse a state for which too few parties vouch."""
        parties = [m for m in self.members if m != self.host]
        vouching = [m for m in self.holders if m in members]
        needed = quorum(len(parties), self.threshold)
        if len(vouching) < needed:
            raise TooFewParties(
                f"only {len(vouching)} of {len(parties)} parties hold round {self.after}; "
                f"{needed} must agree on the state that {', '.join(self.newcomers)} would receive",
                fix="restart more of the parties that took part, or let fewer join at a time",
                round=self.after,
            )

    def digest(self, envelopes: EnvelopeLayer, state: bytes, of: str) -> bytes:
        """Digest a state for the signature of one party; for "", the same at all holders."""
        return envelopes.fingerprint(state, f"{self._about()} of {of}".encode())

    def check(
        self,
        proofs: Mapping[str, bytes],
        members: tuple[str, ...],
        state: bytes,
        source: str,
        envelopes: EnvelopeLayer,
    ) -> None:
        """Refuse the state of `source` unless all remaining holders prove to have the same."""
        self.require_quorum(members)
        if set(proofs) != set(self.holders) & set(members):
            raise CohortError(
                "the coordinator forwards other proofs than those of the holders", round=self.after
            )
        wrong = sorted(
            party
            for party, proof in proofs.items()
            if not envelopes.vouched(party, self.digest(envelopes, state, party), proof)
        )
        if wrong:
            # A single party that differs is to blame; between two, it remains unknown.
            fit = len(proofs) - len(wrong)
            alone = wrong if len(wrong) < fit else [source] if len(wrong) > fit else []
            raise Disagreement(
                f"the state after round {self.after} that {source} has is not the one that "
                f"{', '.join(p for p in wrong if p != source) or source} proved to have",
                fix="check the checkpoints of the party that differs; if they are damaged, delete "
                "them there and resume: it then receives the others' state",
                party=alone[0] if len(alone) == 1 else None,
            )

    def _about(self) -> str:
        parts = (",".join(self.members), ",".join(self.newcomers))
        return f"handover {self.after} {' '.join(parts)}"
