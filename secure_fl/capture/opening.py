"""Reads the sums of a recorded run as far as one role's keys allow.

Nothing is assumed about protection. All bytes of a role are decrypted with its keys, cut into slots
and decoded by the public layout. The attacks get the result, be it an update or a masked one. Where
a role has no key for a ciphertext, it reads the ciphertext's own bytes as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from secure_fl.capture import party_view
from secure_fl.capture.party_view import SegmentLine, SharedValue, SumNote
from secure_fl.capture.recording import KEYS, VIEWS, CapturedFrame, read_frames, sessions, view_of
from secure_fl.crypto.sealing import masking, public, secret
from secure_fl.crypto.sealing.blind_sum import SealedInts
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.public import to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, RunError
from secure_fl.protocol import messages
from secure_fl.protocol.ports import Noise

Values = dict[str, NDArray[np.float64]]
PAD = 32  # bytes of a pad key


@dataclass(frozen=True, slots=True)
class CapturedSegment:
    """One segment of one frame: the bytes of a party's input, or of a total."""

    frame: CapturedFrame
    of: tuple[str, ...]  # the parties whose values are in it
    round: int
    note: SumNote  # of that sum, with its public layout
    segment: SegmentLine
    data: bytes
    total: bool  # sent by the coordinator; otherwise by a party


class SumKeys(NamedTuple):
    """A cohort's keys that open totals."""

    pad: bytes
    cohort: secret.SecretKey | None  # None: nothing is encrypted


class RecordedRun:
    """A recorded run's views, loaded on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sessions = folder, sessions(folder)
        self._read: dict[str, tuple[tuple[SumNote, ...], tuple[SharedValue, ...]]] = {}
        if not self.sessions:
            raise RunError(
                "this run recorded only digests of its frames, no views",
                fix="train again with --record: attacks need the bytes themselves",
                file=folder,
                reason="missing",
            )

    @property
    def mode(self) -> str:
        """The protection of sums."""
        return self.sessions[-1].mode

    @property
    def host(self) -> str | None:
        """The party that opened host sums."""
        return self.sessions[-1].host

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """All parties that ever took part, without the host."""
        every = (name for session in self.sessions for name in session.members)
        return tuple(dict.fromkeys(name for name in every if name != self.host))

    @cached_property
    def first_round(self) -> int:
        """The first recorded round."""
        return min((part.round for part in self.parts), default=1)

    @cached_property
    def frames(self) -> tuple[CapturedFrame, ...]:
        """All frames on the coordinator's wires."""
        return read_frames(self.folder / VIEWS)

    def notes(self, party: str) -> tuple[SumNote, ...]:
        """Load one party's record of sums."""
        return self._noted(party)[0]

    def shared_with(self, party: str) -> tuple[SharedValue, ...]:
        """Load the values that others shared with this party and all others."""
        return self._noted(party)[1]

    def keys(self, party: str, session: int) -> SumKeys | None:
        """Load the cohort's keys, as this party has them; None if it was not in the session."""
        file = view_of(self.folder, party) / KEYS.format(session)
        if file.exists():
            pad, cohort = file.read_bytes()[:PAD], file.read_bytes()[PAD:]
            return SumKeys(pad, secret.SecretKey.from_bytes(cohort) if cohort else None)
        if self.mode != "none" and any(n.session == session for n in self.notes(party)):
            raise self._incomplete(f"{party}'s keys of session {session}")
        return None

    def _incomplete(self, what: str) -> RunError:
        """Report a missing part: with less to read, a run would look protected."""
        problem = f"the recording lacks {what}"
        return RunError(
            problem, fix="train again with --record", file=self.folder, reason="missing"
        )

    @cached_property
    def parts(self) -> tuple[CapturedSegment, ...]:
        """All inputs to sums, and all totals, from the coordinator's wires."""
        return tuple(self._parts())

    def _parts(self) -> Iterator[CapturedSegment]:
        """Match frames with sums: a party's n-th input and n-th total are of its n-th sum."""
        members = {member for session in self.sessions for member in session.members}
        notes = {(n.session, m, n.number): n for m in members for n in self.notes(m)}
        opened = {at for at, note in notes.items() if note.opened is not None}
        count: dict[tuple[int, str, type], int] = {}
        for frame in self.frames:
            message = frame.envelope.message
            if not isinstance(message, messages.SumInput | messages.Total):
                continue
            at = (frame.line.session, frame.party, type(message))
            count[at] = count.get(at, 0) + 1
            sum = (frame.line.session, frame.party, count[at])
            if sum not in notes:
                raise self._incomplete(f"{frame.party}'s view of {frame.place}")
            if isinstance(message, messages.Total):
                opened.discard(sum)
            yield from _cut(frame, notes[sum], message)
        if opened:
            raise self._incomplete(f"the frame of a sum that {min(opened)[1]} opened")

    def _noted(self, party: str) -> tuple[tuple[SumNote, ...], tuple[SharedValue, ...]]:
        if party not in self._read:
            self._read[party] = party_view.read(view_of(self.folder, party))
        return self._read[party]


Keys: TypeAlias = Mapping[int, SumKeys]  # of a role, by session


def keys_of(run: RecordedRun, members: Sequence[str]) -> Keys:
    """Collect the keys of these members."""
    every = ((line.session, run.keys(m, line.session)) for line in run.sessions for m in members)
    return {session: keys for session, keys in every if keys is not None}


def read(part: CapturedSegment, mode: str, keys: Keys) -> Values:
    """Read a part as far as these keys allow."""
    segment = part.segment
    if mode == "none":
        return _floats(part.data, segment)
    slots = slots_of(part, mode, keys)
    if slots is None:
        return as_numbers(part.data, segment.sizes)
    values, _ = segment.slots.decode(slots[:-1], len(part.of), cast("Noise", part.note.noise))
    return values


def slots_of(part: CapturedSegment, mode: str, keys: Keys) -> Slots | None:
    """Extract the integers of a part, masked or not; None: encrypted for others."""
    count = part.segment.slots.slots + 1  # and the tag
    known = keys.get(part.frame.line.session)
    if mode == "secagg" or part.note.audience == "host":
        slots = to_slots(part.data, count)
        if known is not None and part.note.audience != "host":
            _remove_pad(part, slots[:-1], known.pad)
        return slots
    if known is None or known.cohort is None:
        return None
    try:
        upload = part.data
        if not part.total:  # one party's input is the sum of one
            alone = SealedInts(public.load(public.context_bytes(COHORT)), 1, count)
            alone.add(upload, count)
            upload = alone.result()
        summed = len(part.of) if part.total else 1
        return secret.open(known.cohort, to_parts(upload, count), count, summed)
    except CryptoError:
        return None


def _remove_pad(part: CapturedSegment, slots: Slots, key: bytes) -> None:
    """Subtract the pads of a part's contributors, in place."""
    envelope = part.frame.envelope
    message = envelope.message
    assert isinstance(message, messages.SumInput | messages.Total)  # noqa: S101 - see `_parts`
    stream = StreamId(envelope.run.hex(), part.segment.key, message.sum)
    pad = masking.stream_key(key, stream, "pad")
    masking.subtract(slots, pad, len(part.of), COHORT.modulus)


def _cut(
    frame: CapturedFrame, note: SumNote, message: messages.SumInput | messages.Total
) -> Iterator[CapturedSegment]:
    """Cut a frame into segments; a total lacks segments that are not for its receiver."""
    total = isinstance(message, messages.Total)
    if isinstance(message, messages.SumInput):
        sizes: Sequence[int] = [segment.size for segment in message.segments]
    else:
        sizes = message.sizes
    data, start = frame.bulk, 0
    for segment, size in zip(note.segments, sizes, strict=False):
        if size:
            survivors = message.survivors if isinstance(message, messages.Total) else ()
            alive = tuple(name for name in segment.owners if name in survivors)
            of = alive if total else (frame.party,)
            part = data[start : start + size]
            yield CapturedSegment(
                frame, of, max(1, frame.envelope.round), note, segment, part, total
            )
        start += size


def _floats(data: bytes, segment: SegmentLine) -> Values:
    return _split(np.frombuffer(data, "<f4").astype(np.float64), segment.sizes)


def as_numbers(data: bytes, sizes: Mapping[str, int]) -> Values:
    """Read a ciphertext's bytes, 16 bits to a number, repeated if there are too few."""
    words = np.frombuffer(data[: len(data) // 2 * 2], "<u2").astype(np.float64) / 2**15 - 1
    return _split(np.resize(words, sum(sizes.values())), sizes)


def _split(vector: NDArray[np.float64], sizes: Mapping[str, int]) -> Values:
    ends = np.cumsum(list(sizes.values()), dtype=int)
    return dict(zip(sizes, np.split(vector, ends[:-1]), strict=True)) if sizes else {}
