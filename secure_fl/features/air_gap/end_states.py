"""The states of both ends of a folder, for a command that does not take part."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from secure_fl.features.air_gap.file_message import HEARTBEAT_FILE, Endpoint, FileMessage
from secure_fl.features.air_gap.folder_end import PATIENCE, mailbox
from secure_fl.features.air_gap.heartbeat import EndStatus


@dataclass(frozen=True, slots=True)
class EndState:
    """The state of one end, by its last heartbeat."""

    endpoint: str
    state: str  # nobody, left, silent; here for a trainer; connected or unconnected for a courier
    last_heartbeat: float | None  # seconds since the epoch, by the disk's clock
    reason: str = ""  # why a courier has no connection


def is_mailbox_folder(folder: Path) -> bool:
    """Return true if a courier or a training machine has prepared this folder."""
    return all(mailbox(folder, reader).folder.is_dir() for reader in Endpoint)


def read_states(folder: Path, key: bytes, *, patience: float = PATIENCE) -> list[EndState]:
    """Read the states of courier and trainer; a heartbeat of another kit raises WireError."""
    return [_state_of(folder, endpoint, key, patience) for endpoint in Endpoint]


def _state_of(folder: Path, endpoint: Endpoint, key: bytes, patience: float) -> EndState:
    written, name = mailbox(folder, endpoint.other), endpoint.name.lower()
    data = written.read(HEARTBEAT_FILE)
    if data is None:
        return EndState(name, "nobody", None)
    status = EndStatus.from_bytes(FileMessage.opened(data, key).body)
    now = written_at = _disk_time(folder)
    with suppress(FileNotFoundError):  # it was replaced just now
        written_at = (written.folder / HEARTBEAT_FILE).stat().st_mtime
    state = status.state(endpoint, silent=now - written_at > patience)
    return EndState(name, state, written_at, status.reason)


def _disk_time(folder: Path) -> float:
    """Return the time by the disk's clock, which can differ from this machine's."""
    try:
        with TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # a disk that is full or read-only
        return time.time()
