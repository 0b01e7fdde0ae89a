"""Messages through a folder arrive once and whole, or are refused."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from secure_fl.engines.transport_message import MessageKind, StepId, TransportMessage
from secure_fl.errors import RunError, SettingsError, WireError
from secure_fl.features.air_gap.end_states import EndState, is_mailbox_folder, read_states
from secure_fl.features.air_gap.file_message import (
    HEADER,
    HEARTBEAT_FILE,
    Endpoint,
    FileMessage,
    Kind,
    Mailbox,
    message_key,
    message_name,
)
from secure_fl.features.air_gap.folder_end import FolderEnd
from secure_fl.features.air_gap.heartbeat import EndStatus, PeerMonitor
from secure_fl.pilot.certificates import make_kits
from secure_fl.protocol.frames import Frame
from tests.features.air_gap.folders import KEY, killed
from tests.support.killing import Killed

LIFE = b"l" * 16


def files_in(folder: Path) -> list[str]:
    """Without the temporary file of a heartbeat that is being written."""
    return [name for name in os.listdir(folder) if not name.startswith(f".{HEARTBEAT_FILE}.")]


def message(number: int) -> TransportMessage:
    return TransportMessage(
        MessageKind.STEP, StepId(LIFE, number), Frame(b"head", b"bulk" * number)
    )


def until(holds: Callable[[], object]) -> None:
    last = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < last, "it never came to be"
        time.sleep(0.002)


class Ends:
    """Both ends of one folder, and what each was handed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, ExitStack()
        self.got: dict[Endpoint, list[TransportMessage]] = {side: [] for side in Endpoint}

    def start(self, me: Endpoint, key: bytes = KEY, patience: float = 30.0) -> FolderEnd:
        end = FolderEnd(
            self.folder, me, key, self.got[me].append, max_bytes=10_000, patience=patience
        )
        self.stack.callback(end.close)
        return end

    def pair(self) -> tuple[FolderEnd, FolderEnd]:
        courier, trainer = self.start(Endpoint.COURIER), self.start(Endpoint.TRAINER)
        until(lambda: courier.monitor.alive and trainer.monitor.alive)
        return courier, trainer

    @property
    def to_trainer(self) -> Path:
        return self.folder / "to-trainer"


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path / "folder")
    with made.stack:
        yield made


def forged(end: FolderEnd, to: FolderEnd, number: int, key: bytes = KEY) -> bytes:
    """Return a message's file as this end writes it."""
    sender, recipient = end.monitor.process_id, to.monitor.process_id
    file = FileMessage(end.monitor.endpoint, Kind.MESSAGE, sender, recipient, number)
    return b"".join(file.sealed(key, message(number).to_buffers()))


def drop(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file there whole, as a writer does: the reader must not meet half of it."""
    beside = file.with_name(f".{file.name}.part")
    beside.touch(mode=mode)
    beside.write_bytes(data)
    beside.rename(file)


def test_messages_arrive_in_order_and_their_removal_acknowledges_them(ends: Ends) -> None:
    courier, trainer = ends.pair()
    posted = [courier.send(message(number)) for number in range(1, 9)]
    until(lambda: all(one.done() for one in posted))
    assert ends.got[Endpoint.TRAINER] == [message(number) for number in range(1, 9)]
    assert files_in(ends.to_trainer) == [HEARTBEAT_FILE]
    assert not trainer.refused and ends.folder.stat().st_mode & 0o777 == 0o700


def test_a_trainer_has_a_connection_when_its_courier_has_one(ends: Ends) -> None:
    courier, trainer = ends.pair()
    assert courier.connection() and trainer.connection() is None
    courier.set_status(EndStatus("CN1"))
    until(trainer.connection)
    first = trainer.connection()
    courier.set_status(EndStatus("CN2"))
    until(lambda: trainer.connection() != first)


def test_nothing_is_written_to_nobody(ends: Ends) -> None:
    courier = ends.start(Endpoint.COURIER)
    assert courier.send(message(1)).connection is None
    names = os.listdir(ends.to_trainer)  # a heartbeat may be written now
    assert [name for name in names if not name.startswith(f".{HEARTBEAT_FILE}.")] == [
        HEARTBEAT_FILE
    ]


def test_a_new_process_gets_no_message_for_the_killed_one(ends: Ends) -> None:
    courier, trainer = ends.pair()
    before = courier.connection()
    killed(trainer)
    courier.send(message(1))  # to a process that has ended
    again = ends.start(Endpoint.TRAINER)
    until(lambda: courier.connection() not in (None, before))
    courier.send(message(2))
    until(lambda: ends.got[Endpoint.TRAINER])
    assert ends.got[Endpoint.TRAINER] == [message(2)] and again.refused == {"stale": 1}


def test_the_files_of_a_killed_process_are_removed_by_the_next(ends: Ends) -> None:
    courier, trainer = ends.pair()
    killed(trainer)
    courier.send(message(1))
    killed(courier)
    (ends.to_trainer / ".x.1.tmp").touch()
    ends.start(Endpoint.COURIER)
    assert files_in(ends.to_trainer) == [HEARTBEAT_FILE]


def test_a_killed_end_is_silent_and_a_closed_one_has_left(ends: Ends) -> None:
    courier = ends.start(Endpoint.COURIER, patience=0.2)
    trainer = ends.start(Endpoint.TRAINER)
    until(lambda: courier.monitor.alive)
    killed(trainer)
    until(lambda: not courier.monitor.alive)
    assert not courier.monitor.status.leaving
    ends.start(Endpoint.TRAINER).close()
    until(lambda: courier.monitor.status.leaving)


def states(ends: Ends, patience: float = 30.0) -> list[str]:
    return [seen.state for seen in read_states(ends.folder, KEY, patience=patience)]


def test_a_command_reads_the_states_of_both_ends(ends: Ends) -> None:
    began = time.time() - 1  # of what is written to a disk, seconds may be whole
    courier = ends.start(Endpoint.COURIER)
    assert is_mailbox_folder(ends.folder) and not is_mailbox_folder(ends.folder.parent)
    courier_state, trainer_state = read_states(ends.folder, KEY)
    assert (courier_state.endpoint, courier_state.state) == ("courier", "unconnected")
    assert trainer_state == EndState("trainer", "nobody", None)
    at = courier_state.last_heartbeat
    assert at is not None and began <= at <= time.time() + 1
    trainer = ends.start(Endpoint.TRAINER)
    courier.set_status(EndStatus(connection="a line"))
    until(lambda: states(ends) == ["connected", "here"])
    courier.set_status(EndStatus(reason="the port is closed"))
    until(lambda: read_states(ends.folder, KEY)[0].reason == "the port is closed")
    killed(trainer)
    until(lambda: states(ends, patience=2.0)[1] == "silent")  # beats come every second
    courier.close()
    assert states(ends)[0] == "left"
    drop(ends.folder / "to-trainer" / HEARTBEAT_FILE, forged(courier, courier, 1, key=b"x" * 32))
    with pytest.raises(WireError):
        read_states(ends.folder, KEY)


def test_an_end_closes_after_its_folder_was_removed(ends: Ends) -> None:
    courier, trainer = ends.pair()
    shutil.rmtree(ends.folder)
    for end in (courier, trainer):
        end.close()
    assert not ends.folder.exists()


def test_the_later_of_two_couriers_replaces_the_other(ends: Ends) -> None:
    courier, trainer = ends.pair()
    later = ends.start(Endpoint.COURIER)
    until(lambda: courier.error)
    assert isinstance(courier.error, RunError) and courier.error.reason == "in-use"
    until(lambda: trainer.monitor.peer == later.monitor.process_id)
    assert later.error is None


@pytest.mark.parametrize("step", ["open", "fsync", "rename"])
def test_a_writer_that_is_killed_leaves_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A signal runs no `finally`, so its files stay, too."""
    box = Mailbox(tmp_path / "folder" / "to-trainer", 1000)
    box.prepare()
    box.write(message_name(1), [b"whole"])

    def die(*_: object, **__: object) -> None:
        raise Killed

    where = {"open": (os, "open"), "fsync": (os, "fsync"), "rename": (Path, "replace")}[step]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(*where, die)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        box.write(message_name(2), [b"half ", b"a message"])
    assert box.message_names() == [message_name(1)]
    assert bool(set(os.listdir(box.folder)) - {message_name(1)}) == (step != "open")
    box.clear()
    assert os.listdir(box.folder) == []


def test_without_the_tag_a_changed_message_would_be_accepted(ends: Ends) -> None:
    """The attack that the refusals below prevent: a changed file is well-formed."""
    courier, trainer = ends.pair()
    data = bytearray(forged(courier, trainer, 1))
    data[HEADER.size + 5] ^= 1  # a byte of the step's id: the message stays well-formed
    assert TransportMessage.from_bytes(bytes(data[HEADER.size : -32])) != message(1)
    with pytest.raises(WireError):
        FileMessage.opened(bytes(data), KEY)


def taken(ends: Ends, count: int) -> bool:
    return len(ends.got[Endpoint.TRAINER]) == count


def bad_files(courier: FolderEnd, trainer: FolderEnd) -> dict[str, bytes]:
    """By the reason of their refusal."""
    good = forged(courier, trainer, 90)
    changed = good[:-40] + bytes([good[-40] ^ 1]) + good[-39:]
    own = FileMessage(
        Endpoint.TRAINER, Kind.MESSAGE, trainer.monitor.process_id, courier.monitor.process_id, 90
    )
    return {
        "tag": changed,
        "size": good[:50],
        "number": forged(courier, trainer, 91),  # under the name of message 90
        "kind": b"".join(own.sealed(KEY, message(90).to_buffers())),  # sent back to its writer
    }


@pytest.mark.parametrize("reason", ["tag", "size", "number", "kind"])
def test_a_bad_file_is_refused_and_the_next_message_arrives(ends: Ends, reason: str) -> None:
    courier, trainer = ends.pair()
    drop(ends.to_trainer / message_name(90), bad_files(courier, trainer)[reason])
    until(lambda: trainer.refused == {reason: 1})
    courier.send(message(1))
    until(lambda: ends.got[Endpoint.TRAINER] == [message(1)])
    assert files_in(ends.to_trainer) == [HEARTBEAT_FILE]


def test_messages_of_another_kit_are_refused(ends: Ends) -> None:
    courier, trainer = ends.pair()
    drop(ends.to_trainer / message_name(9), forged(courier, trainer, 9, key=b"x" * 32))
    until(lambda: trainer.refused == {"tag": 1})


def test_a_message_that_is_put_back_is_not_read_again(ends: Ends) -> None:
    courier, trainer = ends.pair()
    data = [forged(courier, trainer, number) for number in (1, 2)]
    for number in (1, 2):
        drop(ends.to_trainer / message_name(number), data[number - 1])
        until(partial(taken, ends, number))
    for number in (2, 1):
        drop(ends.to_trainer / message_name(number), data[number - 1])
    until(lambda: trainer.refused == {"number": 2})
    killed(trainer)
    again = ends.start(Endpoint.TRAINER)
    until(lambda: again.monitor.alive)
    drop(ends.to_trainer / message_name(1), data[0])  # of yesterday
    until(lambda: again.refused == {"stale": 1})
    assert ends.got[Endpoint.TRAINER] == [message(1), message(2)]


def test_a_file_of_others_is_not_opened(ends: Ends, tmp_path: Path) -> None:
    courier, trainer = ends.pair()
    elsewhere = tmp_path / "elsewhere"
    drop(elsewhere, forged(courier, trainer, 1))
    (ends.to_trainer / message_name(1)).symlink_to(elsewhere)
    until(lambda: trainer.refused == {"file": 1})
    os.mkfifo(ends.to_trainer / message_name(2), 0o600)
    until(lambda: trainer.refused == {"file": 1, "owner": 1})
    drop(ends.to_trainer / message_name(3), forged(courier, trainer, 3), mode=0o644)
    until(lambda: trainer.refused.get("mode"))
    drop(ends.to_trainer / message_name(4), bytes(20_000))
    until(lambda: trainer.refused.get("size"))
    assert not ends.got[Endpoint.TRAINER] and elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_or_folder_of_another_user_is_refused(ends: Ends, tmp_path: Path) -> None:
    courier, trainer = ends.pair()
    file = tmp_path / "given"
    drop(file, forged(courier, trainer, 1))
    os.chown(file, 12345, 12345)
    file.rename(ends.to_trainer / message_name(1))
    until(lambda: trainer.refused == {"owner": 1})
    os.chown(ends.folder, 12345, 12345)
    with pytest.raises(SettingsError, match="another user's"):
        ends.start(Endpoint.TRAINER)


def test_a_folder_that_is_open_to_others_is_refused_at_once_and_later(ends: Ends) -> None:
    ends.folder.mkdir(mode=0o755)
    with pytest.raises(SettingsError, match="chmod 700"):
        ends.start(Endpoint.COURIER)
    ends.folder.chmod(0o700)
    courier = ends.start(Endpoint.COURIER)
    ends.to_trainer.chmod(0o770)
    until(lambda: courier.error)
    assert isinstance(courier.error, SettingsError)


def test_a_full_disk_loses_messages_with_a_warning(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    courier, _ = ends.pair()
    full = threading.Event()
    real = os.fsync

    def fsync(handle: int) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    full.set()
    assert courier.send(message(1)).connection is None
    assert "No space left" in caplog.text
    full.clear()
    courier.send(message(1))  # as when the coordinator asks again
    until(lambda: ends.got[Endpoint.TRAINER] == [message(1)])


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def beat(of: PeerMonitor, number: int, body: bytes = b"{}") -> FileMessage:
    return of.heartbeat(number)._replace(body=body)


def connected(clock: list[float]) -> tuple[PeerMonitor, PeerMonitor]:
    """Return a courier that has received a trainer's heartbeat 2, and the trainer."""
    courier = PeerMonitor(Endpoint.COURIER, 10, lambda: clock[0])
    trainer = PeerMonitor(Endpoint.TRAINER, 10)
    trainer.receive(beat(courier, 1))
    courier.receive(beat(trainer, 2))
    assert courier.alive
    return courier, trainer


def test_a_heartbeat_that_does_not_repeat_our_process_may_be_old() -> None:
    courier, trainer = PeerMonitor(Endpoint.COURIER, 10), PeerMonitor(Endpoint.TRAINER, 10)
    courier.receive(beat(trainer, 1))
    assert not courier.alive and courier.last_received == trainer.process_id
    trainer.receive(beat(courier, 1))
    courier.receive(beat(trainer, 2))
    assert courier.alive


def test_only_a_higher_counter_ends_a_silence(clock: list[float]) -> None:
    courier, trainer = connected(clock)
    clock[0] = 11.0
    courier.receive(beat(trainer, 2))
    assert not courier.alive
    courier.receive(beat(trainer, 3))
    assert courier.alive


def test_heartbeats_of_an_earlier_process_have_no_effect(clock: list[float]) -> None:
    courier, trainer = connected(clock)
    successor = PeerMonitor(Endpoint.TRAINER, 10)
    courier.receive(beat(successor, 1))
    successor.receive(beat(courier, 2))
    courier.receive(beat(successor, 2))
    assert courier.alive and courier.peer == successor.process_id
    courier.receive(beat(trainer, 9))
    assert courier.peer == courier.last_received == successor.process_id


def test_a_process_is_not_its_own_other_end(clock: list[float]) -> None:
    courier, trainer = connected(clock)
    mirror = PeerMonitor(Endpoint.COURIER, 10)
    courier.receive(beat(mirror, 9)._replace(recipient=courier.process_id))
    assert courier.peer == trainer.process_id


def test_a_heartbeat_with_an_unknown_status_is_no_sign_of_life(clock: list[float]) -> None:
    courier, trainer = connected(clock)
    clock[0] = 11.0
    with pytest.raises(WireError, match="a status that this version does not know"):
        courier.receive(beat(trainer, 3, b'{"unknown":1}'))
    assert not courier.alive


def test_a_bad_heartbeat_is_logged_once(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    courier, trainer = ends.pair()
    killed(courier)
    drop(ends.to_trainer / HEARTBEAT_FILE, forged(courier, trainer, 1, key=b"x" * 32))
    until(lambda: "heartbeat in to-trainer is refused" in caplog.text)
    time.sleep(0.6)  # at least two looks
    assert caplog.text.count("is refused") == 1


def test_a_message_that_cannot_be_removed_is_read_once(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    courier, trainer = ends.pair()
    real, failed = Path.unlink, list[Path]()

    def refuse(file: Path, *, missing_ok: bool = False) -> None:
        if file.suffix != ".letter":
            return real(file, missing_ok=missing_ok)
        failed.append(file)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        posted = courier.send(message(1))
        until(lambda: len(failed) > 2)
        assert ends.got[Endpoint.TRAINER] == [message(1)] and not trainer.refused
        assert caplog.text.count("cannot be removed") == 1 and not posted.done()
    until(posted.done)


def test_a_clock_that_differs_from_the_disks_silences_nobody(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.pair()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 1000)
    assert states(ends) == ["unconnected", "here"]


def test_each_kit_has_a_key_of_its_own(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, ["east", "north"])
    keys = {message_key(tls) for tls in (*kits.sites.values(), kits.coordinator)}
    assert len(keys) == 3 and {len(key) for key in keys} == {32}
    assert message_key(kits.sites["east"]) == message_key(kits.sites["east"])
