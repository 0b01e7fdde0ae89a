"""The guard's hook: all parties test each round on their own dev records, and may undo it.

After a round, a party compares the error of the new state on each dev record with the error of the
last admitted state. It also measures how much the grids of the sums grew. The parties then vote in
a sealed sum. If enough votes are against the round, all parties undo it: model, optimisers,
leftovers and scales. The transcript and the random states are not undone, so that no input is ever
sent twice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.algorithms.updates import SavedDict
from secure_fl.errors import RefusedRounds
from secure_fl.events import EventLog, ExtensionEvent
from secure_fl.features.guard.judge import Errors, Judge
from secure_fl.features.guard.settings import GuardSettings
from secure_fl.party.context import Members, RoundSums, SumRequest
from secure_fl.party.hooks import RoundHook, Snapshot, States
from secure_fl.protocol.ports import Rule, TranscriptLayer
from secure_fl.seeds import seed_for

TWICE = 2  # refused sums that included a party, before it is excluded

Names: TypeAlias = tuple[str, ...]


class SubsetSearch:
    """The search for one poisoning party; all parties derive the same state from refused rounds.

    All parties take part until a round is refused. Then public random numbers divide the parties
    of that round into two halves. The rounds that follow sum over one half at a time until one of
    them is admitted, which clears that half. New halves are drawn from the new state, so that each
    clears half of the remaining suspects. A party that remains alone, and was in at least two
    refused sums, is excluded until a sum without it is refused as well. Several poisoning parties
    end at the limit of the plan.

    From one state, sums are opened over all parties that take part and over its two halves, and
    over no other subsets. Together they reveal the sums over the halves, and nothing about smaller
    groups. If dropouts leave fewer than `min_cohort` parties in a half, all take part instead.
    """

    def __init__(self, seed: int, min_cohort: int = 1) -> None:
        self._seed, self._min_cohort = seed, min_cohort
        self.left_out: Names = ()
        self._suspects: Names = ()  # empty: no search is under way
        self._strikes: dict[str, int] = {}  # by suspect, the refused sums that included it
        self._halves: tuple[Names, ...] = ()  # of the parties that take part, from this state
        self._tried = 0  # number of halves that were summed; 2: all parties take part again
        self._first = 0  # votes against the first half

    def among(self, parties: Collection[str]) -> Names:
        """Return the parties whose updates the next sums add."""
        wanted: Collection[str] = set(parties) - set(self.left_out)
        if self._halves:
            wanted = self._halves[0] + self._halves[1]
            if not self._all_take_part(parties):
                wanted = self._halves[self._tried]
        return tuple(sorted(set(wanted) & set(parties)))

    def _all_take_part(self, parties: Collection[str]) -> bool:
        """Return true after both halves, or if this half has lost too many for a sum."""
        if self._tried >= len(self._halves):
            return True
        return len(set(self._halves[self._tried]) & set(parties)) < self._min_cohort

    def admitted(self, round: int, parties: Collection[str]) -> None:
        """Clear the parties of an admitted round, and choose the next subset."""
        among = self.among(parties)
        self._halves, self._tried = (), 0
        self._suspects = tuple(s for s in self._suspects if s not in among and s in parties)
        match self._suspects:
            case ():
                self._strikes = {}
            case (suspect,):  # with fewer strikes it may have been chance: all take part again
                if self._strikes.get(suspect, 0) >= TWICE:
                    self.left_out, self._suspects, self._strikes = (suspect,), (), {}
            case _:
                self._divide(round, self.among(parties))

    def refused(self, round: int, parties: Collection[str], against: int) -> None:
        """Suspect the parties of a refused round, and choose the next subset."""
        among = self.among(parties)
        for party in among:
            self._strikes[party] = self._strikes.get(party, 0) + 1
        if not self._halves:
            self.left_out = ()
            self._suspects = self._suspects or among
            self._divide(round, among)
        elif self._tried < 2 and self._all_take_part(parties):
            self._suspects = self._suspects or among
        elif self._tried == 0:
            self._tried, self._first = 1, against
            self._suspects = tuple(s for s in self._suspects if s in among)
        elif self._tried == 1:  # one refusal was chance, or there are several poisoning parties
            self._tried, more = 2, against - self._first
            self._suspects = () if more == 0 else self._halves[int(more > 0)]
        else:  # repeat the same halves: from this state no others may be opened
            self._tried = 0
            self._suspects = self._suspects or among

    def _divide(self, round: int, among: Names) -> None:
        """Draw two halves that share the suspects; the half with fewer of them comes first."""

        def drawn(party: str) -> tuple[bool, int]:
            return party not in self._suspects, seed_for(self._seed, "guard", round, party)

        def suspected(half: Sequence[str]) -> int:
            return sum(party in self._suspects for party in half)

        order = sorted(among, key=drawn)
        first, second = sorted((order[0::2], order[1::2]), key=suspected)
        self._halves, self._tried = (tuple(first), tuple(second)), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for newcomers; it is equal at all parties."""
        return {
            "left_out": self.left_out,
            "suspects": self._suspects,
            "strikes": dict(sorted(self._strikes.items())),
            "halves": self._halves,
            "tried": self._tried,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.left_out, self._suspects = tuple(state["left_out"]), tuple(state["suspects"])
        self._strikes = dict(state["strikes"])
        self._halves = tuple(tuple(half) for half in state["halves"])
        self._tried, self._first = int(state["tried"]), int(state["first"])


BALLOT = "guard/ballot"
ROWS, SLOTS = 16, 128  # of a side; see `Votes` for the chance to remove a vote unnoticed


class Votes(NamedTuple):
    """The result of a secret ballot: all parties learn the number of votes.

    A plain sum of votes would accept any number as a vote: a member that sends -7 outvotes seven.
    So a ballot has two sides, for and against, each of `ROWS` rows. In each row of its side a
    voter puts a 1 into one slot that it draws secretly. A member that adds votes makes their number
    larger than the number of voters. A member that removes a vote must guess a used slot in every
    row; one wrong guess leaves a number below zero. Both spoil the ballot, and every party sees it.
    With m votes on a side, all guesses are right with probability (1 - (1 - 1/SLOTS)^m)^ROWS:
    4e-22 for 6 votes, 3e-7 for 64, 6e-4 for 127.
    """

    against: int
    voters: int
    spoiled: bool  # a member sent something that is not a vote


def ballot(against: bool) -> NDArray[np.float32]:
    """Make one vote, in slots that only this party knows."""
    paper = np.zeros((2, ROWS, SLOTS), np.float32)
    for row in paper[int(against)]:
        row[secrets.randbelow(SLOTS)] = 1.0
    return paper


def count(papers: NDArray[np.float64], voters: int) -> Votes:
    """Count the votes in the sum of so many ballots; all rows must agree."""
    whole = np.rint(papers)
    favour, against = whole.sum(axis=2)
    genuine = np.abs(papers - whole).max() < 0.1 and whole.min() >= 0
    genuine &= (favour + against == voters).all() and (against == against[0]).all()
    return Votes(int(np.median(against).clip(0, voters)), voters, spoiled=not genuine)


async def vote(sums: RoundSums, against: bool) -> Votes:
    """Cast this party's vote, and count the votes of all."""
    paper = {BALLOT: ballot(against)}
    opened = await sums.sum(SumRequest(paper, Rule(bound=1.0), ignore_hooks=True))
    return count(opened[BALLOT], len(sums.survivors))


class RoundVote(ExtensionEvent, frozen=True, tag="guard"):
    """The outcome of the parties' vote on a round."""

    round: int
    refused: bool
    against: int
    voters: int
    spoiled: bool
    """True if a ballot was neither a vote for nor against."""
    own_vote: bool
    """True if this party voted against the round."""
    harm: float
    growth: float
    among: tuple[str, ...]
    """The parties whose updates are in the round's sum."""


def harm(before: Errors, after: Errors, errors: float) -> float:
    """Return how much worse the records got for sure: mean change minus `errors` standard errors.

    One more record counts as turned from right to wrong: a few records prove little.
    """
    change = after - before
    spread = math.sqrt((np.square(change - change.mean()).sum() + 1) / change.size)
    return float(change.mean() - errors * spread / math.sqrt(change.size))


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the factor by which the mean squared norms of a party grew.

    For a name without an earlier sum, `before` holds this party's own norm.
    """
    both = before.keys() & after.keys()
    old, new = (sum(norms[name] for name in sorted(both)) for norms in (before, after))
    return new / old if old > 0 else 1.0


def needed(share: float, voters: int) -> int:
    """Return how many votes refuse a round: at least two, and never the votes of all."""
    return max(2, min(math.ceil(share * voters - 1e-9), voters - 1))


class Guard(RoundHook):
    """The hook of one party that tests every round of a run."""

    def __init__(
        self,
        settings: GuardSettings,
        judge: Judge,
        recorder: EventLog,
        seed: int,
        max_growth: float | None = None,
        min_cohort: int = 1,
    ) -> None:
        """`max_growth`: this site's own cap; the lower of it and the plan's applies."""
        self._cfg, self._judge, self._recorder = settings, judge, recorder
        caps = [cap for cap in (settings.max_growth, max_growth) if cap is not None]
        self._cap = min(caps, default=math.inf)
        # Errors on each dev record after the last admitted round, which only this party has.
        self._own, self._shared = SavedDict(wrong=None), SharedState(seed, min_cohort)
        self._transcript: TranscriptLayer | None = None
        self._states: States = {}
        self._admitted = Snapshot({})  # the state after the last admitted round
        self._scaling: Mapping[str, Any] = {}

    def watch(
        self, keep: States, shared: States, transcript: TranscriptLayer
    ) -> tuple[States, States]:
        """Receive the states that a refused round takes back."""
        self._transcript = transcript
        self._states = {**keep, **shared}
        self._admitted = Snapshot(self._states)
        return {"own guard": self._own}, {"guard": self._shared}

    @property
    def refused(self) -> tuple[int, ...]:
        """The rounds that were undone."""
        return tuple(self._shared.refused)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parties whose updates are excluded from the sums."""
        return self._shared.search.left_out

    @property
    def undone(self) -> int:
        """Number of undone rounds that are repeated."""
        return len(self._shared.refused) if self._cfg.again else 0

    def contributors(self, parties: Sequence[str]) -> tuple[str, ...]:
        """Select the parties whose updates the sums of this round add."""
        return self._shared.search.among(parties) if self._cfg.search else tuple(parties)

    def begin(self) -> None:
        """Keep the state before the round, to restore it if the round is refused."""
        assert self._transcript is not None  # noqa: S101 - rounds begin after `watch`
        self._admitted.take()
        self._scaling = self._transcript.scaling()

    async def end(self, round: int, sums: RoundSums, members: Members) -> None:
        """Test the round, vote, and undo it if it is refused."""
        parties, among = members.parties, self.contributors(members.parties)
        after, before = self._judge.wrong(), self._own["wrong"]
        if before is None:  # the first round of the run, or of this party
            before = self._wrong_before()
        grown, worse = self._growth(), harm(before, after, self._cfg.errors)
        # In a sum over a half each update weighs more, and so does chance.
        tolerance = self._cfg.tolerance * len(parties) / len(among)
        against = worse > tolerance or grown > self._cap
        votes = await vote(sums, against)
        refused = votes.spoiled or votes.against >= needed(self._cfg.share, votes.voters)
        spoiled = ", with an invalid ballot" if votes.spoiled else ""
        outcome = f"{votes.against} of {votes.voters} parties voted against it{spoiled}"
        self._recorder.event(
            RoundVote(
                round=round,
                refused=refused,
                **votes._asdict(),
                own_vote=against,
                harm=worse,
                growth=grown,
                among=tuple(among),
                text=f"round {round} was refused and undone: {outcome}" if refused else None,
            )
        )
        if refused:
            self._own["wrong"] = before
            self._undo(round, parties, votes.against)
        else:
            self._own["wrong"] = after
            if self._cfg.search:
                self._shared.search.admitted(round, parties)

    def report(self) -> Mapping[str, Any]:
        """Return the refused rounds and the excluded parties, equal at all parties."""
        refused, left_out = list(self.refused), list(self.left_out)
        settings = self._cfg.model_dump(mode="json")
        return {"guard": {"settings": settings, "refused": refused, "left_out": left_out}}

    def _undo(self, round: int, parties: Sequence[str], against: int) -> None:
        """Restore the last admitted state; stop the run if too many rounds were refused."""
        assert self._transcript is not None  # noqa: S101 - rounds end after `watch`
        shared = self._shared
        self._admitted.restore()
        self._transcript.rescale(self._scaling)
        self._judge.forget(round)
        shared.refused.append(round)
        if self._cfg.search:
            shared.search.refused(round, parties, against)
        if len(shared.refused) > self._cfg.most:
            rounds = ", ".join(map(str, shared.refused))
            raise RefusedRounds(
                f"{len(shared.refused)} rounds were refused ({rounds}), and the plan allows "
                f"{self._cfg.most}: a site sends updates that make the model worse, or votes "
                "against good rounds",
                fix="the state after the last admitted round is kept; find out which site it is "
                "(compare programs and records), and start a new run without it",
                round=round,
            )

    def _growth(self) -> float:
        """Return how much the grids of this round's sums grew."""
        assert self._transcript is not None  # noqa: S101 - rounds end after `watch`
        now = self._transcript.scaling()
        return growth({**now["own"], **self._scaling["grid"]}, now["grid"])

    def _wrong_before(self) -> Errors:
        """Measure the errors of the state before this round."""
        current = Snapshot(self._states)
        current.take()
        self._admitted.restore()
        before = self._judge.wrong()
        current.restore()
        return before


class SharedState:
    """The part of a guard's state that is equal at all parties."""

    def __init__(self, seed: int, min_cohort: int) -> None:
        self.refused: list[int] = []
        self.search = SubsetSearch(seed, min_cohort)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for newcomers."""
        return {"refused": list(self.refused), "search": self.search.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.refused = list(state["refused"])
        self.search.load_state_dict(state["search"])
