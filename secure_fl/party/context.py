"""Parts that all components of a party's run share: `exchange`, sums, members, checkpoints."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

from secure_fl.errors import DISTRUST, CohortError, RunError, TooFewParties
from secure_fl.party.rounds import Stateful
from secure_fl.protocol.messages import FromCoordinator, FromParty, Message, SurvivorStatement
from secure_fl.protocol.ports import Arrays as Arrays
from secure_fl.protocol.ports import Group, Rule, TranscriptLayer

Request: TypeAlias = tuple[FromParty, bytes]  # a message with its bulk, as a program yields it
M = TypeVar("M", bound=Message)
DIGESTS = 2**256  # the record of opened sums adds digests of names modulo this


@coroutine
def exchange(
    message: FromParty, bulk: bytes = b""
) -> Generator[Request, tuple[FromCoordinator, bytes], tuple[Any, bytes]]:
    """Give the session a message; return the coordinator's answer and its bulk."""
    return (yield message, bulk)


async def ask(message: FromParty, expect: type[M], bulk: bytes = b"") -> tuple[M, bytes]:
    """Send a message; return its answer, which must be of this kind, and the answer's bulk."""
    answer, data = await exchange(message, bulk)
    if not isinstance(answer, expect):
        raise unexpected(answer, expect)
    return answer, data


def unexpected(answer: object, expect: type[Message]) -> CohortError:
    """Make the error for an answer of the wrong kind."""
    return CohortError(
        f"the coordinator answered {type(answer).__name__} where {expect.__name__} belongs",
        fix="install equal versions at all sites; if they are equal, do not trust the coordinator",
    )


@dataclass(frozen=True, slots=True)
class SumRequest:
    """The values of one sum at one party, and the conditions for opening it."""

    values: Mapping[str, Any]
    rule: Rule = field(default_factory=Rule)
    read: Mapping[str, Any] = field(default_factory=dict)  # of a partial sum: read, not contributed
    partial: bool = False  # each party contributes only the names that it has
    only: frozenset[str] | None = None  # open it over exactly these members, or not at all
    questions: tuple[str, ...] = ()  # digests of the questions that the sum answers
    ignore_hooks: bool = False  # sum over all parties, even if a hook selects some of them


class RoundSums(Protocol):
    """The sums of a round, for hooks that need one of their own."""

    @property
    def survivors(self) -> tuple[str, ...]:
        """Members whose values are in the last sum."""

    async def sum(self, request: SumRequest) -> Arrays:
        """Add the values over the parties; {} if the sum could not be opened."""


class Members:
    """The members of a run as one of them sees them, with the smallest numbers it accepts."""

    def __init__(
        self,
        me: str,
        host: str | None,
        min_cohort: int,
        threshold: int,
        transcript: TranscriptLayer,
        gathered: tuple[str, ...] = (),
    ) -> None:
        """`gathered`: the members with which the run must begin; empty: any."""
        self.me, self.host, self._transcript = me, host, transcript
        self.min_cohort, self.threshold, self.gathered = min_cohort, threshold, gathered
        self.roster: tuple[str, ...] = ()  # all that began the run, including those lost since
        self.here: tuple[str, ...] = ()
        self.parties: tuple[str, ...] = ()  # all that are here, except the host
        self.is_host = me == host

    def begin(self, names: tuple[str, ...]) -> None:
        """Begin a run of these members; refuse others than this site has checked."""
        if self.gathered and sorted(names) != sorted(self.gathered):
            others = ", ".join(sorted({*names} ^ {*self.gathered})) or "one of them twice"
            raise CohortError(
                f"the coordinator starts with other members than it gathered ({others})",
                party=self.me,
                fix=DISTRUST,
            )
        self.roster = names
        self._replace_members(names)

    def confirm_members(self, names: Sequence[str]) -> None:
        """Continue with these members: the coordinator may drop some, but cannot add any."""
        known = set(self.here)
        if self.me not in names or not set(names) <= known or len(set(names)) < len(names):
            raise CohortError(
                "the coordinator continues with members that this party did not begin with, or "
                "without this party",
                party=self.me,
                fix=DISTRUST,
            )
        self._replace_members(tuple(names))
        if len(self.parties) < self.threshold:
            raise TooFewParties(
                f"only {len(self.parties)} parties are left; the threshold is {self.threshold}",
                fix="restart the missing parties and resume the run; nothing was sent",
                party=self.me,
            )

    def keep_only(self, survivors: tuple[str, ...]) -> None:
        """Continue with the members whose inputs are in a sum, before any of it is revealed."""
        alive = set(survivors)
        parties = alive - {self.host}
        if self.me not in alive:
            raise CohortError(
                "the coordinator says that this party is gone", party=self.me, fix=DISTRUST
            )
        if not alive <= set(self.here) or len(parties) < self.threshold:
            raise TooFewParties(
                f"only {len(parties)} of {len(self.parties)} parties took part in a sum; "
                f"the threshold is {self.threshold}; nothing was revealed",
                fix=DISTRUST,  # a coordinator that follows the protocol does not request this sum
                party=self.me,
            )
        self._replace_members(survivors)

    def _replace_members(self, names: tuple[str, ...]) -> None:
        """Set the members, and bind later masks to them: a party with another list opens none."""
        self._transcript.saw("\n".join(names).encode(), b"members", host=True)
        self.here, self.parties = names, tuple(m for m in names if m != self.host)

    def require_cohort(self, groups: Sequence[Group]) -> None:
        """Refuse a sum over too few parties: each could compute the values of the others."""
        for group in groups:
            owners = set(group.owners) & set(self.parties)  # the host masks with nobody
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


class Checkpoints:
    """All records of one party about the rounds of a run.

    This base class keeps nothing, for runs without a folder: they cannot be resumed.
    """

    def available(self) -> tuple[int, ...]:
        """Return the rounds that can be restored."""
        return ()

    def save(self, round: int, keep: Mapping[str, Stateful], sums: Mapping[str, Any]) -> None:
        """Write one round, atomically."""

    def restore(self, round: int, keep: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load one round into `keep`, and return the state of the sums."""
        _no_folder("it cannot be resumed")

    def read(self, round: int, name: str) -> dict[str, Any]:
        """Return one of the states of a round, without loading it into anything."""
        _no_folder("it cannot be resumed")

    def roll_back(self, round: int) -> None:
        """Drop all later rounds: if they are repeated, they belong to another session."""

    def export(self, shared: Mapping[str, Stateful], sums: Mapping[str, Any]) -> bytes:
        """Encode the state for newcomers; equal states give equal bytes."""
        _no_folder("nobody can join it late")

    def adopt(self, data: bytes, shared: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load the state that another party exported, and return the state of the sums."""
        _no_folder("nobody can join it late")

    def opened(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Return round, number of the last sum over the same members, and their names."""
        return ()

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Record a sum before it is opened, or refuse it.

        A round that is repeated after a crash repeats its inputs. If its sums were opened over
        other members than before, the difference would reveal the input of one party. `what` is a
        digest of the sum's names and of their contributors.
        """

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Record the holders of a round after which newcomers join, or refuse the newcomers.

        The inputs of a newcomer are new: no earlier round may be opened again with them.
        """
        _no_folder("nobody can join it late")

    def convict(self, party: str, evidence: bytes) -> None:
        """Keep the evidence against a member, or against the coordinator."""

    def keep_statement(self, statement: SurvivorStatement) -> None:
        """Keep a list of survivors that the coordinator signed."""

    def statements(self) -> Sequence[SurvivorStatement]:
        """Return all of these lists, the last one at the end."""
        return ()


def _no_folder(so: str) -> NoReturn:
    raise RunError(
        f"this run has no folder, so {so}",
        fix="give the run a folder: Federation(..., folder=...)",
        reason="no-folder",
    )
