"""Recorders of a run: one that records nothing, and one of each role's view, in the run's folder.

RUN/views/run.jsonl              the members, digests of their records, and the protection
RUN/views/wire.{jsonl,bin}       the coordinator's: all frames
RUN/parties/NAME/view/           a party's: notes.{jsonl,bin}, and the keys that open sums
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import msgspec

from secure_fl.capture import party_view
from secure_fl.capture.blobs import Blobs, Journal, Span, lines
from secure_fl.coordinator.machine import Engine
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.data.silo import Silo
from secure_fl.errors import RunError
from secure_fl.files import replace_whole
from secure_fl.protocol.frames import Envelope, Frame, digest, peek
from secure_fl.protocol.ports import PrivacyLayer


class Capture:
    """Base of recorders, which wrap the engine and each party's sums, and change nothing."""

    def begin(self, mode: str, host: str | None, members: tuple[str, ...], run: bytes) -> None:
        """Note that a run begins, or begins again after a crash, with new keys."""

    def engine(self, engine: Engine) -> Engine:
        """Record the coordinator's wires."""
        return engine

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Record one party's sums and envelopes."""
        return layer

    def close(self) -> None:
        """Finish the recording: the run has ended or failed."""


class NoCapture(Capture):
    """A recorder that records nothing."""


VIEWS, VIEW, RUN, WIRE = "views", "view", "run", "wire"
KEYS = "sums-{}.keys"  # of each session: the pad key, and the cohort's key if there is one


class SessionLine(msgspec.Struct, frozen=True):
    """One start of the run."""

    session: int
    mode: str
    host: str | None
    members: tuple[str, ...]
    run: str
    records: dict[str, str]  # the digest of each hospital's, because an audit reads them again


class FolderCapture(Capture):
    """A recorder that writes all views to the run's folder."""

    def __init__(self, folder: Path, hospitals: Sequence[Silo]) -> None:
        self._folder, self._hospitals = folder, hospitals
        self._journals: dict[Path, Journal] = {}
        self._session = max((line.session for line in sessions(folder)), default=0)

    def begin(self, mode: str, host: str | None, members: tuple[str, ...], run: bytes) -> None:
        """Record the members."""
        self._session += 1
        records = {silo.name: digest_of_records(silo) for silo in self._hospitals}
        line = SessionLine(self._session, mode, host, members, run.hex(), records)
        self._journal(self._folder / VIEWS / RUN).line(line)

    def engine(self, engine: Engine) -> Engine:
        """Record the coordinator's wires."""
        journal = self._journal(self._folder / VIEWS / WIRE)
        return RecordedEngine(engine, journal, self._session)

    def layer(self, keys: PartyKeys, layer: PrivacyLayer) -> PrivacyLayer:
        """Record one party's sums and envelopes, and the keys that open them."""
        folder = view_of(self._folder, keys.identity.name)
        journal = self._journal(folder / party_view.STEM)
        cohort = b"" if keys.cohort is None else keys.cohort.to_bytes()
        _write(folder / KEYS.format(self._session), keys.pad_key + cohort)
        return layer._replace(
            sums=party_view.RecordedSums(layer.sums, journal, self._session),
            envelopes=party_view.RecordedEnvelopes(layer.envelopes, journal, self._session),
        )

    def close(self) -> None:
        """Close all files."""
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()

    def _journal(self, stem: Path) -> Journal:
        if stem not in self._journals:
            self._journals[stem] = Journal(stem)
        return self._journals[stem]


def view_of(folder: Path, party: str) -> Path:
    """Return the folder of a party's view in a run's folder."""
    return folder / "parties" / party / VIEW


def digest_of_records(silo: Silo) -> str:
    """Return the SHA-256 of a hospital's records with their labels, in order and by split."""
    state = sha256()
    for split in (silo.train, silo.dev, silo.test):
        state.update(f"{len(split)}\n".encode())
        for record in split:
            state.update(msgspec.json.encode(record) + b"\n")
    return state.hexdigest()


def sessions(folder: Path) -> tuple[SessionLine, ...]:
    """List the starts of a recorded run; none: nothing was recorded."""
    return tuple(lines(folder / VIEWS / RUN, SessionLine))


def _write(file: Path, data: bytes) -> None:
    try:
        replace_whole(file, data, mode=0o600)
    except OSError as error:
        what = f"a view's key cannot be written ({error.strerror})"
        raise RunError(what, file=file, reason="unwritable") from error


# --- the coordinator's view: every frame that it sent or received, with its time ----------------


class FrameLine(msgspec.Struct, frozen=True):
    """One frame in the index."""

    session: int  # a resumed run has several
    sent: bool  # by the coordinator
    party: str
    at: float  # seconds since this process began to record
    head: Span
    bulk: Span


@dataclass(frozen=True)
class CapturedFrame:
    """One frame that the coordinator sent or received."""

    number: int  # from 1; "wire/17" in reports
    line: FrameLine
    _blobs: Blobs = field(repr=False)

    @property
    def sent(self) -> bool:
        """True if the coordinator sent it; otherwise a party did."""
        return self.line.sent

    @property
    def party(self) -> str:
        """The party at the other end."""
        return self.line.party

    @property
    def size(self) -> int:
        """Its number of bytes on the wire."""
        return self.line.head[1] + self.line.bulk[1]

    @property
    def place(self) -> str:
        """Its name in reports."""
        return f"{WIRE}/{self.number}"

    @cached_property
    def envelope(self) -> Envelope:
        """Its head, decoded."""
        return peek(self._blobs[self.line.head])

    @property
    def bulk(self) -> bytes:
        """Its sealed bytes."""
        return self._blobs[self.line.bulk]


class RecordedEngine:
    """An engine that records its frames, on the coordinator's side."""

    def __init__(self, inner: Engine, journal: Journal, session: int) -> None:
        self._inner, self._journal, self._session = inner, journal, session
        self._started = time.perf_counter()
        self._bulks: dict[bytes, Span] = {}  # of one exchange: equal totals are recorded once

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Exchange the frames, and record both directions."""
        self._bulks.clear()
        for party, frame in frames.items():
            self._note(party, frame, sent=True)
        for party, frame in self._inner.exchange(frames, deadline):
            self._note(party, frame, sent=False)
            yield party, frame

    def _note(self, party: str, frame: Frame, *, sent: bool) -> None:
        at, key = time.perf_counter() - self._started, digest(frame.bulk)
        if key not in self._bulks:
            self._bulks[key] = self._journal.put(frame.bulk)
        head = self._journal.put(frame.head)
        self._journal.line(FrameLine(self._session, sent, party, at, head, self._bulks[key]))


def read_frames(folder: Path) -> tuple[CapturedFrame, ...]:
    """Read all frames of a recorded run, in order."""
    stem = folder / WIRE
    blobs = Blobs(stem)
    return tuple(CapturedFrame(n, line, blobs) for n, line in enumerate(lines(stem, FrameLine), 1))
