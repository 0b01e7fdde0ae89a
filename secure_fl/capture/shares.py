"""Values that a party shared with all others: whose, when, and in which frame they travelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.capture.coordinator_view import CapturedFrame
from secure_fl.capture.opening import RecordedRun
from secure_fl.protocol.messages import Share

DIGEST = 32  # bytes


@dataclass(frozen=True, slots=True)
class Shared:
    """What one party shared, as another opened it."""

    sender: str
    round: int
    session: int
    number: int  # -1, -2, ...: sums are counted from 1
    frame: CapturedFrame
    values: Mapping[str, NDArray[Any]]


def shares(run: RecordedRun, reader: str) -> Iterator[Shared]:
    """All that this reader was told; its own is among it.

    The n-th value that it opened of a sender is the n-th that this sender sent.
    """
    sent: dict[tuple[int, str], list[CapturedFrame]] = {}
    for frame in run.frames:
        if not frame.sent and isinstance(frame.envelope.message, Share):
            sent.setdefault((frame.line.session, frame.party), []).append(frame)
    count: dict[tuple[int, str], int] = {}
    for told in run.told(reader):
        if told.kind != "share":
            continue
        at = (told.session, told.sender)
        n = count[at] = count.get(at, 0) + 1
        if n <= len(sent.get(at, ())):
            frame = sent[at][n - 1]
            round = max(1, frame.envelope.round)
            values = {name: v for name, v in told.values.items() if not _is_common(v)}
            yield Shared(told.sender, round, told.session, -n, frame, values)


def _is_common(value: NDArray[Any]) -> bool:
    """Tiers and digests of equal state are whole numbers, few of them: nobody's update."""
    return np.issubdtype(value.dtype, np.integer) and value.size <= DIGEST
