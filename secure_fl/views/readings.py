"""The readings of each role: whose values it could read, round by round.

A coalition subtracts what its own members put into a sum from what was opened, so its readings are
of the others. Factors (Y = G·Ω and B = Uᵀ·G) are put together as far as they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.views.opening import Keys, RecordedRun, Values, read

SCALES = "|"  # what the names of sums of scales begin with
PROJECTED = "|B"  # what the names of projections end with
OWN = "|Y"  # what is put behind a name for its own sketch Y = G·Ω
WEIGHTS = ("records", "parties", "weight")  # the names under which weights are summed
LARGEST = 2.0**40  # weight; what masks make of one is beyond it, or not even positive

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Read:
    """Values of some parties, summed, in one round."""

    of: tuple[str, ...]
    round: int
    values: Mapping[str, NDArray[Any]]
    evidence: tuple[str, ...]


def of_coordinator(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[Read, ...]:
    """What the coordinator reads off its wires, without any key."""
    return _off_the_wire(run, Keys({}, {}), shapes, rounds)


def of_member(run: RecordedRun, member: str, shapes: Shapes, rounds: int) -> tuple[Read, ...]:
    """What was opened to one member, less what it put in itself."""
    return _opened(run, (member,), shapes, rounds) + _told(run, member, shapes)


def of_coalition(
    run: RecordedRun, members: Sequence[str], shapes: Shapes, rounds: int
) -> tuple[Read, ...]:
    """What the coordinator and these members read together."""
    wires = _off_the_wire(run, Keys.of(run, members), shapes, rounds)
    own = [read for read in wires if not set(read.of) & set(members)]
    return _opened(run, tuple(members), shapes, rounds) + tuple(own)


def of_all(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[Read, ...]:
    """The aggregates themselves, as every party opened them."""
    return _opened(run, (), shapes, rounds)


def host_sums(run: RecordedRun) -> tuple[Read, ...]:
    """Every sum that was opened to the host, one by one, as it was opened."""
    return tuple(
        Read(part.of, part.round, _vectors(part.note.opened, part.segment.sizes), (place,))
        for part in run.parts
        if part.total and part.frame.party == run.host and part.note.opened is not None
        for place in [part.frame.place]
    )


def given(run: RecordedRun, party: str, shapes: Shapes, rounds: int) -> tuple[Read, ...]:
    """What one party really put into its sums: what readings are compared with."""
    sent = [p for p in run.parts if not p.total and p.frame.party == party and p.round <= rounds]
    entries = [(part.of, part.round, _vectors(part.note.given, part.segment.sizes), "")
               for part in sent]  # fmt: skip
    return _merged(run, entries, shapes)


def _off_the_wire(run: RecordedRun, keys: Keys, shapes: Shapes, rounds: int) -> tuple[Read, ...]:
    entries = []
    seen: set[tuple[object, ...]] = set()
    for part in run.parts:
        same = (part.of, part.round, part.segment.key, part.note.number)
        if part.round > rounds or same in seen:  # all parties get the same total
            continue
        seen.add(same)
        values = read(part, run.mode, keys)
        entries.append((part.of, part.round, values, part.frame.place))
    return _merged(run, entries, shapes)


def _opened(
    run: RecordedRun, members: tuple[str, ...], shapes: Shapes, rounds: int
) -> tuple[Read, ...]:
    """What was opened to these members, less all that they put in."""
    entries = []
    reader = members[0] if members else run.parties[0]
    theirs = {name: {(n.session, n.number): n for n in run.notes(name)} for name in members}
    for part in run.parts:
        note = part.note
        mine = part.total and part.frame.party == reader and part.round <= rounds
        if not mine or note.opened is None:
            continue
        others = tuple(name for name in part.of if name not in members)
        values = {n: v.astype(np.float64)
                  for n, v in _vectors(note.opened, part.segment.sizes).items()}  # fmt: skip
        for name in set(part.of) & set(members):
            own = theirs[name].get((note.session, note.number))
            for key in values if own is not None else ():
                values[key] = values[key] - own.given[key]  # type: ignore[union-attr]
        if others:
            entries.append((others, part.round, values, part.frame.place))
    return _merged(run, entries, shapes)


def _told(run: RecordedRun, member: str, shapes: Shapes) -> tuple[Read, ...]:
    """What others shared with all parties; rounds are not told apart."""
    entries = [
        ((told.sender,), 1, {n: v.astype(np.float64) for n, v in _whole(told.values).items()}, "")
        for told in run.told(member)
        if told.kind == "share" and told.sender != member
    ]
    return _merged(run, entries, shapes)


def _whole(values: Mapping[str, NDArray[Any]]) -> Values:
    """Matrices out of their factors, where they were shared as such."""
    found: Values = {}
    for name, value in values.items():
        base, _, part = name.rpartition("|")
        if part == "U":
            found[base] = (value * values[f"{base}|S"]) @ values[f"{base}|V"]
        elif part == "whole":
            found[base] = value
        elif not base:
            found[name] = value
    return found


def _vectors(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: values[name] for name in names if name in values}


def _merged(
    run: RecordedRun,
    entries: Iterable[tuple[tuple[str, ...], int, Mapping[str, Any], str]],
    shapes: Shapes,
) -> tuple[Read, ...]:
    """One reading for each round and each set of parties; of a name, the first that was sent."""
    found: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    places: dict[tuple[int, tuple[str, ...]], dict[str, None]] = {}
    for of, round, values, place in entries:
        kept = found.setdefault((round, of), {})
        new = {n: v for n, v in values.items() if not n.startswith(SCALES) and n not in kept}
        kept |= {name: _shaped(name, vector, shapes) for name, vector in new.items()}
        if new and place:
            places.setdefault((round, of), {})[place] = None
    bases = _bases(run, shapes) if any(_factors(values) for values in found.values()) else {}
    return tuple(
        Read(of, round, _mean(_put_together(values, round, bases)), tuple(places.get(at, ())))
        for at, values in sorted(found.items())
        if values
        for round, of in [at]
    )


def _factors(values: Mapping[str, Any]) -> bool:
    return any(name.endswith(PROJECTED) for name in values)


def _bases(run: RecordedRun, shapes: Shapes) -> dict[tuple[int, str], NDArray[Any]]:
    """U of every matrix that travelled as factors: it follows from opened sums of all.

    Every role is given it. Who could not open those sums has no use for it.
    """
    bases: dict[tuple[int, str], NDArray[Any]] = {}
    for part in run.parts:
        if part.total and part.frame.party == run.parties[0] and part.note.opened is not None:
            for name in part.segment.sizes:
                Y = _shaped(name, part.note.opened[name], shapes)
                if name in shapes and Y.ndim == 2:
                    bases.setdefault((part.round, name), _orthonormal(Y.astype(np.float64)))
    return bases


def _put_together(
    values: Mapping[str, Any], round: int, bases: Mapping[tuple[int, str], NDArray[Any]]
) -> dict[str, Any]:
    """U·B for each matrix that was read as a projection, beside its Y.

    U belongs to the sum of all, so the rows of U·B are no longer of one party alone; Y's are.
    """
    whole = {name: value for name, value in values.items() if not name.endswith(PROJECTED)}
    for name in filter(lambda name: name.endswith(PROJECTED), values):
        base = name.removesuffix(PROJECTED)
        U = bases.get((round, base))
        if U is not None and U.shape[1] == len(values[name]):
            whole[base + OWN] = values[base]
            whole[base] = U @ values[name]
    return whole


def _orthonormal(Y: NDArray[Any]) -> NDArray[Any]:
    """Y(YᵀY)^-½, as `algorithms.lowrank.orthonormal`."""
    U, _, V = np.linalg.svd(Y, full_matrices=False)
    basis: NDArray[Any] = U @ V
    return basis


def _mean(values: dict[str, Any]) -> dict[str, Any]:
    """Divide by the weight that was summed beside the values, if it reads as one."""
    weight = next((values[name] for name in WEIGHTS if name in values), 1.0)
    total = float(np.ravel(weight)[0])
    if not 0 < total < LARGEST:
        return values
    return {n: v if n in WEIGHTS else v / total for n, v in values.items()}


def _shaped(name: str, vector: Any, shapes: Shapes) -> Any:
    """A vector as the matrix that its name stands for, or as the factor of one."""
    shape = shapes.get(name.removesuffix(PROJECTED))
    if shape is None or np.ndim(vector) > 1:
        return vector
    size = int(np.prod(shape))
    if name.endswith(PROJECTED):
        return vector.reshape(-1, shape[1]) if vector.size % shape[1] == 0 else vector
    if vector.size == size:
        return vector.reshape(shape)
    return vector.reshape(shape[0], -1) if vector.size % shape[0] == 0 else vector
