"""The only door out of a hospital: the requests that a party's program may send to other parties.

Each method names the members that learn its result. The program is a coroutine: awaiting a method
hands one message to the `Session`, which sends it and resumes the program with the answer.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import (
    DISTRUST,
    BudgetError,
    CohortError,
    CryptoError,
    Disagreement,
    PeerKeysError,
)
from secure_fl.events import EventLog, PredictionNoise
from secure_fl.party.context import Arrays, Checkpoints, Members, SumRequest, ask
from secure_fl.party.hooks import RoundHook
from secure_fl.party.round_loop import RoundBoundary, Rounds
from secure_fl.party.rounds import Stateful
from secure_fl.party.summing import Summing
from secure_fl.protocol import messages
from secure_fl.protocol.arrays import pack, unpack
from secure_fl.protocol.frames import cut
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Noise, PrivacyLayer, Rule

Values = Mapping[str, Any]  # name -> tensor, array or number


class NoiseAccount(Protocol):
    """The noise settings of a run, with a party's ledger (`privacy.noise_ledger`)."""

    def size(
        self, examples: int, classes: int, releases: int, parties: int
    ) -> tuple[Noise, Mapping[str, Any]]:
        """Return the noise of each sum, equal at all members, with its figures for the log.

        Raises if the noise exceeds the signal, or if this party's budget cannot pay for the sums.
        """

    def enter(self, noise: Noise, releases: int, round: int) -> None:
        """Enter sums into the ledger, durably, or raise."""


class Reserved:
    """Counts of the sums that this party has entered and not yet sent, by their noise."""

    def __init__(self, me: str, account: NoiseAccount | None) -> None:
        self._me, self._account = me, account
        self._left: dict[Noise, int] = {}

    def reserve(self, noise: Noise, releases: int, round: int) -> None:
        """See `Cohort.reserve`."""
        if self._account is None:
            raise BudgetError(
                "this party has no ledger, so it may not send noised sums",
                fix="give the run a ledger and a budget",
                party=self._me,
                reason="no-ledger",
            )
        self._account.enter(noise, releases, round)
        self._left[noise] = self._left.get(noise, 0) + releases

    def spend(self, rule: Rule) -> None:
        """Use one reserved sum, or raise; a party with an account sends no sum without noise."""
        noise = rule.noise
        if noise is not None and noise.prepaid and rule.bound is not None and not rule.carry:
            return
        if noise is None:
            if self._account is None:
                return
            raise BudgetError(
                "a sum without noise, in a run that protects hospitals by noise",
                fix="pass noise=cohort.prediction_noise(...), or remove protection.noise",
                party=self._me,
                reason="unprotected",
            )
        if rule.audience != Audience.HOST or rule.bound is None or rule.carry:
            raise BudgetError(
                "this noised sum would send its scale without noise",
                fix="a noised sum is for the host, with a public bound and without carry",
                party=self._me,
                reason="unprotected",
            )
        if not self._left.get(noise):
            raise BudgetError(
                "this noised sum is not in the ledger",
                fix="call cohort.reserve(noise, releases) before the sums of a round",
                party=self._me,
                reason="not-reserved",
            )
        self._left[noise] -= 1


class Cohort:
    """The other parties of a run, as the program of one party sees them."""

    def __init__(
        self,
        members: Members,
        layer: PrivacyLayer,
        checkpoints: Checkpoints,
        recorder: EventLog,
        *,
        noise: NoiseAccount | None = None,
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        self.me, self.host = members.me, members.host
        self.min_cohort, self.threshold = members.min_cohort, members.threshold
        self.resume_after = 0
        self.newcomers: tuple[str, ...] = ()  # members that do not have that round
        self.until: int | None = None  # the last round, if it is not the program's
        self._members = members
        self._summing = Summing(members, layer, checkpoints, recorder, hooks)
        self._envelopes, self._transcript = layer.envelopes, layer.transcript
        self._relayed = self._agreed = 0  # values and proofs so far: old ones cannot be replayed
        self._reserved, self._noise = Reserved(members.me, noise), noise
        self._layer, self._checkpoints, self._recorder = layer, checkpoints, recorder
        self._hooks = hooks

    @property
    def roster(self) -> tuple[str, ...]:
        """All members that began the run, including those lost since."""
        return self._members.roster

    @property
    def members(self) -> tuple[str, ...]:
        """All members that are present."""
        return self._members.here

    @property
    def parties(self) -> tuple[str, ...]:
        """The members that contribute to sums: all except the host."""
        return self._members.parties

    @property
    def survivors(self) -> tuple[str, ...]:
        """The members whose values are in the last opened sum; some may have been lost since."""
        return self._summing.survivors

    @property
    def is_host(self) -> bool:
        """True if this party is the host, which learns host sums."""
        return self._members.is_host

    def begin(self, members: tuple[str, ...]) -> None:
        """Begin a run of these members."""
        self._members.begin(members)

    def confirm_members(self, members: Sequence[str]) -> None:
        """Continue with these members: the coordinator may drop some, but cannot add any."""
        self._members.confirm_members(members)

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
        """Add values over the parties; nobody sees the values of a single party.

        Returns the sums that this party may see. The host contributes nothing: it passes values of
        the same names and shapes to a host sum, and {} to any other sum.

        Args:
            values: This party's values. Without `partial`, all parties use the same names.
            reveal: The members that learn the sums.
            partial: Each party contributes only the names that it has. Contributors are public.
                A name without contributors is missing in the result.
            read: Names that this party only reads, with values of the right shapes.
            carry: Add what rounding and clipping leave over to the next value of the same name
                (error feedback: for updates, not for predictions).
            bound: A public bound of all values, which a host sum needs.
            noise: This party's share of differential-privacy noise.
            together: Open the sum over exactly the members of the last opened sum, or return {}.
                Else two sums of the same inputs would differ by the inputs of those that left.
            questions: Digests of the questions about unchanging records that the sum answers. A
                site answers each over the same sites in all runs, or not at all.

        """
        rule = Rule(reveal, carry, None if bound is None else float(bound), noise)
        if (self._noise or noise) is not None and not self.is_host:  # the host adds no noise
            self._reserved.spend(rule)
        only = frozenset(self.survivors) if together else None
        request = SumRequest(values, rule, read or {}, partial, only, questions)
        return await self._summing.sum(request)

    def leftover(self, name: str) -> NDArray[np.float32] | None:
        """Take what rounding and clipping left over of the last summed value of this name.

        It is for values that must not be added to the next ones, because their basis changes. The
        next sum then adds no leftover. Returns None if nothing is left over, as in mode none, or if
        no sum of this round carried the name: a resumed run could not know its shape.
        """
        return self._summing.leftover(name)

    def prediction_noise(self, examples: int, classes: int, releases: int) -> Noise | None:
        """Return the noise that each sum of centred predictions must carry, if the run asks for it.

        A sum holds one vector of `examples * classes` centred numbers: probabilities minus
        1/classes. `releases` is the number of these sums in the whole run. The noise depends on the
        run's settings and members alone, so it is equal at all members and in a resumed run.
        Raises if the noise would exceed the signal, unless the settings force it, and if this
        party's budget cannot pay for the run.
        """
        if self._noise is None:
            return None
        parties = sum(member != self.host for member in self.roster)
        noise, facts = self._noise.size(examples, classes, releases, parties)
        self._recorder.event(PredictionNoise(facts=facts))
        return noise

    def reserve(self, noise: Noise, releases: int) -> None:
        """Enter this number of noised sums into this party's ledger, before they are computed.

        Call it once per round, for all noised sums of that round. A repeated round releases again,
        and reserves again; a crash refunds nothing. The host adds no noise and reserves nothing.
        """
        if not self.is_host:
            self._reserved.reserve(noise, releases, self._summing.round)

    async def broadcast(self, value: Values | None = None) -> dict[str, NDArray[Any]]:
        """Send the host's value to all parties; only the host passes one."""
        host = self._members.host
        if host is None:
            raise CohortError(
                "nobody can broadcast: no party has the role host", party=self._members.me
            )
        if (value is not None) != self._members.is_host:
            raise CohortError("the host passes the value of a broadcast, and no other party does")
        context = self._context("broadcast", self._next(), host)
        bulk = b"" if value is None else self._envelopes.seal(pack(value), context)
        answer, data = await ask(messages.Broadcast(), messages.Relayed, bulk)
        if answer.senders != (host,):
            raise CohortError("the broadcast did not come from the host", party=host)
        plain, value = self._opened(data, context, host)
        self._transcript.saw(plain, context, host=True)
        return value

    async def share(self, values: Values) -> dict[str, dict[str, NDArray[Any]]]:
        """Send every party's values to all parties, sealed from the coordinator. Audits list it."""
        number = self._next()
        context = self._context("share", number, self._members.me)
        bulk = self._envelopes.seal(pack(values), context)
        answer, data = await ask(messages.Share(), messages.Relayed, bulk)
        # The coordinator cannot omit a sender without dropping it.
        self._members.confirm_members(answer.senders)
        parts = cut(data, answer.sizes)
        if len(parts) != len(answer.senders):
            raise CohortError("the coordinator relays other values than it lists", fix=DISTRUST)
        received: dict[str, dict[str, NDArray[Any]]] = {}
        for sender, part in zip(answer.senders, parts, strict=True):
            context = self._context("share", number, sender)
            plain, received[sender] = self._opened(part, context, sender)
            self._transcript.saw(plain, context, host=True)
        return received

    def _opened(
        self, data: bytes, context: bytes, sender: str
    ) -> tuple[bytes, dict[str, NDArray[Any]]]:
        """Open a value that a member shares; return it encoded and decoded."""
        try:
            plain = self._envelopes.open(data, context)
            return plain, unpack(plain)
        except CryptoError as error:  # most members decide if it was the sender
            what = "this member's shared value does not open, or the coordinator changed it"
            raise PeerKeysError(what, party=sender) from error

    async def agree(self, fingerprint: bytes, about: str) -> None:
        """Stop the run unless every party has the same fingerprint."""
        number = self._agreed = self._agreed + 1

        def digest(of: str) -> bytes:
            return self._envelopes.fingerprint(fingerprint, f"{number} {about} {of}".encode())

        answer, _ = await ask(messages.Agree(digest(""), digest(self._members.me)), messages.Agreed)
        self._members.confirm_members(tuple(answer.proofs))
        for party, proof in answer.proofs.items():
            if not hmac.compare_digest(proof, digest(party)):
                raise Disagreement(
                    f"{about} differs between parties, or the coordinator changed their statements",
                    fix="compare settings, labels, models and library versions with this party",
                    party=party,
                )

    def rounds(
        self,
        total: int,
        keep: Mapping[str, Stateful] | None = None,
        shared: Mapping[str, Stateful] | None = None,
    ) -> Rounds:
        """Iterate over the rounds, and save a checkpoint of `keep` and `shared` after each.

        If the run waits for a better score, the last round may come early, and `keep` and `shared`
        then return to their state after the best round.

        Args:
            total: The number of rounds.
            keep: State of this party alone, such as private models. A newcomer starts without it.
            shared: State that is equal at all members, such as the model. A member that joins late,
                or lost its disk, receives it from another member.

        """
        keep, shared = keep or {}, shared or {}
        if both := keep.keys() & shared.keys():
            raise ValueError(f"either this party's own or shared, not both: {sorted(both)}")
        own, common = dict(keep), dict(shared)
        for hook in self._hooks:
            more_own, more_common = hook.watch(keep, shared, self._layer.transcript)
            own, common = {**own, **more_own}, {**common, **more_common}
        boundary = RoundBoundary(
            self._members, self._layer, self._checkpoints, self._recorder, own, common
        )
        resume = self.resume_after, self.newcomers
        return Rounds(total, boundary, self._summing, self._hooks, resume, self.until)

    def saved(self, name: str) -> dict[str, Any] | None:
        """Return a state of the round to resume after; None: this party begins at round 1."""
        if not self.resume_after or self.me in self.newcomers:
            return None
        return self._checkpoints.read(self.resume_after, name)

    def _next(self) -> int:
        self._relayed += 1
        return self._relayed - 1

    @staticmethod
    def _context(kind: str, number: int, sender: str) -> bytes:
        return f"{kind} {number} {sender}".encode()
