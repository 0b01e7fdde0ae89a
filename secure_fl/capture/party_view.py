"""A party's view: its inputs to each sum, and what it opened.

The layout of a sum (names, sizes, places of values in the slots) is public and the same at all
parties. The values are this party's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from secure_fl.capture.blobs import Blobs, Journal, Span, lines
from secure_fl.crypto.sealing.packing import Codec, Field, Layout
from secure_fl.protocol import arrays as payload
from secure_fl.protocol.messages import Audience, Lost, SumId
from secure_fl.protocol.ports import (
    NONE_LOST,
    Arrays,
    EnvelopeLayer,
    Group,
    Rule,
    SlotLayout,
    SumInProgress,
    SumLayer,
)

STEM = "notes"


class LayoutLine(msgspec.Struct, frozen=True):
    """The layout of a protected segment in slots."""

    fields: tuple[tuple[str, int, float | None, bool], ...]
    bits: int
    parties: int
    modulus: int
    extra: int


class SegmentLine(msgspec.Struct, frozen=True, dict=True):
    """One segment of a sum: its owners, vectors and layout."""

    key: str
    owners: tuple[str, ...]
    vectors: tuple[tuple[str, int], ...]
    layout: LayoutLine | None  # None: unprotected floats

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The number of values of each vector."""
        return dict(self.vectors)

    @cached_property
    def slots(self) -> Layout:
        """The layout that decodes slots; every protected sum has one."""
        known = self.layout
        assert known is not None  # noqa: S101 - only protected sums are decoded
        codec = Codec(known.bits, known.parties, known.modulus, known.extra)
        return Layout(tuple(Field(*field) for field in known.fields), codec)


class SumLine(msgspec.Struct, frozen=True, tag="sum"):
    """One sum when it was sealed."""

    session: int
    number: int  # of the sum in this session, from 1, with sums of scales
    audience: str
    grid: float | None  # steps per unit of noised values
    segments: tuple[SegmentLine, ...]
    given: dict[str, Span]


class OpenedLine(msgspec.Struct, frozen=True, tag="opened"):
    """The same sum when this party opened it."""

    session: int
    number: int
    survivors: tuple[str, ...]
    values: dict[str, Span]


class SharedLine(msgspec.Struct, frozen=True, tag="told"):
    """A value that another member shared with all parties, when this party opened it."""

    session: int
    context: str  # the kind, a number, and the sender
    data: Span


AnyLine = SumLine | OpenedLine | SharedLine


@dataclass(frozen=True, slots=True)
class NoiseGrid:
    """The grid of noised values, which is all that decoding needs of their noise."""

    scale: float


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that another member shared with all parties."""

    session: int
    kind: str  # "broadcast" or "share"
    sender: str
    values: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SumNote:
    """One party's record of one sum."""

    session: int
    number: int
    audience: Audience
    noise: NoiseGrid | None  # None: no noise
    segments: tuple[SegmentLine, ...]
    given: Mapping[str, NDArray[np.float32]]
    opened: Mapping[str, NDArray[np.float32]] | None = None  # None: not opened by this party
    survivors: tuple[str, ...] = ()


class RecordedSums:
    """The party's half of a run's sums (`SumLayer`), with inputs and outputs recorded."""

    def __init__(self, inner: SumLayer, journal: Journal, session: int) -> None:
        self._inner, self._journal, self._session = inner, journal, session
        self._number = 0
        # These neither receive inputs nor open sums.
        self.next_keys, self.accept = inner.next_keys, inner.accept
        self.inquiry, self.upload = inner.inquiry, inner.upload

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> RecordedSumUnderWay:
        """Begin a sum, and record its inputs."""
        under_way = self._inner.begin(groups, rule, at)
        self._number += 1
        sent = under_way.upload.segments
        segments = tuple(
            SegmentLine(segment.key.hex(), group.owners, _sizes(group), _line(layout))
            for segment, group, layout in zip(sent, groups, under_way.layouts, strict=True)
        )
        given = {
            name: _put(self._journal, vector)
            for segment, group in zip(sent, groups, strict=True)
            if segment.size  # otherwise this party only reads the sum
            for name, vector in group.vectors.items()
        }
        grid = None if rule.noise is None else rule.noise.scale
        line = SumLine(self._session, self._number, rule.audience, grid, segments, given)
        self._journal.line(line)
        return RecordedSumUnderWay(under_way, self._journal, self._session, self._number)


class RecordedSumUnderWay:
    """One sum (`SumInProgress`), with its opened values recorded."""

    def __init__(self, inner: SumInProgress, journal: Journal, session: int, number: int) -> None:
        self._inner, self._journal = inner, journal
        self._session, self._number = session, number
        self.upload, self.layouts = inner.upload, inner.layouts
        self.settle, self.shares = inner.settle, inner.shares

    @property
    def unscaled(self) -> Sequence[str]:
        """The names that this opened sum could not scale."""
        return self._inner.unscaled

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NONE_LOST
    ) -> Arrays:
        """Open the sum, and record its values."""
        opened = self._inner.open(parts, survivors, lost)
        values = {name: _put(self._journal, vector) for name, vector in opened.items()}
        line = OpenedLine(self._session, self._number, tuple(survivors), values)
        self._journal.line(line)
        return opened


class RecordedEnvelopes:
    """A party's envelopes (`EnvelopeLayer`), with values from others recorded."""

    def __init__(self, inner: EnvelopeLayer, journal: Journal, session: int) -> None:
        self._inner, self._journal, self._session = inner, journal, session
        self.seal, self.fingerprint = inner.seal, inner.fingerprint
        self.vouch, self.vouched = inner.vouch, inner.vouched

    def open(self, data: bytes, context: bytes) -> bytes:
        """Open what another member shared with all, and record it."""
        value = self._inner.open(data, context)
        self._journal.line(SharedLine(self._session, context.decode(), self._journal.put(value)))
        return value


def _put(journal: Journal, vector: NDArray[Any]) -> Span:
    return journal.put(vector.astype("<f4").tobytes())


def read(folder: Path) -> tuple[tuple[SumNote, ...], tuple[SharedValue, ...]]:
    """Read one party's record of all sums, and of values that others shared."""
    stem = folder / STEM
    blobs = Blobs(stem)

    def values(spans: Mapping[str, Span]) -> dict[str, NDArray[np.float32]]:
        return {name: np.frombuffer(blobs[span], "<f4") for name, span in spans.items()}

    sums: dict[tuple[int, int], SumNote] = {}
    shared: list[SharedValue] = []
    for line in lines(stem, cast("type[Any]", AnyLine)):
        if isinstance(line, SharedLine):
            shared += _shared(line, blobs[line.data])
            continue
        at = (line.session, line.number)
        if isinstance(line, SumLine):
            sums[at] = SumNote(
                line.session,
                line.number,
                Audience(line.audience),
                None if line.grid is None else NoiseGrid(line.grid),
                line.segments,
                values(line.given),
            )
        elif at in sums:
            opened = values(line.values)
            sums[at] = replace(sums[at], opened=opened, survivors=line.survivors)
    return tuple(sums.values()), tuple(shared)


def _shared(line: SharedLine, data: bytes) -> list[SharedValue]:
    """Decode a shared value; skip a state for newcomers, which is the same at all parties."""
    kind, _, rest = line.context.partition(" ")
    if kind not in ("broadcast", "share"):
        return []
    sender = rest.partition(" ")[2]
    values = dict(sorted(payload.unpack(data).items()))  # the format has no order of its own
    return [SharedValue(line.session, kind, sender, values)]


def _sizes(group: Group) -> tuple[tuple[str, int], ...]:
    return tuple((name, vector.size) for name, vector in group.vectors.items())


def _line(layout: SlotLayout | None) -> LayoutLine | None:
    if layout is None:
        return None
    fields = tuple((f.name, f.size, f.clip, f.norm) for f in layout.fields)
    codec = layout.codec
    return LayoutLine(fields, codec.bits, codec.parties, codec.modulus, codec.extra)
