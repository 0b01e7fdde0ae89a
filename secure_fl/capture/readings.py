"""The readings of each role: the values that it could read, by owner and round.

A coalition subtracts its own members' inputs from a sum, so its readings are of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from secure_fl.algorithms.exact import orthonormal
from secure_fl.capture.merging import (
    MergedReading,
    Shapes,
    Source,
    SumReading,
    merged,
    model_name,
    shaped,
)
from secure_fl.capture.opening import (
    CapturedSegment,
    RecordedRun,
    Values,
    as_numbers,
    keys_of,
    read,
)
from secure_fl.capture.recording import CapturedFrame
from secure_fl.errors import CryptoError
from secure_fl.protocol import arrays as payload
from secure_fl.protocol.messages import Share
from secure_fl.protocol.sum_names import PART, PROJECTED, WHOLE

DIGEST = 32  # bytes


def of_coordinator(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[MergedReading, ...]:
    """Read the coordinator's wires without any key."""
    return _merged(run, [*_off_the_wire(run, (), rounds), *_relayed(run, rounds)], shapes)


def of_member(
    run: RecordedRun, member: str, shapes: Shapes, rounds: int
) -> tuple[MergedReading, ...]:
    """Take the sums that one member opened, and subtract its own inputs."""
    entries = [*_opened(run, (member,), rounds), *_shared(run, (member,), rounds)]
    return _merged(run, entries, shapes)


def of_coalition(
    run: RecordedRun, members: Sequence[str], shapes: Shapes, rounds: int
) -> tuple[MergedReading, ...]:
    """Read what the coordinator and these members know together."""
    entries = [
        *_opened(run, members, rounds),
        *_shared(run, members, rounds),
        *_off_the_wire(run, members, rounds),
    ]
    return _merged(run, entries, shapes)


def of_all(run: RecordedRun, shapes: Shapes, rounds: int) -> tuple[MergedReading, ...]:
    """Take the aggregates themselves, as the parties opened them."""
    entries = [e for p in run.parties for e in _opened(run, (p,), rounds, less=())]
    return _merged(run, entries, shapes)


def host_sums(run: RecordedRun) -> tuple[MergedReading, ...]:
    """List every sum that the host opened, unchanged."""
    return tuple(
        MergedReading(
            part.of,
            part.round,
            _vectors(part.note.opened, part.segment.sizes),
            (part.frame.place,),
            expected=part.segment.owners,
        )
        for part in run.parts
        if part.total and part.frame.party == run.host and part.note.opened is not None
    )


def given(run: RecordedRun, party: str, rounds: int) -> dict[Source, NDArray[Any]]:
    """Collect what one party really put into sums and shared, to score readings."""
    inputs: dict[Source, NDArray[Any]] = {}
    for part in run.parts:
        if not part.total and part.frame.party == party and part.round <= rounds:
            for name, vector in _vectors(part.note.given, part.segment.sizes).items():
                inputs[part.note.session, part.note.number, name] = vector
    for one in shares(run, party):
        if one.sender == party and one.round <= rounds:
            for name, value in _products(one.values).items():
                inputs[one.session, one.number, name] = value
    return inputs


def _off_the_wire(run: RecordedRun, members: Sequence[str], rounds: int) -> Iterator[SumReading]:
    """Read every input and total with the members' keys, and subtract their own inputs."""
    keys, inputs = keys_of(run, members), _inputs(run, members)
    seen: set[tuple[object, ...]] = set()
    for part in run.parts:
        same = (part.of, part.total, part.note.session, part.note.number, part.segment.key)
        if part.round > rounds or same in seen:  # all parties get the same total
            continue
        seen.add(same)
        if set(part.of) - set(members):
            yield _less(part, read(part, run.mode, keys), inputs)


def _opened(
    run: RecordedRun, members: Sequence[str], rounds: int, less: Sequence[str] | None = None
) -> Iterator[SumReading]:
    """Take the sums that these members opened; subtract their inputs (or those of `less`)."""
    inputs = _inputs(run, members if less is None else less)
    for part in run.parts:
        opened = part.note.opened
        mine = part.total and part.frame.party in members and part.round <= rounds
        if mine and opened is not None:
            values = _vectors(opened, part.segment.sizes)
            entry = _less(part, {n: v.astype(np.float64) for n, v in values.items()}, inputs)
            if entry.of:
                yield entry


Inputs = Mapping[str, Mapping[tuple[int, int], Mapping[str, NDArray[Any]]]]


def _inputs(run: RecordedRun, members: Sequence[str]) -> Inputs:
    """Collect members' inputs to each sum."""
    return {m: {(n.session, n.number): n.given for n in run.notes(m)} for m in members}


def _less(part: CapturedSegment, values: Values, inputs: Inputs) -> SumReading:
    """Subtract known inputs from a sum, and name the owners of the rest."""
    at = (part.note.session, part.note.number)
    for member in set(part.of) & set(inputs):
        mine = inputs[member].get(at, {})
        values = {name: v - mine[name] if name in mine else v for name, v in values.items()}
    others = tuple(party for party in part.of if party not in inputs)
    return SumReading(others, part.round, *at, values, part.frame.place)


def _shared(run: RecordedRun, members: Sequence[str], rounds: int) -> Iterator[SumReading]:
    """Take what others shared with all parties."""
    for member in members:
        for one in shares(run, member):
            if one.sender not in members and one.round <= rounds:
                yield _entry(one, _products(one.values))


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
            yield _entry(one, _products(values))


def _entry(one: ReceivedShare, values: Mapping[str, Any]) -> SumReading:
    return SumReading((one.sender,), one.round, one.session, one.number, values, one.frame.place)


def _products(values: Mapping[str, NDArray[Any]]) -> Values:
    """Multiply factors to matrices, where they were shared as such."""
    matrices: Values = {}
    for name, value in values.items():
        base, _, part = name.rpartition(PART)
        if part == "U":
            matrices[base] = ((value * values[f"{base}{PART}S"]) @ values[f"{base}{PART}V"]).astype(
                np.float64
            )
        elif part == WHOLE:
            matrices[base] = value.astype(np.float64)
        elif not base:
            matrices[name] = value.astype(np.float64)
    return matrices


def _vectors(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: values[name] for name in names if name in values}


def _merged(
    run: RecordedRun, entries: Sequence[SumReading], shapes: Shapes
) -> tuple[MergedReading, ...]:
    factors = any(name.endswith(PROJECTED) for entry in entries for name in entry.values)
    return merged(entries, shapes, _bases(run, shapes) if factors else {})


def _bases(run: RecordedRun, shapes: Shapes) -> dict[tuple[int, str], NDArray[Any]]:
    """Compute U of every matrix that was sent as factors, from opened sums of all.

    Every role gets it, since it is useless without those sums.
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


# --- values that a party shared with all others ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceivedShare:
    """A value that one party shared with all, as another opened it."""

    sender: str
    round: int
    session: int
    number: int  # -1, -2, ...: sums are counted from 1
    frame: CapturedFrame
    values: Mapping[str, NDArray[Any]]


def shares(run: RecordedRun, reader: str) -> Iterator[ReceivedShare]:
    """List the values that this reader opened, its own among them.

    The n-th value that it opened of a sender is the n-th that this sender sent.
    """
    sent: dict[tuple[int, str], list[CapturedFrame]] = {}
    for frame in run.frames:
        if not frame.sent and isinstance(frame.envelope.message, Share):
            sent.setdefault((frame.line.session, frame.party), []).append(frame)
    count: dict[tuple[int, str], int] = {}
    for value in run.shared_with(reader):
        if value.kind != "share":
            continue
        at = (value.session, value.sender)
        n = count[at] = count.get(at, 0) + 1
        if n <= len(sent.get(at, ())):
            frame = sent[at][n - 1]
            round = max(1, frame.envelope.round)
            values = {n: v for n, v in value.values.items() if not _is_common(v)}
            yield ReceivedShare(value.sender, round, value.session, -n, frame, values)


def _is_common(value: NDArray[Any]) -> bool:
    """Recognise tiers and digests of common state: few whole numbers, and no update."""
    return np.issubdtype(value.dtype, np.integer) and value.size <= DIGEST
