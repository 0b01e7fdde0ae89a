"""The comparison of a hospital's models on its own dev records, and the votes of all hospitals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.learning.metric_counts import LOSS, SCORED, Contributions, Counts
from secure_fl.learning.tasks import Task
from secure_fl.party.cohort import Cohort

Rows: TypeAlias = Mapping[str, Contributions]  # each record's contribution to the counts
Scores: TypeAlias = NDArray[np.float64]  # of one model: on all records, and in each draw
Vote: TypeAlias = Literal["better", "worse", "undecided"]

VOTES: tuple[Vote, ...] = ("better", "worse", "undecided")
DRAWS = 1000  # of the bootstrap
TAILS = (2.5, 97.5)  # percentiles of a 95 % interval
FEWEST = 10  # dev records of a decided vote: a bootstrap of fewer is too narrow
VOTERS, BALLOT = "hospitals with dev records", "votes on the served model"


class Difference(NamedTuple):
    """The difference of the main metric between two models, with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Scores, other: Scores) -> Difference:
        """Compare the `resampled` scores of two models on the same draws."""
        apart = ours - other
        value = float(apart[0])
        finite = np.isfinite(apart[1:]).any()
        low, high = np.nanpercentile(apart[1:], TAILS) if finite else (value, value)
        return cls(value, float(low), float(high))

    def document(self) -> dict[str, Any]:
        """Return the difference as result.json has it."""
        return {"difference": self.value, "interval": [self.low, self.high]}


def draws(records: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Draw how often each record occurs: once each, and then in every sample of the bootstrap."""
    yield np.ones(records, np.int64)
    for _ in range(DRAWS):
        yield rng.multinomial(records, np.full(records, 1 / records))


def resampled(
    task: Task, models: Sequence[Rows], drawn: Iterable[NDArray[np.int64]]
) -> list[Scores]:
    """Compute each model's main metric for each draw of records.

    Metrics of binned scores are left out: no task has one of them as its main metric.
    """
    kept = [
        {n: r for n, r in rows.items() if n != LOSS and not n.startswith(SCORED)} for rows in models
    ]
    return [*np.array([[_score(task, rows, weights) for rows in kept] for weights in drawn]).T]


def _score(task: Task, rows: Rows, weights: NDArray[np.int64]) -> float:
    """Compute the main metric if each record occurs as often as its weight says."""
    counts: Counts = {
        name: np.bincount(row.place, row.value * weights[row.record], row.size).astype(
            row.value.dtype
        )
        for name, row in rows.items()
    }
    return task.rates(counts).get(task.metric, float("nan"))


def vote_on(apart: Difference, records: int) -> Vote:
    """Decide by the interval of a difference; few records decide nothing."""
    if records < FEWEST or not (apart.low > 0 or apart.high < 0):
        return "undecided"
    return "better" if apart.low > 0 else "worse"


async def voters_of(cohort: Cohort, votes: bool) -> int:
    """Count the hospitals that have dev records, by a sealed sum; 0 if the sum is no such count."""
    opened = await cohort.sum({VOTERS: np.array([float(votes)], np.float32)})
    counted = _counts(opened[VOTERS])
    return sum(counted) if counted and sum(counted) <= len(cohort.survivors) else 0


async def count_votes(cohort: Cohort, vote: Vote | None, voters: int) -> dict[str, int] | None:
    """Count the votes by a sealed sum over the members of the last one.

    None: a member has left, or the sum is not that of so many ballots, so that one was false.
    """
    ballot = np.array([float(vote == name) for name in VOTES], np.float32)
    opened = await cohort.sum({BALLOT: ballot}, together=True)
    counted = _counts(opened[BALLOT]) if opened else None
    if counted is None or sum(counted) != voters:
        return None
    return dict(zip(VOTES, counted, strict=True))


def _counts(opened: NDArray[np.float64]) -> list[int] | None:
    """Return counts from a sum of them; None if a number is not whole, or negative."""
    if not np.isfinite(opened).all() or (opened < 0).any() or (opened != np.rint(opened)).any():
        return None
    return [int(number) for number in opened]


def sentence(votes: Mapping[str, int]) -> str:
    """Describe the votes."""
    voters = sum(votes[name] for name in VOTES)
    rest = f"; the dev records of {votes['undecided']} do not decide" if votes["undecided"] else ""
    return (
        f"at {votes['better']} of {voters} hospitals the served model is better than training "
        f"alone, at {votes['worse']} it is worse{rest}"
    )
