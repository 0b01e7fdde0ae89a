"""Reads the sums of a recorded run as far as one role's keys go.

Nothing is assumed about what protection hides. Whatever bytes a role has are read as far as its
keys go (decrypted, cut into slots, decoded as the public layout says) and the result is handed to
the attacks, be it an update or what masks make of one. Where a role has no key for a ciphertext,
it reads the ciphertext's own bytes as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from secure_fl.capture import coordinator_view, party_view
from secure_fl.capture.coordinator_view import CapturedFrame
from secure_fl.capture.party_view import SharedValue, SumNote, SumSegment
from secure_fl.capture.recording import COHORT_KEY, VIEWS, SessionLine, sessions, view_of
from secure_fl.crypto.sealing import public, secret
from secure_fl.crypto.sealing.blind_sum import ENCRYPTED, SealedInts
from secure_fl.crypto.sealing.masking import Slots
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.public import to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, RunError
from secure_fl.protocol import messages
from secure_fl.protocol.ports import Noise

Values = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class CapturedSegment:
    """One segment of one frame: the bytes of a party's input, or of a total."""

    frame: CapturedFrame
    of: tuple[str, ...]  # whose values are in it
    round: int
    note: SumNote  # of that sum: its layout is public
    segment: SumSegment
    data: bytes
    total: bool  # what the coordinator sent back, rather than what a party sent


class RecordedRun:
    """A recorded run's views, loaded when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sessions = folder, sessions(folder)
        if not self.sessions:
            raise RunError(
                "only digests of what crossed the wires were recorded in this run, no views",
                fix="train again with --record: attacks need the bytes themselves",
                file=folder,
                reason="missing",
            )

    @property
    def mode(self) -> str:
        """How sums were protected."""
        return self.sessions[-1].mode

    @property
    def host(self) -> str | None:
        """Who opened host sums."""
        return self.sessions[-1].host

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """All that ever took part, but the host."""
        every = (name for session in self.sessions for name in session.members)
        return tuple(dict.fromkeys(name for name in every if name != self.host))

    @cached_property
    def first_round(self) -> int:
        """The first round of which anything was recorded."""
        return min((part.round for part in self.parts), default=1)

    @cached_property
    def frames(self) -> tuple[CapturedFrame, ...]:
        """Everything on the coordinator's wires."""
        return coordinator_view.read(self.folder / VIEWS)

    def notes(self, party: str) -> tuple[SumNote, ...]:
        """The sums of one party."""
        return self._noted(party)[0]

    def told(self, party: str) -> tuple[SharedValue, ...]:
        """What others shared with this party and all others."""
        return self._noted(party)[1]

    def cohort_key(self, party: str, session: int) -> secret.SecretKey | None:
        """The key that all parties of a run hold, as this one does."""
        data = self._key(party, session, COHORT_KEY)
        return None if data is None else secret.SecretKey.from_bytes(data)

    def _key(self, party: str, session: int, name: str) -> bytes | None:
        file = view_of(self.folder, party) / name.format(session)
        if file.exists():
            return file.read_bytes()
        if self.mode in ENCRYPTED and any(n.session == session for n in self.notes(party)):
            raise self._incomplete(f"{party}'s key of session {session}")
        return None

    def _incomplete(self, what: str) -> RunError:
        """Without it less could be read, and that would look like protection."""
        said = f"{what} is missing from what was recorded"
        return RunError(said, fix="train again with --record", file=self.folder, reason="missing")

    @cached_property
    def parts(self) -> tuple[CapturedSegment, ...]:
        """All inputs to sums, and all totals, as they crossed the coordinator's wires."""
        return tuple(self._parts())

    def _parts(self) -> Iterator[CapturedSegment]:
        """The n-th input of a party, and the n-th total sent to it, are of its n-th sum."""
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

    @cached_property
    def _read(self) -> dict[str, tuple[tuple[SumNote, ...], tuple[SharedValue, ...]]]:
        return {}


@dataclass(frozen=True, slots=True)
class Keys:
    """What a role can open: the cohort's ciphertexts, or nothing."""

    cohort: Mapping[int, secret.SecretKey]

    @classmethod
    def of(cls, run: RecordedRun, members: Sequence[str]) -> Keys:
        """The keys that these members hold together."""
        cohort: dict[int, secret.SecretKey] = {}
        for session in run.sessions:
            for member in members:
                if (key := run.cohort_key(member, session.session)) is not None:
                    cohort[session.session] = key
        return cls(cohort)


def read(part: CapturedSegment, mode: str, keys: Keys) -> Values:
    """Read a part as far as these keys go."""
    segment = part.segment
    if mode == "none":
        return _floats(part.data, segment)
    slots = slots_of(part, mode, keys)
    if slots is None:
        return as_numbers(part.data, segment.sizes)
    assert segment.layout is not None  # noqa: S101 - every protected sum has one
    values, _ = segment.layout.decode(slots[:-1], len(part.of), cast("Noise", part.note.noise))
    return values


def slots_of(part: CapturedSegment, mode: str, keys: Keys) -> Slots | None:
    """The integers that a part consists of, masked or not; None: sealed to others."""
    assert part.segment.layout is not None  # noqa: S101 - as above
    count = part.segment.layout.slots + 1  # and the tag
    if mode not in ENCRYPTED or part.note.audience == "host":
        return to_slots(part.data, count)
    key = keys.cohort.get(part.frame.line.session)
    if key is None:
        return None
    try:
        upload = part.data
        if not part.total:  # what one party sent is the sum of one
            alone = SealedInts(public.load(public.context_bytes(COHORT)), 1, count)
            alone.add(upload, count)
            upload = alone.result()
        summed = len(part.of) if part.total else 1
        return secret.open(key, to_parts(upload, count), count, summed)
    except CryptoError:
        return None


def _cut(
    frame: CapturedFrame, note: SumNote, message: messages.SumInput | messages.Total
) -> Iterator[CapturedSegment]:
    """The segments of a frame; those of a total that is not for its receiver are not there."""
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


def _floats(data: bytes, segment: SumSegment) -> Values:
    return _split(np.frombuffer(data, "<f4").astype(np.float64), segment.sizes)


def as_numbers(data: bytes, sizes: Mapping[str, int]) -> Values:
    """A ciphertext's bytes, 16 bits to a number, repeated where it has fewer than values."""
    words = np.frombuffer(data[: len(data) // 2 * 2], "<u2").astype(np.float64) / 2**15 - 1
    return _split(np.resize(words, sum(sizes.values())), sizes)


def _split(vector: NDArray[np.float64], sizes: Mapping[str, int]) -> Values:
    ends = np.cumsum(list(sizes.values()), dtype=int)
    return dict(zip(sizes, np.split(vector, ends[:-1]), strict=True)) if sizes else {}


__all__ = [
    "CapturedSegment",
    "Keys",
    "RecordedRun",
    "SessionLine",
    "as_numbers",
    "read",
    "slots_of",
]
