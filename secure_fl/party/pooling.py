"""Scores over all parties' records: one sum of counts at a round's end, and what follows from it.

Test records are the same in every round. Were one round's counts opened over four parties and the
next one's over three, the difference would be one hospital's. So all of a run's are opened over
exactly those who were in the first, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from secure_fl.events import EventLog, ExtensionEvent
from secure_fl.party.rounds import Stateful
from secure_fl.party.summing import Arrays, Summing
from secure_fl.protocol.ports import Rule

Things: TypeAlias = Mapping[str, Stateful]


class Scores(Protocol):
    """What a site counted, and what it makes of the sum of all sites' counts."""

    def take_counts(self) -> Mapping[str, NDArray[Any]]:
        """Counts since they were last taken, of a few numbers each, under the same names at all."""

    def pooled(self, round: int, sums: Arrays) -> float | None:
        """Write down what the sums say; the main dev metric, if there is one."""


class ScoresNotPooled(ExtensionEvent, frozen=True, tag="scores_not_pooled"):
    """Scores stay at home this round, because a party of the first sum is lost."""

    round: int
    parties: tuple[str, ...]
    """The parties of the first sum."""


class BestRound(ExtensionEvent, frozen=True, tag="best_round"):
    """The round with the best pooled dev score, whose state the run delivers."""

    round: int


class Pooling:
    """Sums a run's counts, round by round, and knows which round was best."""

    def __init__(self, scores: Scores, recorder: EventLog, patience: int | None) -> None:
        self._scores, self._recorder, self._patience = scores, recorder, patience
        self._over: frozenset[str] = frozenset()  # whose counts the first sum was of
        self._best, self._value, self._waited = 0, -math.inf, 0
        self._snapshots: tuple[Snapshot, ...] = ()

    def watch(self, keep: Things, shared: Things) -> tuple[Things, Things]:
        """What checkpoints hold of a run: also how it was judged, and its best round's state."""
        if self._patience is None:
            return keep, {**shared, "pooling": self}
        own, common = self._snapshots = (Snapshot(keep), Snapshot(shared))
        return {**keep, "own best": own}, {**shared, "pooling": self, "best": common}

    async def end(self, round: int, summing: Summing, here: tuple[str, ...]) -> None:
        """Sum this round's counts, if all are here that were in the first sum, and judge it."""
        if not (counts := self._scores.take_counts()):
            return
        sums: Arrays = {}
        if not self._over or self._over == set(here):
            sums = await summing.sum(counts, {}, Rule(), partial=False, only=self._over or None)
        if not sums:
            self._recorder.event(ScoresNotPooled(round=round, parties=tuple(sorted(self._over))))
            return
        self._over = frozenset(summing.survivors)
        value = self._scores.pooled(round, sums)
        if value is not None and value > self._value:
            self._best, self._value, self._waited = round, value, 0
            for snapshot in self._snapshots:
                snapshot.take()
        else:
            self._waited += 1

    @property
    def stops(self) -> bool:
        """Whether no round was better for as many as the settings have patience for."""
        return self._patience is not None and self._waited >= self._patience

    def close(self) -> None:
        """Go back to the best round, where rounds were to wait for a better one."""
        for snapshot in self._snapshots:
            snapshot.restore()
        if self._snapshots and self._best:
            self._recorder.event(BestRound(round=self._best))

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints, and for who joins late: it is equal at all."""
        return {
            "over": sorted(self._over),
            "best": self._best,
            "value": self._value,
            "waited": self._waited,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._over = frozenset(state["over"])
        self._best, self._value, self._waited = (state[k] for k in ("best", "value", "waited"))


class Snapshot:
    """What things were like after the best round, to go back to."""

    def __init__(self, things: Things) -> None:
        self._things = things
        self._states: dict[str, Any] = {}

    def take(self) -> None:
        """Remember them as they are."""
        self._states = {name: deepcopy(thing.state_dict()) for name, thing in self._things.items()}

    def restore(self) -> None:
        """Make them what they were; as they are, if none was taken."""
        for name, state in self._states.items():
            self._things[name].load_state_dict(deepcopy(state))  # some go on with what they load

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return dict(self._states)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._states = dict(state)
