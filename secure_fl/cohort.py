"""The only door out of a hospital: what a party program may ask of the other parties.

Each call names who learns the result. The program is a coroutine; awaiting the door hands one
message to the `Session`, which puts it on the wire and resumes the program with the answer.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from secure_fl import wire
from secure_fl.errors import (
    BudgetError,
    CohortError,
    Disagreement,
    TooFewParties,
    TrainingError,
)
from secure_fl.payload import cut, pack, unpack
from secure_fl.protocol import Group, Noise, PartySum, Rule, Vector
from secure_fl.recorder import Recorder
from secure_fl.rounds import Checkpoints, Rounds, Stateful
from secure_fl.wire import FromCoordinator, FromParty, Name

Values = Mapping[str, Any]  # name -> tensor, array or number
Arrays = dict[str, NDArray[np.float64]]
M = TypeVar("M", bound=wire.Message)


class Reveal(StrEnum):
    """Who learns a sum."""

    PARTIES = "parties"
    HOST = "host"


class _Exchange:
    """An awaitable that gives the session a message and comes back with the answer."""

    __slots__ = ("bulk", "message")

    def __init__(self, message: FromParty, bulk: bytes = b"") -> None:
        self.message, self.bulk = message, bulk

    def __await__(self) -> Generator[_Exchange, tuple[FromCoordinator, bytes], tuple[Any, bytes]]:
        return (yield self)


class Cohort:
    """The other parties, as one party sees them."""

    def __init__(
        self,
        me: str,
        *,
        host: str | None,
        min_cohort: int,
        threshold: int,
        sums: PartySum,
        checkpoints: Checkpoints,
        recorder: Recorder,
        ledger: Callable[[Noise, int, int], None] | None = None,
    ) -> None:
        self.me = me
        self.host = host
        self.min_cohort = min_cohort
        self.threshold = threshold
        self.members: tuple[str, ...] = ()
        self.resume_after = 0
        self._survivors: tuple[str, ...] = ()
        self._scales = False  # whether the last sum was of scales, and its values follow
        self._agreed = 0
        self._opened = 0  # sums opened in this round
        self._relayed = 0  # values passed on in this run: no old one can be passed on again
        self._sums = sums
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._ledger = ledger  # (noise, releases, round): enters them durably, or refuses
        self._reserved: dict[Noise, int] = {}

    @property
    def parties(self) -> tuple[str, ...]:
        """The members that contribute to sums: all but the host."""
        return tuple(m for m in self.members if m != self.host)

    @property
    def is_host(self) -> bool:
        """Whether this party is the one that learns host sums."""
        return self.me == self.host

    def enter(self, members: Sequence[str]) -> None:
        """Go on with these members: the coordinator may lose some, never add any."""
        known = set(self.members)
        if self.me not in members or not set(members) <= known or len(set(members)) < len(members):
            raise CohortError(
                "the coordinator goes on with members that this party did not begin with, or "
                "without this party",
                party=self.me,
            )
        self.members = tuple(members)
        if len(self.parties) < self.threshold:
            raise TooFewParties(
                f"only {len(self.parties)} parties are left; the threshold is {self.threshold}",
                fix="bring the others back and resume the run; nothing was sent",
                party=self.me,
            )

    async def sum(
        self,
        values: Values,
        *,
        reveal: Reveal = Reveal.PARTIES,
        partial: bool = False,
        carry: bool = False,
        bound: float | None = None,
        noise: Noise | None = None,
    ) -> Arrays:
        """Add values over the parties; nobody sees one party's values.

        `partial`: this party contributes only the names it has; who contributes which name is
        public. Without it every party contributes the same names. `carry`: keep what rounding and
        clipping left over and add it next time a value of this name is sent (error feedback; for
        updates, not for predictions). `bound`: a public bound of all values, which a host sum
        needs. `noise`: this party's share of differential-privacy noise.

        The host contributes nothing: to a host sum it passes values of the same names and shapes,
        of which only names and shapes count; to any other sum it passes {}.
        Returns the sums that this party may see.
        """
        self._spend(noise)
        rule = Rule(reveal.value, carry, bound, noise)
        vectors = {name: self._vector(name, value) for name, value in sorted(values.items())}
        groups = await self._groups(vectors, reveal, partial)
        self._refuse_small(groups)
        scales = self._sums.unscaled(groups, rule)
        if scales:
            self._sums.learn(await self._add(scales, Rule(), scales=True))
        opened = await self._add(groups, rule)
        while self.is_host and self._scales:  # the parties summed scales; their values follow
            opened = await self._add(groups, rule)
        shapes = {name: np.shape(value) for name, value in values.items()}
        return {name: vector.reshape(shapes[name]) for name, vector in opened.items()}

    def reserve(self, noise: Noise, releases: int) -> None:
        """Enter so many noised sums into this party's ledger, before any of them is computed.

        A crash does not give them back; a spent budget refuses.
        """
        if self._ledger is None:
            raise BudgetError(
                "this party has no ledger, so it may not release anything under noise",
                fix="give the run a ledger and a budget",
                party=self.me,
            )
        self._ledger(noise, releases, self._recorder.round)
        self._reserved[noise] = self._reserved.get(noise, 0) + releases

    async def broadcast(self, value: Values | None = None) -> dict[str, NDArray[Any]]:
        """The host's value, at every party; only the host passes one."""
        if self.host is None:
            raise CohortError("nobody can broadcast: no party has the role host", party=self.me)
        if (value is not None) != self.is_host:
            raise CohortError("a broadcast's value comes from the host, and only from it")
        context = self._relay_context("broadcast", self.host)
        bulk = b"" if value is None else self._sums.envelope(pack(value), context)
        answer, data = await self._ask(wire.Broadcast(), wire.Relayed, bulk)
        if answer.senders != (self.host,):
            raise CohortError("the broadcast did not come from the host", party=self.host)
        return unpack(self._sums.unwrap(data, context))

    async def share(self, values: Values) -> dict[str, dict[str, NDArray[Any]]]:
        """Every party's values, at every party, never at the coordinator. Opt-in, audited."""
        number = self._relayed
        bulk = self._sums.envelope(pack(values), self._relay_context("share", self.me))
        answer, data = await self._ask(wire.Share(), wire.Relayed, bulk)
        self.enter(answer.senders)  # the coordinator may not leave out whom it does not lose
        parts = cut(data, answer.sizes)
        return {
            sender: unpack(self._sums.unwrap(part, f"share {number} {sender}".encode()))
            for sender, part in zip(answer.senders, parts, strict=True)
        }

    async def agree(self, fingerprint: bytes, about: str) -> None:
        """Stop the run unless every party holds the same state."""
        number = self._agreed = self._agreed + 1  # an old proof proves nothing

        def digest(of: str) -> bytes:
            return self._sums.fingerprint(fingerprint, f"{number} {about} {of}".encode())

        answer, _ = await self._ask(wire.Agree(digest(""), digest(self.me)), wire.Agreed)
        self.enter(tuple(answer.proofs))
        for party, proof in answer.proofs.items():
            if not hmac.compare_digest(proof, digest(party)):
                raise Disagreement(
                    f"{about} differs between parties, or the coordinator says what they did not",
                    fix="compare settings, labels, models and library versions with this party",
                    party=party,
                )

    def rounds(self, total: int, keep: Mapping[str, Stateful] | None = None) -> Rounds:
        """Iterate over the rounds; `keep` is what a checkpoint after each of them holds."""
        return Rounds(
            total, partial(self._first_round, keep or {}), partial(self._end_of_round, keep or {})
        )

    def _first_round(self, keep: Mapping[str, Stateful]) -> int:
        if self.resume_after:
            self._sums.restore(self._checkpoints.restore(self.resume_after, keep))
        self._recorder.round = self.resume_after + 1
        return self.resume_after + 1

    async def _end_of_round(self, keep: Mapping[str, Stateful], number: int) -> None:
        with self._recorder.phase("checkpoint"):
            self._checkpoints.save(number, keep, self._sums.state())
        answer, _ = await self._ask(wire.Boundary(number), wire.Continue)
        self.enter(answer.members)
        self._recorder.event("round", round=number, members=list(self.members))
        self._recorder.round, self._opened = number + 1, 0

    def _spend(self, noise: Noise | None) -> None:
        if noise is None or self.is_host:  # the host adds no noise: it only opens the sum
            return
        if not self._reserved.get(noise):
            raise BudgetError(
                "a noised sum was to be sent that is not in the ledger",
                fix="call cohort.reserve(noise, releases) before the sums of a round",
                party=self.me,
            )
        self._reserved[noise] -= 1

    def _relay_context(self, kind: str, sender: str) -> bytes:
        self._relayed += 1
        return f"{kind} {self._relayed - 1} {sender}".encode()

    def _vector(self, name: str, value: Any) -> Vector:
        vector = np.ascontiguousarray(np.asarray(value, dtype=np.float32)).reshape(-1)
        if not np.isfinite(vector).all():
            raise TrainingError(
                f"{name} holds NaN or infinity, so nothing was sent",
                fix="lower the learning rate, set max_grad_norm, or look at this party's data",
                party=self.me,
            )
        return vector

    async def _groups(
        self, vectors: Mapping[str, Vector], reveal: Reveal, partial: bool
    ) -> tuple[Group, ...]:
        if bool(vectors) == (self.is_host and reveal is Reveal.PARTIES):
            raise CohortError(
                "the host passes {} to a sum for the parties; otherwise values must have names",
                party=self.me,
            )
        if not partial:
            return (Group(self.parties, vectors),) if vectors else ()
        answer, _ = await self._ask(wire.Declare(tuple(vectors)), wire.Owners)
        by_owners: dict[tuple[Name, ...], dict[str, Vector]] = {}
        for name, vector in vectors.items():
            owners = answer.owners.get(name, ())
            if (self.me in owners) == self.is_host:
                raise CohortError(f"the coordinator gives {name!r} the wrong contributors")
            by_owners.setdefault(owners, {})[name] = vector
        return tuple(Group(owners, part) for owners, part in sorted(by_owners.items()))

    def _refuse_small(self, groups: Sequence[Group]) -> None:
        for group in groups:
            owners = set(group.owners) & set(self.members)
            if len(owners) < self.min_cohort:
                first, more = next(iter(group.vectors)), len(group.vectors) - 1
                raise TooFewParties(
                    f"the sum of {first!r}{f' and {more} more' if more else ''} would be over "
                    f"{len(owners)} part{'y' if len(owners) == 1 else 'ies'} "
                    f"({', '.join(sorted(owners))}); min_cohort is {self.min_cohort}",
                    fix="a sum over one hospital IS that hospital: let more parties contribute "
                    "this name, or lower protection.min_cohort knowingly",
                    party=self.me,
                )

    async def _add(self, groups: Sequence[Group], rule: Rule, *, scales: bool = False) -> Arrays:
        with self._recorder.phase("seal"):
            sealed = self._sums.seal(groups, rule)
        message = wire.SumInput(rule.audience, sealed.segments, scales)
        answer, data = await _Exchange(message, sealed.data)
        if isinstance(answer, wire.Unmask):
            self._admit(groups, answer.survivors)
            with self._recorder.phase("unmask"):
                claim, confirmed = self._sums.confirm(answer), None
            if claim is not None:  # somebody is gone: all must have been told the same
                confirmed, _ = await self._ask(claim, wire.Confirmed)
            with self._recorder.phase("unmask"):
                reply = self._sums.reveal(answer, confirmed)
            answer, data = await _Exchange(reply)
        else:
            self._admit(groups, getattr(answer, "survivors", ()))
        if not isinstance(answer, wire.Total):
            raise _unexpected(answer, wire.Total)
        if answer.survivors != self._survivors:
            raise CohortError("the coordinator changed its mind about who took part in a sum")
        if not self.is_host and answer.scales != scales:
            raise CohortError("the coordinator mistakes a sum of values for one of scales")
        self.enter(answer.members)
        self._scales = answer.scales
        with self._recorder.phase("open"):
            opened = self._sums.open(cut(data, answer.sizes), answer.survivors)
            self._sums.accept(answer.offers, answer.members)
        return opened

    def _admit(self, groups: Sequence[Group], survivors: tuple[str, ...]) -> None:
        """Let a sum over these survivors be opened, or refuse before anything is revealed."""
        alive = set(survivors)
        parties = alive - {self.host}
        if not alive <= set(self.members) or len(parties) < self.threshold:
            raise TooFewParties(
                f"only {len(parties)} of {len(self.parties)} parties took part in a sum; "
                f"the threshold is {self.threshold}",
                fix="bring the others back and resume the run; nothing was revealed",
                party=self.me,
            )
        self.members = self._survivors = survivors
        self._refuse_small(groups)
        self._opened += 1
        self._checkpoints.admit(self._recorder.round, self._opened, survivors)

    async def _ask(self, message: FromParty, expect: type[M], bulk: bytes = b"") -> tuple[M, bytes]:
        answer, data = await _Exchange(message, bulk)
        if not isinstance(answer, expect):
            raise _unexpected(answer, expect)
        return answer, data


def _unexpected(answer: object, expected: type) -> CohortError:
    return CohortError(
        f"the coordinator answered {type(answer).__name__} where {expected.__name__} belongs",
        fix="install equal versions everywhere; a coordinator that does this cannot be trusted",
    )
