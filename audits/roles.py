"""The roles of a recorded run, and the view of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from secure_fl.audits.findings import CoordinatorView, Prior, Reading, View
from secure_fl.capture import readings
from secure_fl.capture.merging import MergedReading
from secure_fl.capture.opening import RecordedRun

COORDINATOR, HOST = "coordinator", "host"
MEMBER = "one hospital"
PUBLIC = "the public"
CODE = "the shipped code"
LARGEST = 1e6  # move of a weight

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def shapes_of(prior: Prior) -> Shapes:
    """List the shapes of the model's weights by name; they are public."""
    return {name: tuple(weight.shape) for name, weight in prior.model().named_parameters()}


def role_of(colluders: int, host: bool = False) -> str:
    """Name a coalition with the coordinator."""
    whom = f"{colluders} hospital{'s' if colluders > 1 else ''}" if colluders else ""
    return " + ".join(filter(None, (COORDINATOR, HOST if host else "", whom)))


def coordinator(run: RecordedRun, shapes: Shapes, rounds: int) -> CoordinatorView:
    """Make the coordinator's own view."""
    reads = readings.of_coordinator(run, shapes, rounds)
    return CoordinatorView(COORDINATOR, _readings(reads), run.frames)


def views(run: RecordedRun, shapes: Shapes, rounds: int, bound: int) -> tuple[View, ...]:
    """Make the view of every role: alone, and colluding with the coordinator, up to the bound.

    Colluders beyond the bound hold shares that remove masks; they are not tried. All but one
    hospital are tried, since they only need a subtraction.
    """
    roles: list[View] = [coordinator(run, shapes, rounds)]
    ranked = by_danger(run, rounds)
    if len(run.parties) > 1:
        reads = readings.of_member(run, ranked[0], shapes, rounds)
        roles.append(View(MEMBER, _readings(reads)))
    if run.host is not None:
        reads = readings.of_member(run, run.host, shapes, rounds)
        roles.append(View(HOST, _readings(reads)))
        roles.append(_coalition(run, (run.host,), shapes, rounds, role_of(0, host=True)))
    n = len(run.parties)
    for colluders in sorted({1, bound, n - 1} & set(range(1, n))):
        roles.append(_coalition(run, ranked[:colluders], shapes, rounds, role_of(colluders)))
    return tuple(roles)


def smallest_sum(run: RecordedRun, rounds: int) -> tuple[str, ...]:
    """Find the parties of the smallest opened sum: after dropouts, or of a tier."""
    sums = [part.of for part in run.parts if part.total and part.round <= rounds]
    return min(sums, key=lambda of: (len(of), of), default=run.parties)


def by_danger(run: RecordedRun, rounds: int) -> tuple[str, ...]:
    """Order hospitals by how much they learn from colluding: those in the smallest sum first.

    The last one is of that sum too. If all others collude, they are left with its update.
    """
    seen = [p for p in run.parts if p.total and p.round <= rounds and p.note.opened is not None]
    opened = Counter(part.frame.party for part in seen)
    first = sorted(smallest_sum(run, rounds), key=lambda party: -opened[party])  # no dropouts
    others = (party for party in run.parties if party not in first)
    return (*first[:-1], *others, *first[-1:])


def bound_of(run: RecordedRun, honest: int, rounds: int) -> int:
    """Bound the colluding hospitals: as the run states, and never all but one of a sum's."""
    return min(honest, len(smallest_sum(run, rounds)) - 2)


def within_bound(parties: int, bound: int) -> dict[str, bool]:
    """Map each coalition to True if the bound covers it: then it learns the others' sum alone."""
    return {role_of(colluders): colluders <= bound for colluders in range(1, parties)}


def shuffled(view: CoordinatorView, prior: Prior) -> CoordinatorView:
    """Make the null: the same numbers in random places, so that there is nothing to find."""
    mixed = tuple(
        replace(reading, values={n: _mixed(n, reading, prior) for n in reading.values})
        for reading in view.readings
    )
    return replace(view, readings=mixed)


def _mixed(name: str, reading: Reading, prior: Prior) -> Any:
    """Shuffle a value's numbers; a single number is replaced by one of another value."""
    values, rng = np.asarray(reading.values[name]), prior.rng("null", name)
    if values.size > 1:
        return rng.permutation(np.ravel(values)).reshape(values.shape)
    others = [v for v in map(np.ravel, reading.values.values()) if v.size > 1] or [np.zeros(1)]
    return np.full(values.shape, rng.choice(others[rng.integers(len(others))]))


def _coalition(
    run: RecordedRun, members: Sequence[str], shapes: Shapes, rounds: int, role: str
) -> CoordinatorView:
    reads = readings.of_coalition(run, members, shapes, rounds)
    return CoordinatorView(role, _readings(reads), run.frames)


def _readings(reads: Sequence[MergedReading]) -> tuple[Reading, ...]:
    return tuple(
        Reading(
            r.of, r.round, {n: _plausible(v) for n, v in r.values.items()}, r.evidence, r.sources
        )
        for r in reads
    )


def _plausible(values: Any) -> Any:
    """Clip masked values to what a model could move, as an attacker would."""
    return np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64)), -LARGEST, LARGEST)
