"""A party's view: what it put into each sum, and what was opened to it.

The layout of a sum (names, sizes, where each value lies in the slots) is the same at all parties
and public; the values are this party's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    EnvelopeLayer,
    Group,
    Rule,
    SlotLayout,
    SumInProgress,
    SumLayer,
)

STEM = "notes"


class LayoutLine(msgspec.Struct, frozen=True):
    """How a protected segment lies in slots."""

    fields: tuple[tuple[str, int, float | None, bool], ...]
    bits: int
    parties: int
    modulus: int
    extra: int


class SegmentLine(msgspec.Struct, frozen=True):
    """One segment of a sum."""

    key: str
    owners: tuple[str, ...]
    vectors: tuple[tuple[str, int], ...]
    layout: LayoutLine | None  # None: in the clear, one float after the other


class SumLine(msgspec.Struct, frozen=True, tag="sum"):
    """One sum, as it was sealed."""

    session: int
    number: int  # sums of this session, from 1, those of scales among them
    audience: str
    grid: float | None  # steps per unit of noised values
    segments: tuple[SegmentLine, ...]
    given: dict[str, Span]


class OpenedLine(msgspec.Struct, frozen=True, tag="opened"):
    """The same sum, as it was opened to this party."""

    session: int
    number: int
    survivors: tuple[str, ...]
    values: dict[str, Span]


class SharedLine(msgspec.Struct, frozen=True, tag="told"):
    """A value that another member shared with all parties, as this party opened it."""

    session: int
    context: str  # the kind, a number, and who sent it
    data: Span


AnyLine = SumLine | OpenedLine | SharedLine


@dataclass(frozen=True, slots=True)
class SumSegment:
    """One segment of a sum: whose values, which, and how they lie."""

    key: str
    owners: tuple[str, ...]
    sizes: Mapping[str, int]
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class NoiseGrid:
    """The grid that noised values lie on: all that decoding needs to know of their noise."""

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
    """One sum as one party saw it."""

    session: int
    number: int
    audience: Audience
    noise: NoiseGrid | None  # None: nothing was added
    segments: tuple[SumSegment, ...]
    given: Mapping[str, NDArray[np.float32]]
    opened: Mapping[str, NDArray[np.float32]] | None = None  # None: not to this party
    survivors: tuple[str, ...] = ()


class WatchedSums:
    """The party's half of a run's sums (`SumLayer`), with what it gives and gets written down."""

    def __init__(self, inner: SumLayer, journal: Journal, session: int) -> None:
        self._inner, self._journal, self._session = inner, journal, session
        self._number = 0
        # What is neither given nor opened is not watched.
        self.next_keys, self.accept = inner.next_keys, inner.accept
        self.unscaled, self.learn, self.forget = inner.unscaled, inner.learn, inner.forget
        self.leftover, self.postpone = inner.leftover, inner.postpone
        self.inquiry = inner.inquiry

    @property
    def sent(self) -> bytes:
        """What left of the sum that began last."""
        return self._inner.sent

    def begin(self, groups: Sequence[Group], rule: Rule, at: SumId) -> WatchedSumUnderWay:
        """Begin a sum, and note what it is given."""
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
            if segment.size  # else this party only reads the sum
            for name, vector in group.vectors.items()
        }
        grid = None if rule.noise is None else rule.noise.scale
        line = SumLine(self._session, self._number, rule.audience, grid, segments, given)
        self._journal.line(line)
        return WatchedSumUnderWay(under_way, self._journal, self._session, self._number)


class WatchedSumUnderWay:
    """One sum (`SumInProgress`), with what is opened written down."""

    def __init__(self, inner: SumInProgress, journal: Journal, session: int, number: int) -> None:
        self._inner, self._journal = inner, journal
        self._session, self._number = session, number
        self.upload, self.layouts = inner.upload, inner.layouts
        self.settle, self.shares = inner.settle, inner.shares

    @property
    def unscaled(self) -> Sequence[str]:
        """What could not be scaled by this sum, once it is opened."""
        return self._inner.unscaled

    def open(
        self, parts: Sequence[bytes], survivors: Sequence[str], lost: Mapping[str, Lost] = NONE_LOST
    ) -> dict[str, NDArray[np.float64]]:
        """Open the sum, and note what came out."""
        opened = self._inner.open(parts, survivors, lost)
        values = {name: _put(self._journal, vector) for name, vector in opened.items()}
        line = OpenedLine(self._session, self._number, tuple(survivors), values)
        self._journal.line(line)
        return opened


class WatchedEnvelopes:
    """A party's envelopes (`EnvelopeLayer`), with what others told it written down."""

    def __init__(self, inner: EnvelopeLayer, journal: Journal, session: int) -> None:
        self._inner, self._journal, self._session = inner, journal, session
        self.seal, self.fingerprint = inner.seal, inner.fingerprint
        self.vouch, self.vouched = inner.vouch, inner.vouched

    def open(self, data: bytes, context: bytes) -> bytes:
        """Open what another member shared with all, and note it."""
        value = self._inner.open(data, context)
        self._journal.line(SharedLine(self._session, context.decode(), self._journal.put(value)))
        return value


def _put(journal: Journal, vector: NDArray[Any]) -> Span:
    return journal.put(vector.astype("<f4").tobytes())


def read(folder: Path) -> tuple[tuple[SumNote, ...], tuple[SharedValue, ...]]:
    """All sums of a recorded run as one party saw them, and what others told it."""
    stem = folder / STEM
    blobs = Blobs(stem)

    def values(spans: Mapping[str, Span]) -> dict[str, NDArray[np.float32]]:
        return {name: np.frombuffer(blobs[span], "<f4") for name, span in spans.items()}

    found: dict[tuple[int, int], SumNote] = {}
    told: list[SharedValue] = []
    for line in lines(stem, cast("type[Any]", AnyLine)):
        if isinstance(line, SharedLine):
            told += _told(line, blobs[line.data])
            continue
        at = (line.session, line.number)
        if isinstance(line, SumLine):
            found[at] = SumNote(
                line.session,
                line.number,
                Audience(line.audience),
                None if line.grid is None else NoiseGrid(line.grid),
                tuple(map(_segment, line.segments)),
                values(line.given),
            )
        elif at in found:
            opened = values(line.values)
            found[at] = replace(found[at], opened=opened, survivors=line.survivors)
    return tuple(found.values()), tuple(told)


def _told(line: SharedLine, data: bytes) -> list[SharedValue]:
    """Decode what an envelope held; a state for newcomers gives none, for all hold it alike."""
    kind, _, rest = line.context.partition(" ")
    if kind not in ("broadcast", "share"):
        return []
    sender = rest.partition(" ")[2]
    return [SharedValue(line.session, kind, sender, payload.unpack(data))]


def _sizes(group: Group) -> tuple[tuple[str, int], ...]:
    return tuple((name, vector.size) for name, vector in group.vectors.items())


def _line(layout: SlotLayout | None) -> LayoutLine | None:
    if layout is None:
        return None
    fields = tuple((f.name, f.size, f.clip, f.norm) for f in layout.fields)
    codec = layout.codec
    return LayoutLine(fields, codec.bits, codec.parties, codec.modulus, codec.extra)


def _segment(line: SegmentLine) -> SumSegment:
    layout = None
    if (known := line.layout) is not None:
        codec = Codec(known.bits, known.parties, known.modulus, known.extra)
        layout = Layout(tuple(Field(*found) for found in known.fields), codec)
    return SumSegment(line.key, line.owners, dict(line.vectors), layout)
