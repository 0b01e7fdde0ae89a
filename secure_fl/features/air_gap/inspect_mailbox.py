"""How both ends of a folder are, for somebody who looks from outside and changes nothing."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from secure_fl.features.air_gap.file_message import Endpoint, FileMessage
from secure_fl.features.air_gap.folder_end import MAX_BYTES, PATIENCE
from secure_fl.features.air_gap.heartbeat import Told, read_told
from secure_fl.features.air_gap.mailbox import BEAT, Mailbox


@dataclass(frozen=True, slots=True)
class MailboxState:
    """One end, by the last sign of life that it wrote."""

    who: str
    state: str  # nobody, here, left, silent; a courier that is here: connected or unconnected
    at: float | None  # seconds since the epoch, by the disk's clock
    why: str = ""  # a courier has no connection


def is_letters(folder: Path) -> bool:
    """Tell if this is a folder between a courier and a training machine."""
    return all(_box(folder, side).folder.is_dir() for side in Endpoint)


def look(folder: Path, key: bytes, *, patience: float = PATIENCE) -> list[MailboxState]:
    """Courier and trainer; a sign that this site's kit did not write raises WireError."""
    return [_seen(folder, side, key, patience) for side in Endpoint]


def _seen(folder: Path, side: Endpoint, key: bytes, patience: float) -> MailboxState:
    box, name = _box(folder, side.other), side.name.lower()
    data = box.read(BEAT)
    if data is None:
        return MailboxState(name, "nobody", None)
    told, at = read_told(FileMessage.opened(data, key).body), time.time()
    with suppress(FileNotFoundError):  # it was replaced just now
        at = (box.folder / BEAT).stat().st_mtime
    return MailboxState(name, _state(side, told, time.time() - at > patience), at, told.why)


def _state(side: Endpoint, told: Told, silent: bool) -> str:
    if told.leaving:
        return "left"
    if silent:
        return "silent"
    if side is Endpoint.TRAINER:
        return "here"
    return "connected" if told.line else "unconnected"


def _box(folder: Path, reader: Endpoint) -> Mailbox:
    return Mailbox(folder / f"to-{reader.name.lower()}", MAX_BYTES)
