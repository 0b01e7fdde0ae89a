"""A folder as a line: letters arrive once and whole, or are refused, whoever else reaches it."""

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
from secure_fl.features.air_gap.file_message import (
    BEAT,
    HEADER,
    Endpoint,
    FileMessage,
    Kind,
    Mailbox,
    letter_name,
    message_key,
)
from secure_fl.features.air_gap.folder_end import FolderEnd, is_letters, look
from secure_fl.features.air_gap.heartbeat import Heartbeat, Told
from secure_fl.pilot.certificates import make_kits
from secure_fl.protocol.frames import Frame
from tests.features.air_gap.folders import KEY, killed
from tests.support.killing import Killed

LIFE = b"l" * 16


def parcel(number: int) -> TransportMessage:
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
        until(lambda: courier.presence.there and trainer.presence.there)
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
    """A letter as this end writes it."""
    me = end.presence
    letter = FileMessage(me.me, Kind.PARCEL, me.life, to.presence.life, number)
    return b"".join(letter.sealed(key, parcel(number).to_buffers()))


def drop(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file there whole, as a writer does: the reader must not meet half of it."""
    beside = file.with_name(f".{file.name}.part")
    beside.touch(mode=mode)
    beside.write_bytes(data)
    beside.rename(file)


def test_letters_arrive_in_order_and_their_going_is_the_receipt(ends: Ends) -> None:
    courier, trainer = ends.pair()
    posted = [courier.send(parcel(number)) for number in range(1, 9)]
    until(lambda: all(one.done() for one in posted))
    assert ends.got[Endpoint.TRAINER] == [parcel(number) for number in range(1, 9)]
    assert os.listdir(ends.to_trainer) == [BEAT]
    assert not trainer.refused and ends.folder.stat().st_mode & 0o777 == 0o700


def test_a_trainer_has_a_connection_when_its_courier_has_one(ends: Ends) -> None:
    courier, trainer = ends.pair()
    assert courier.connection() and trainer.connection() is None
    courier.say(Told("CN1"))
    until(trainer.connection)
    first = trainer.connection()
    courier.say(Told("CN2"))
    until(lambda: trainer.connection() != first)


def test_nothing_is_written_to_nobody(ends: Ends) -> None:
    courier = ends.start(Endpoint.COURIER)
    assert courier.send(parcel(1)).connection is None
    assert os.listdir(ends.to_trainer) == [BEAT]


def test_who_is_killed_comes_back_as_another_and_gets_nothing_old(ends: Ends) -> None:
    courier, trainer = ends.pair()
    before = courier.connection()
    killed(trainer)
    courier.send(parcel(1))  # to a life that is over
    again = ends.start(Endpoint.TRAINER)
    until(lambda: courier.connection() not in (None, before))
    courier.send(parcel(2))
    until(lambda: ends.got[Endpoint.TRAINER])
    assert ends.got[Endpoint.TRAINER] == [parcel(2)] and again.refused == {"stale": 1}


def test_what_a_killed_end_left_is_cleared_by_its_next_life(ends: Ends) -> None:
    courier, trainer = ends.pair()
    killed(trainer)
    courier.send(parcel(1))
    killed(courier)
    (ends.to_trainer / ".x.1.tmp").touch()
    ends.start(Endpoint.COURIER)
    assert os.listdir(ends.to_trainer) == [BEAT]


def test_silence_and_farewell_are_told_apart(ends: Ends) -> None:
    courier = ends.start(Endpoint.COURIER, patience=0.2)
    trainer = ends.start(Endpoint.TRAINER)
    until(lambda: courier.presence.there)
    killed(trainer)
    until(lambda: not courier.presence.there)
    assert not courier.presence.told.leaving
    ends.start(Endpoint.TRAINER).close()
    until(lambda: courier.presence.told.leaving)


def states(ends: Ends, patience: float = 30.0) -> list[str]:
    return [seen.state for seen in look(ends.folder, KEY, patience=patience)]


def test_who_looks_from_outside_sees_who_is_there_and_since_when(ends: Ends) -> None:
    began = time.time() - 1  # of what is written to a disk, seconds may be whole
    courier = ends.start(Endpoint.COURIER)
    assert is_letters(ends.folder) and not is_letters(ends.folder.parent)
    (talks, trains) = look(ends.folder, KEY)
    assert (talks.who, talks.state, trains.who) == ("courier", "unconnected", "trainer")
    assert trains.state == "nobody" and trains.at is None
    assert talks.at is not None and began <= talks.at <= time.time() + 1
    trainer = ends.start(Endpoint.TRAINER)
    courier.say(Told(line="a line"))
    until(lambda: states(ends) == ["connected", "here"])
    courier.say(Told(why="the port is closed"))
    until(lambda: look(ends.folder, KEY)[0].why == "the port is closed")
    killed(trainer)
    until(lambda: states(ends, patience=2.0)[1] == "silent")  # beats come every second
    courier.close()
    assert states(ends)[0] == "left"
    drop(ends.folder / "to-trainer" / BEAT, forged(courier, courier, 1, key=b"x" * 32))
    with pytest.raises(WireError):
        look(ends.folder, KEY)


def test_who_leaves_when_the_folder_was_deleted_just_leaves(ends: Ends) -> None:
    courier, trainer = ends.pair()
    shutil.rmtree(ends.folder)
    for end in (courier, trainer):
        end.close()
    assert not ends.folder.exists()


def test_of_two_couriers_the_later_goes_on(ends: Ends) -> None:
    courier, trainer = ends.pair()
    later = ends.start(Endpoint.COURIER)
    until(lambda: courier.failed)
    assert isinstance(courier.failed, RunError) and courier.failed.reason == "in-use"
    until(lambda: trainer.presence.peer == later.presence.life)
    assert later.failed is None


@pytest.mark.parametrize("step", ["open", "fsync", "rename"])
def test_a_writer_that_is_killed_leaves_no_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As a signal does it: what a `finally` would tidy up stays, too."""
    box = Mailbox(tmp_path / "folder" / "to-trainer", 1000)
    box.prepare()
    box.post(letter_name(1), [b"whole"])

    def die(*_: object, **__: object) -> None:
        raise Killed

    where = {"open": (os, "open"), "fsync": (os, "fsync"), "rename": (Path, "replace")}[step]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(*where, die)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        box.post(letter_name(2), [b"half ", b"a letter"])
    assert box.letters() == [letter_name(1)]
    assert bool(set(os.listdir(box.folder)) - {letter_name(1)}) == (step != "open")
    box.clear()
    assert os.listdir(box.folder) == []


def test_without_the_tag_a_changed_letter_would_be_believed(ends: Ends) -> None:
    """What each refusal below protects from: the form alone says nothing."""
    courier, trainer = ends.pair()
    data = bytearray(forged(courier, trainer, 1))
    data[HEADER.size + 5] ^= 1  # of the step's life: the parcel stays well-formed
    assert TransportMessage.from_bytes(bytes(data[HEADER.size : -32])) != parcel(1)
    with pytest.raises(WireError):
        FileMessage.opened(bytes(data), KEY)


def taken(ends: Ends, count: int) -> bool:
    return len(ends.got[Endpoint.TRAINER]) == count


def bad_files(courier: FolderEnd, trainer: FolderEnd) -> dict[str, bytes]:
    """By the reason of their refusal."""
    good = forged(courier, trainer, 90)
    changed = good[:-40] + bytes([good[-40] ^ 1]) + good[-39:]
    own = FileMessage(
        Endpoint.TRAINER, Kind.PARCEL, trainer.presence.life, courier.presence.life, 90
    )
    return {
        "tag": changed,
        "size": good[:50],
        "number": forged(courier, trainer, 91),  # under the name of letter 90
        "kind": b"".join(own.sealed(KEY, parcel(90).to_buffers())),  # sent back to its writer
    }


@pytest.mark.parametrize("reason", ["tag", "size", "number", "kind"])
def test_a_file_that_is_no_letter_is_refused_and_the_next_one_arrives(
    ends: Ends, reason: str
) -> None:
    courier, trainer = ends.pair()
    drop(ends.to_trainer / letter_name(90), bad_files(courier, trainer)[reason])
    until(lambda: trainer.refused == {reason: 1})
    courier.send(parcel(1))
    until(lambda: ends.got[Endpoint.TRAINER] == [parcel(1)])
    assert os.listdir(ends.to_trainer) == [BEAT]


def test_another_kits_letters_are_refused(ends: Ends) -> None:
    courier, trainer = ends.pair()
    drop(ends.to_trainer / letter_name(9), forged(courier, trainer, 9, key=b"x" * 32))
    until(lambda: trainer.refused == {"tag": 1})


def test_a_letter_is_taken_once_however_often_it_is_put_back(ends: Ends) -> None:
    courier, trainer = ends.pair()
    data = [forged(courier, trainer, number) for number in (1, 2)]
    for number in (1, 2):
        drop(ends.to_trainer / letter_name(number), data[number - 1])
        until(partial(taken, ends, number))
    for number in (2, 1):
        drop(ends.to_trainer / letter_name(number), data[number - 1])
    until(lambda: trainer.refused == {"number": 2})
    killed(trainer)
    again = ends.start(Endpoint.TRAINER)
    until(lambda: again.presence.there)
    drop(ends.to_trainer / letter_name(1), data[0])  # of yesterday
    until(lambda: again.refused == {"stale": 1})
    assert ends.got[Endpoint.TRAINER] == [parcel(1), parcel(2)]


def test_a_file_of_others_is_not_opened(ends: Ends, tmp_path: Path) -> None:
    courier, trainer = ends.pair()
    elsewhere = tmp_path / "elsewhere"
    drop(elsewhere, forged(courier, trainer, 1))
    (ends.to_trainer / letter_name(1)).symlink_to(elsewhere)
    until(lambda: trainer.refused == {"file": 1})
    os.mkfifo(ends.to_trainer / letter_name(2), 0o600)
    until(lambda: trainer.refused == {"file": 1, "owner": 1})
    drop(ends.to_trainer / letter_name(3), forged(courier, trainer, 3), mode=0o644)
    until(lambda: trainer.refused.get("mode"))
    drop(ends.to_trainer / letter_name(4), bytes(20_000))
    until(lambda: trainer.refused.get("size"))
    assert not ends.got[Endpoint.TRAINER] and elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_or_folder_of_another_user_is_refused(ends: Ends, tmp_path: Path) -> None:
    courier, trainer = ends.pair()
    file = tmp_path / "given"
    drop(file, forged(courier, trainer, 1))
    os.chown(file, 12345, 12345)
    file.rename(ends.to_trainer / letter_name(1))
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
    until(lambda: courier.failed)
    assert isinstance(courier.failed, SettingsError)


def test_a_full_disk_loses_letters_and_says_so(
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
    assert courier.send(parcel(1)).connection is None
    assert "No space left" in caplog.text
    full.clear()
    courier.send(parcel(1))  # as when the coordinator asks again
    until(lambda: ends.got[Endpoint.TRAINER] == [parcel(1)])


def test_an_old_beat_brings_nobody_to_life() -> None:
    now = [0.0]
    here, there = Heartbeat(Endpoint.COURIER, 10, lambda: now[0]), Heartbeat(Endpoint.TRAINER, 10)

    def beat(of: Heartbeat, number: int) -> FileMessage:
        return of.beat(number)._replace(body=b"{}")

    def hears(*letters: FileMessage) -> bool:
        for letter in letters:
            here.hear(letter)
        return here.there

    yesterday = beat(there, 1)
    assert not hears(yesterday) and here.heard == there.life  # it may be old: it is asked
    there.hear(beat(here, 1))
    answer = beat(there, 2)
    assert hears(answer)
    now[0] = 11.0
    assert not hears(answer)  # the same again is no sign of life
    assert hears(beat(there, 3))
    successor = Heartbeat(Endpoint.TRAINER, 10)
    here.hear(beat(successor, 1))
    successor.hear(beat(here, 2))
    assert hears(beat(successor, 2)) and here.peer == successor.life
    assert hears(yesterday, answer)
    assert here.peer == here.heard == successor.life  # who is past stays so
    mirror = Heartbeat(Endpoint.COURIER, 10)
    here.hear(beat(mirror, 9)._replace(to=here.life))
    assert here.peer == successor.life  # nobody is its own other end


def test_each_kit_has_a_key_of_its_own(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, ["east", "north"])
    keys = {message_key(tls) for tls in (*kits.sites.values(), kits.coordinator)}
    assert len(keys) == 3 and {len(key) for key in keys} == {32}
    assert message_key(kits.sites["east"]) == message_key(kits.sites["east"])
