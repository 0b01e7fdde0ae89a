"""The readings of each role: whose values it could read, round by round.

A coalition subtracts what its own members put into a sum, so its readings are of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from secure_fl.algorithms.exact import orthonormal
from secure_fl.capture.merging import (
    OWN,
    PROJECTED,
    WEIGHTS,
    MergedReading,
    Shapes,
    Source,
    SumReading,
    merged,
    model_name,
    shaped,
)
from secure_fl.capture.opening import CapturedSegment, Keys, RecordedRun, Values, as_numbers, read
from secure_fl.capture.shares import Shared, shares
from secure_fl.errors import CryptoError
from secure_fl.protocol import arrays as payload

__all__ = ["OWN", "WEIGHTS", "MergedReading", "Shapes", "Source"]


def of_coordinator(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[MergedReading, ...]:
    """What the coordinator reads off its wires, without any key."""
    return _merged(run, [*_off_the_wire(run, (), rounds), *_relayed(run, rounds)], shapes)


def of_member(
    run: RecordedRun, member: str, shapes: Shapes, rounds: int
) -> tuple[MergedReading, ...]:
    """Take the sums that one member opened, and subtract its own inputs."""
    entries = [*_opened(run, (member,), rounds), *_told(run, (member,), rounds)]
    return _merged(run, entries, shapes)


def of_coalition(
    run: RecordedRun, members: Sequence[str], shapes: Shapes, rounds: int
) -> tuple[MergedReading, ...]:
    """What the coordinator and these members read together."""
    entries = [
        *_opened(run, members, rounds),
        *_told(run, members, rounds),
        *_off_the_wire(run, members, rounds),
    ]
    return _merged(run, entries, shapes)


def of_all(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[MergedReading, ...]:
    """The aggregates themselves, as the parties opened them."""
    entries = [e for p in run.parties for e in _opened(run, (p,), rounds, less=())]
    return _merged(run, entries, shapes)


def host_sums(run: RecordedRun) -> tuple[MergedReading, ...]:
    """Every sum that was opened to the host, one by one, as it was opened."""
    return tuple(
        MergedReading(part.of, part.round, _vectors(part.note.opened, part.segment.sizes), (place,))
        for part in run.parts
        if part.total and part.frame.party == run.host and part.note.opened is not None
        for place in [part.frame.place]
    )


def given(run: RecordedRun, party: str, rounds: int) -> dict[Source, NDArray[Any]]:
    """Read what one party really put into sums and shared: the truth for readings."""
    found: dict[Source, NDArray[Any]] = {}
    for part in run.parts:
        if not part.total and part.frame.party == party and part.round <= rounds:
            for name, vector in _vectors(part.note.given, part.segment.sizes).items():
                found[part.note.session, part.note.number, name] = vector
    for one in shares(run, party):
        if one.sender == party and one.round <= rounds:
            for name, value in _whole(one.values).items():
                found[one.session, one.number, name] = value
    return found


def _off_the_wire(run: RecordedRun, members: Sequence[str], rounds: int) -> Iterator[SumReading]:
    """Every input and every total, read with the members' keys, less what they put in."""
    keys, own = Keys.of(run, members), _own(run, members)
    seen: set[tuple[object, ...]] = set()
    for part in run.parts:
        same = (part.of, part.total, part.note.session, part.note.number, part.segment.key)
        if part.round > rounds or same in seen:  # all parties get the same total
            continue
        seen.add(same)
        if set(part.of) - set(members):
            yield _less(part, read(part, run.mode, keys), own)


def _opened(
    run: RecordedRun, members: Sequence[str], rounds: int, less: Sequence[str] | None = None
) -> Iterator[SumReading]:
    """Take the sums that these members opened; subtract their inputs (or those of `less`)."""
    own = _own(run, members if less is None else less)
    for part in run.parts:
        opened = part.note.opened
        mine = part.total and part.frame.party in members and part.round <= rounds
        if mine and opened is not None:
            values = _vectors(opened, part.segment.sizes)
            entry = _less(part, {n: v.astype(np.float64) for n, v in values.items()}, own)
            if entry.of:
                yield entry


Own = Mapping[str, Mapping[tuple[int, int], Mapping[str, NDArray[Any]]]]


def _own(run: RecordedRun, members: Sequence[str]) -> Own:
    """What members put into each sum."""
    return {m: {(n.session, n.number): n.given for n in run.notes(m)} for m in members}


def _less(part: CapturedSegment, values: Values, own: Own) -> SumReading:
    """Subtract known inputs from a sum, and say whose the rest is."""
    at = (part.note.session, part.note.number)
    for member in set(part.of) & set(own):
        mine = own[member].get(at, {})
        values = {name: v - mine[name] if name in mine else v for name, v in values.items()}
    others = tuple(party for party in part.of if party not in own)
    return SumReading(others, part.round, *at, values, part.frame.place)


def _told(run: RecordedRun, members: Sequence[str], rounds: int) -> Iterator[SumReading]:
    """What others shared with all parties."""
    for member in members:
        for one in shares(run, member):
            if one.sender not in members and one.round <= rounds:
                yield _entry(one, _whole(one.values))


def _relayed(run: RecordedRun, rounds: int) -> Iterator[SumReading]:
    """Read shared values at the coordinator: it sees them if nothing seals them."""
    known: set[tuple[int, int, str]] = set()
    for party in run.parties:
        for one in shares(run, party):
            at = (one.session, one.number, one.sender)
            if one.round > rounds or at in known:
                continue
            known.add(at)
            try:
                values: Mapping[str, NDArray[Any]] = payload.unpack(one.frame.bulk)
            except CryptoError:
                sizes = {name: value.size for name, value in one.values.items()}
                flat = as_numbers(one.frame.bulk, sizes)
                values = {n: flat[n].reshape(value.shape) for n, value in one.values.items()}
            yield _entry(one, _whole(values))


def _entry(one: Shared, values: Mapping[str, Any]) -> SumReading:
    return SumReading((one.sender,), one.round, one.session, one.number, values, one.frame.place)


def _whole(values: Mapping[str, NDArray[Any]]) -> Values:
    """Matrices out of their factors, where they were shared as such."""
    found: Values = {}
    for name, value in values.items():
        base, _, part = name.rpartition("|")
        if part == "U":
            found[base] = ((value * values[f"{base}|S"]) @ values[f"{base}|V"]).astype(np.float64)
        elif part == "whole":
            found[base] = value.astype(np.float64)
        elif not base:
            found[name] = value.astype(np.float64)
    return found


def _vectors(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: values[name] for name in names if name in values}


def _merged(
    run: RecordedRun, entries: Sequence[SumReading], shapes: Shapes
) -> tuple[MergedReading, ...]:
    factors = any(name.endswith(PROJECTED) for entry in entries for name in entry.values)
    return merged(entries, shapes, _bases(run, shapes) if factors else {})


def _bases(run: RecordedRun, shapes: Shapes) -> dict[tuple[int, str], NDArray[Any]]:
    """U of every matrix that travelled as factors: it follows from opened sums of all.

    Every role is given it. Who could not open those sums has no use for it.
    """
    bases: dict[tuple[int, str], NDArray[Any]] = {}
    for part in run.parts:
        opened = part.note.opened
        if not part.total or part.frame.party == run.host or opened is None:
            continue
        for name in part.segment.sizes:
            at = (part.round, model_name(name, shapes))
            Y = shaped(name, opened[name], shapes)
            if at[1] in shapes and at not in bases and Y.ndim == 2 and Y.shape != shapes[at[1]]:
                bases[at] = orthonormal(torch.tensor(Y)).numpy()
    return bases
