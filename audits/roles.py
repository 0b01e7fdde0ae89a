"""Views of a recorded run: the values that an attacker in each role can read.

The roles are the coordinator, one hospital, the host, and coalitions with the coordinator. A
`Reading` has the values of one sum or message after all that the role can subtract from it.
"""

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
PUBLIC, CODE = "the public", "the shipped code"  # other trials' roles, without a view of messages
WEIGHT_CHANGES = (-1e6, 1e6)  # values beyond are masked

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def shapes_of(prior: Prior) -> Shapes:
    """List the shapes of the model's weights by name; they are public."""
    return {name: tuple(weight.shape) for name, weight in prior.model().named_parameters()}


def role_of(colluders: int, host: bool = False) -> str:
    """Name a coalition with the coordinator."""
    hospitals = f"{colluders} hospital{'s' if colluders > 1 else ''}" if colluders else ""
    return " + ".join(filter(None, (COORDINATOR, HOST if host else "", hospitals)))


def coordinator(run: RecordedRun, shapes: Shapes, rounds: int) -> CoordinatorView:
    """Make the coordinator's own view."""
    merged = readings.of_coordinator(run, shapes, rounds)
    return CoordinatorView(COORDINATOR, _clipped(merged), run.frames)


def views(run: RecordedRun, shapes: Shapes, rounds: int, bound: int) -> tuple[View, ...]:
    """Make the view of every role, in the first `rounds` rounds.

    `bound` is the largest number of colluding hospitals that the protocol withstands. Larger
    coalitions can remove masks, so attacks on them show nothing, and they have no view. The one
    exception is all hospitals but one: they need no keys, only a subtraction.
    """
    roles: list[View] = [coordinator(run, shapes, rounds)]
    colluders_first = by_danger(run, rounds)
    if len(run.parties) > 1:
        merged = readings.of_member(run, colluders_first[0], shapes, rounds)
        roles.append(View(MEMBER, _clipped(merged)))
    if run.host is not None:
        merged = readings.of_member(run, run.host, shapes, rounds)
        roles.append(View(HOST, _clipped(merged)))
        roles.append(_coalition(run, (run.host,), shapes, rounds, role_of(0, host=True)))
    all_but_one = len(run.parties) - 1
    for size in sorted({1, bound, all_but_one}):
        if 1 <= size <= all_but_one:
            members = colluders_first[:size]
            roles.append(_coalition(run, members, shapes, rounds, role_of(size)))
    return tuple(roles)


def smallest_sum(run: RecordedRun, rounds: int) -> tuple[str, ...]:
    """Return the contributors of the smallest opened sum.

    A sum is smaller than the cohort after dropouts, or if it is of one tier.
    """
    contributors = [part.of for part in run.parts if part.total and part.round <= rounds]
    return min(contributors, key=lambda names: (len(names), names), default=run.parties)


def by_danger(run: RecordedRun, rounds: int) -> tuple[str, ...]:
    """Order hospitals by how much a coalition learns if they join it one after the other.

    Contributors of the smallest sum subtract their inputs from it, so they are first. Those that
    opened most sums, so did not drop out, lead. The last contributor is the last of all: if all
    others collude, they learn its update.
    """
    totals = [p for p in run.parts if p.total and p.round <= rounds]
    opened = Counter(part.frame.party for part in totals if part.note.opened is not None)
    contributors = sorted(smallest_sum(run, rounds), key=lambda party: -opened[party])
    others = (party for party in run.parties if party not in contributors)
    return (*contributors[:-1], *others, *contributors[-1:])


def bound_of(run: RecordedRun, stated: int, rounds: int) -> int:
    """Return the number of colluding hospitals up to which attacks must fail.

    It is the bound that the run states, and at most the smallest sum's contributors less two: the
    sum of two honest hospitals remains.
    """
    return min(stated, len(smallest_sum(run, rounds)) - 2)


def within_bound(parties: int, bound: int) -> dict[str, bool]:
    """Map each coalition to True if the bound covers it, so it learns only the others' sum."""
    return {role_of(colluders): colluders <= bound for colluders in range(1, parties)}


def shuffled(view: CoordinatorView, prior: Prior) -> CoordinatorView:
    """Return the null view: the same numbers in random places, so that there is nothing to find."""
    mixed = tuple(
        replace(reading, values={n: _mixed(n, reading, prior) for n in reading.values})
        for reading in view.readings
    )
    return replace(view, readings=mixed)


def _mixed(name: str, reading: Reading, prior: Prior) -> Any:
    """Shuffle a value's numbers. A single one cannot be shuffled: another value's replaces it."""
    values, rng = np.asarray(reading.values[name]), prior.rng("null", name)
    if values.size > 1:
        return rng.permutation(np.ravel(values)).reshape(values.shape)
    others = [v for v in map(np.ravel, reading.values.values()) if v.size > 1] or [np.zeros(1)]
    return np.full(values.shape, rng.choice(others[rng.integers(len(others))]))


def _coalition(
    run: RecordedRun, members: Sequence[str], shapes: Shapes, rounds: int, role: str
) -> CoordinatorView:
    merged = readings.of_coalition(run, members, shapes, rounds)
    return CoordinatorView(role, _clipped(merged), run.frames)


def _clipped(merged: Sequence[MergedReading]) -> tuple[Reading, ...]:
    """Clip all values, as an attacker would: masked ones are larger than any weight's change."""
    clipped = []
    for one in merged:
        values = {
            name: np.clip(np.nan_to_num(np.asarray(value, np.float64)), *WEIGHT_CHANGES)
            for name, value in one.values.items()
        }
        clipped.append(Reading(one.of, one.round, values, one.evidence, one.sources))
    return tuple(clipped)
