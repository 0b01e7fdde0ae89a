"""The guard: each opened round is tested by all on their own dev records, and may be undone.

After a round a party compares how wrong the state is on each of its dev records with how wrong the
last admitted state was, and looks at how much the sums' grids grew. Ballots are summed sealed. If a
share of them is against it, a round is undone at all parties alike: model, optimisers, leftovers,
scales. What was seen stays seen, and random numbers go on, so that no input comes twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import RefusedRounds
from secure_fl.events import EventLog, ExtensionEvent
from secure_fl.party.ballots import vote
from secure_fl.party.pooling import Snapshot, Things
from secure_fl.party.search import Search
from secure_fl.party.summing import Summing
from secure_fl.protocol.ports import Transcript
from secure_fl.settings import GuardSettings

Wrong = NDArray[np.float64]  # of each dev record, from 0 (right) to 1


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


class Judge(Protocol):
    """Who can tell how good a state is, by records of its own."""

    def wrong(self) -> Wrong:
        """How wrong the models are, as they are now, on each dev record: 0 to 1."""

    def forget(self, round: int) -> None:
        """Drop what was measured in a round that is undone."""


def harm(before: Wrong, after: Wrong, errors: float) -> float:
    """By how much the records got worse, for sure: their mean change less its standard errors.

    As if one more record had turned from right to wrong: of few records little is sure.
    """
    change = after - before
    spread = math.sqrt((np.square(change - change.mean()).sum() + 1) / change.size)
    return float(change.mean() - errors * spread / math.sqrt(change.size))


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """How many times the squared norms of a party, in the mean, are what they were.

    Where there was no sum of a name before, they are compared with this party's own.
    """
    both = before.keys() & after.keys()
    old, new = (sum(norms[name] for name in sorted(both)) for norms in (before, after))
    return new / old if old > 0 else 1.0


def needed(share: float, voters: int) -> int:
    """How many votes against a round refuse it: never one party's alone, never only all of them."""
    return max(2, min(math.ceil(share * voters - 1e-9), voters - 1))


class Guard:
    """One party's part in testing every round of a run."""

    def __init__(
        self,
        settings: GuardSettings,
        judge: Judge,
        recorder: EventLog,
        seed: int,
        max_growth: float | None = None,
    ) -> None:
        """`max_growth`: this site's own cap, where it is lower than the plan's."""
        self._cfg, self._judge, self._recorder = settings, judge, recorder
        caps = [cap for cap in (settings.max_growth, max_growth) if cap is not None]
        self._cap = min(caps, default=math.inf)
        self._own, self._common = Own(), Common(seed)
        self._transcript: Transcript | None = None
        self._things: Things = {}
        self._admitted = Snapshot({})  # what things were like after the last admitted round
        self._scaling: Mapping[str, Any] = {}

    def watch(
        self, things: Things, keep: Things, shared: Things, transcript: Transcript
    ) -> tuple[Things, Things]:
        """Undo these things if need be; returns what checkpoints hold besides."""
        self._transcript = transcript
        self._things, self._admitted = things, Snapshot(things)
        return {**keep, "own guard": self._own}, {**shared, "guard": self._common}

    @property
    def refused(self) -> tuple[int, ...]:
        """The rounds that were undone."""
        return tuple(self._common.refused)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Whose moves are summed no longer."""
        return self._common.search.left_out

    def undone(self) -> int:
        """How many rounds were undone that others make up for."""
        return len(self._common.refused) if self._cfg.again else 0

    def among(self, parties: Sequence[str]) -> tuple[str, ...]:
        """Whose moves the round's sums are over."""
        return self._common.search.among(parties) if self._cfg.search else tuple(parties)

    def begin(self) -> None:
        """Remember how things are, to go back to."""
        assert self._transcript is not None  # noqa: S101 - rounds begin after `watch`
        self._admitted.take()
        self._scaling = self._transcript.scaling()

    async def end(self, round: int, summing: Summing, parties: Sequence[str]) -> None:
        """Test the round, vote, and undo it if it is refused."""
        assert self._transcript is not None  # noqa: S101
        common, among = self._common, self.among(parties)
        after, before = self._judge.wrong(), self._own.wrong
        if before is None:  # the first round, or this party's first
            before = self._wrong_before()
        now = self._transcript.scaling()
        grown = growth({**now["own"], **self._scaling["grid"]}, now["grid"])
        worse = harm(before, after, self._cfg.errors)
        # Each move counts for more in a sum over a half, and so does chance.
        tolerance = self._cfg.tolerance * len(parties) / len(among)
        against = worse > tolerance or grown > self._cap
        votes = await vote(summing, against)
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
        if not refused:
            self._own.wrong = after
            common.search.admitted(round, parties)
            return
        self._own.wrong = before
        self._admitted.restore()
        self._transcript.rescale(self._scaling)
        self._judge.forget(round)
        common.refused.append(round)
        common.search.refused(round, parties, votes.against)
        if len(common.refused) > self._cfg.most:
            raise RefusedRounds(
                f"{len(common.refused)} rounds were refused ({common.told()}), and the plan allows "
                f"{self._cfg.most}: somebody sends what makes the model worse, or votes so",
                fix="the state after the last admitted round is kept; find out which site it is "
                "(compare programs and records), and start a new run without it",
                round=round,
            )

    def _wrong_before(self) -> Wrong:
        """How wrong the state was before this round."""
        now = Snapshot(self._things)
        now.take()
        self._admitted.restore()
        before = self._judge.wrong()
        now.restore()
        return before


class Own:
    """What one party's guard keeps for itself."""

    def __init__(self) -> None:
        self.wrong: Wrong | None = None  # on each dev record, after the last admitted round

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"wrong": self.wrong}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.wrong = state["wrong"]


class Common:
    """What all parties' guards know alike."""

    def __init__(self, seed: int) -> None:
        self.refused: list[int] = []
        self.search = Search(seed)

    def told(self) -> str:
        """The refused rounds in words."""
        return ", ".join(map(str, self.refused))

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints, and for who joins late."""
        return {"refused": list(self.refused), "search": self.search.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.refused = list(state["refused"])
        self.search.load_state_dict(state["search"])
