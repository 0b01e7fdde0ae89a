"""The roles of a recorded run, and the view of each: what it could read, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from secure_fl.audits.base import (
    CollusionView,
    CoordinatorView,
    HostView,
    PartyView,
    Prior,
    Reading,
    View,
)
from secure_fl.views import readings
from secure_fl.views.opening import RecordedRun

COORDINATOR, HOST = "coordinator", "host"
PUBLIC = "the public"
CODE = "the shipped code"
LARGEST = 1e6  # move of a weight

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def shapes_of(prior: Prior) -> Shapes:
    """The weights of the model by name: public."""
    return {name: tuple(weight.shape) for name, weight in prior.model().named_parameters()}


def role_of(colluders: int, host: bool = False) -> str:
    """What a coalition with the coordinator is called."""
    whom = f"{colluders} hospital{'s' if colluders > 1 else ''}" if colluders else ""
    return " + ".join(filter(None, (COORDINATOR, HOST if host else "", whom)))


def coordinator(run: RecordedRun, shapes: Shapes, rounds: int) -> CoordinatorView:
    """The coordinator alone."""
    reads = readings.of_coordinator(run, shapes, rounds)
    return CoordinatorView(COORDINATOR, _readings(reads), run.frames)


def views(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[View, ...]:
    """Every role of a run: alone, and colluding with the coordinator."""
    found: list[View] = [coordinator(run, shapes, rounds)]
    one = run.parties[0]
    if len(run.parties) > 1:
        reads = readings.of_member(run, one, shapes, rounds)
        found.append(PartyView("one hospital", _readings(reads)))
    if run.host is not None:
        found.append(HostView(HOST, _readings(readings.of_member(run, run.host, shapes, rounds))))
        found.append(_coalition(run, (run.host,), shapes, rounds, role_of(0, host=True)))
    n = len(run.parties)
    for colluders in sorted({1, n - 2, n - 1} & set(range(1, n))):
        who = run.parties[:colluders]
        found.append(_coalition(run, who, shapes, rounds, role_of(colluders)))
    return tuple(found)


def shuffled(view: CoordinatorView, prior: Prior) -> CoordinatorView:
    """The null: the same numbers in random places, so that there is nothing to be found."""
    mixed = tuple(
        replace(reading, values={n: _mixed(n, v, prior) for n, v in reading.values.items()})
        for reading in view.readings
    )
    return replace(view, readings=mixed)


def _mixed(name: str, values: Any, prior: Prior) -> Any:
    flat = np.ravel(values)
    return prior.rng("null", name).permutation(flat).reshape(np.shape(values))


def _coalition(
    run: RecordedRun, members: Sequence[str], shapes: Shapes, rounds: int, role: str
) -> CollusionView:
    reads = readings.of_coalition(run, members, shapes, rounds)
    return CollusionView(role, _readings(reads), run.frames)


def _readings(reads: Sequence[readings.Read]) -> tuple[Reading, ...]:
    return tuple(
        Reading(r.of, r.round, {n: _plausible(v) for n, v in r.values.items()}, r.evidence)
        for r in reads
    )


def _plausible(values: Any) -> Any:
    """What masks make of an update is beyond what any model moves: an attacker cuts it off."""
    return np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64)), -LARGEST, LARGEST)
