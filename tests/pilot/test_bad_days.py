"""Small mishaps that a pilot gets over, or tells plainly: full disks, bad answers, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.clear_sum import ClearTotal
from secure_fl.crypto.sealing.packing import from_slots
from secure_fl.errors import PartyFailed, RunError, TooFewParties, WireError
from secure_fl.events import RoundStarted
from secure_fl.pilot.member_faults import RESTARTS
from secure_fl.pilot.plan import RESTARTED, write_plan
from secure_fl.pilot.progress import progress
from secure_fl.protocol.frames import Frame, digest, peek
from secure_fl.protocol.messages import Audience, Continue, Segment, SumInput
from secure_fl.protocol.ports import OfferedKeys
from secure_fl.runs.folder import RunFolder
from secure_fl.settings import ProtectionSettings
from tests.support.limits import files_of_at_most
from tests.support.local_pilot import LocalPilot, at_frames, local_pilot
from tests.support.raising import raises


def logged(folder: Path, made: LocalPilot) -> Path:
    """A coordinator's folder, as `secure-fl status` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.toml").write_text(write_plan(made.plan))
    events = [e | {"at": 0.0} for e in made.events if e["party"] == "coordinator"]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_a_disk_that_is_full_at_the_end_is_told_and_the_run_can_end_later(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, count=4)
    step, ends = made.processes["hospital-2"].step, 0

    def full(frame: Frame) -> Frame:
        nonlocal ends
        ends += isinstance(peek(frame.head).message, Continue)
        if ends < 2:
            return step(frame)
        with files_of_at_most(60_000):  # less than the model
            return step(frame)

    made.processes["hospital-2"].step = full  # type: ignore[method-assign]
    with raises(PartyFailed, party="hospital-2", reason="run"):
        made.lead(patience=0).run()
    (refused,) = made.seen("refused")
    assert refused["code"] == "run" and "free disk space" in refused["why"]
    assert not made.processes["hospital-2"].done
    model = tmp_path / "hospital-2" / "run" / "model" / "model.safetensors"
    made.start("hospital-2")
    made.lead(patience=0).run()
    assert all(seat.done for seat in made.processes.values())
    assert model.read_bytes() == Path(str(model).replace("al-2", "al-1")).read_bytes()


def test_a_folder_on_a_full_disk_can_be_let_go_of(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=False)
    with files_of_at_most(4):
        with raises(RunError, reason="unwritable"):
            folder.record(RoundStarted(party="a", round=1, members=("a",)))
        folder.close()
    RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=True).close()


def test_a_process_that_begins_anew_for_ever_ends_the_run(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, count=4)
    made.before = at_frames("hospital-3", range(6, 999, 6), LocalPilot.restart)
    with raises(PartyFailed, RESTARTS + 1, party="hospital-3", reason=RESTARTED):
        made.lead().run()
    assert len(made.seen("restarted")) == RESTARTS + 1
    made.before = lambda town, party: None
    made.lead(patience=0).run()
    assert all(seat.done for seat in made.processes.values())


def spoiling(made: LocalPilot, party: str, times: int) -> None:
    """Some of a party's contributions arrive with a flipped bit."""
    exchange = made.exchange
    left = times

    def spoilt(frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        nonlocal left
        for name, answer in exchange(frames, deadline):
            if name == party and left and isinstance(peek(answer.head).message, SumInput):
                left -= 1
                answer = Frame(answer.head, bytes([answer.bulk[0] ^ 1]) + answer.bulk[1:])
            yield name, answer

    made.exchange = spoilt  # type: ignore[method-assign]


def test_one_bad_answer_costs_one_party_a_round(tmp_path: Path) -> None:
    made = local_pilot(tmp_path / "run", count=4)
    spoiling(made, "hospital-4", 1)
    made.lead(patience=0).run()
    told = made.seen("refused", "coordinator")
    assert [(e["parties"], e["code"]) for e in told] == [(["hospital-4"], "wire")]
    assert [e["parties"] for e in made.seen("lost")] == [["hospital-4"]]
    assert made.seen("returned") and all(seat.done for seat in made.processes.values())
    assert "refused (wire): hospital-4" in progress(logged(tmp_path / "log", made))["notes"]


def test_below_the_threshold_a_bad_answer_is_named_and_the_run_can_go_on(tmp_path: Path) -> None:
    made = local_pilot(tmp_path)  # 3 of 3
    spoiling(made, "hospital-2", 1)
    with raises(TooFewParties, "hospital-2", round=1):
        made.lead(patience=0).run()
    made.lead(patience=0).run()
    assert all(seat.done for seat in made.processes.values())


SEGMENTS = tuple(Segment(bytes([n]) * 32, 6 * 4, 4) for n in (1, 2))
THIRD = Segment(b"3" * 32, 24, 4)


def signed(parts: Sequence[bytes], segments: Sequence[Segment] = SEGMENTS) -> tuple[Segment, ...]:
    """Add the digest of its part to each segment."""
    pairs = zip(segments, parts, strict=True)
    return tuple(structs.replace(segment, digest=digest(part)) for segment, part in pairs)


def test_of_an_answer_that_cannot_be_read_nothing_is_added() -> None:
    total = blind_totals(
        ProtectionSettings(mode="secagg"), ("a", "b"), host=None, threshold=2, run=bytes(16)
    )(Audience.PARTIES, OfferedKeys())
    one, large = from_slots(np.ones(4, np.uint64)), from_slots(np.full(4, 2**47, np.uint64))
    total.add("a", signed((one, one)), one + one)
    with raises(WireError, field="slots"):
        total.add("b", signed((one, large)), one + large)  # its first segment could be read
    with raises(WireError, field="slots"):
        total.add("b", signed((one, large), (SEGMENTS[0], THIRD)), one + large)
    with raises(WireError, "not the one that it signs", party="b"):
        total.add("b", signed((one, one)), one + large)
    total.add("b", signed((one, one)), one + one)
    held = {key: vector.total.result() for key, vector in total._vectors.items()}  # type: ignore[attr-defined]
    assert held == {s.key: from_slots(np.full(4, 2, np.uint64)) for s in SEGMENTS}


def test_of_a_clear_answer_that_cannot_be_read_nothing_is_added() -> None:
    total, ones = ClearTotal(), np.ones(4, "<f4").tobytes()
    parts = tuple(Segment(bytes([n]) * 32, 16) for n in (1, 2))
    total.add("a", parts, ones + ones)
    with raises(WireError, "NaN"):
        total.add("b", parts, ones + np.full(4, np.nan, "<f4").tobytes())
    assert set(total.result(("a",), {}).values()) == {ones}


def test_a_coordinator_that_waits_is_not_said_to_have_stopped(tmp_path: Path) -> None:
    made = local_pilot(tmp_path / "run")
    states: list[str] = []

    def nap(seconds: float) -> None:
        states.append(progress(logged(tmp_path / "log", made))["state"])
        if len(states) == 3:
            made.start("hospital-1")

    made.before = at_frames("hospital-1", {7}, LocalPilot.kill)
    made.nap = nap  # type: ignore[method-assign]
    made.lead().run()
    assert states == ["waiting"] * 3
    assert progress(logged(tmp_path / "log", made))["state"] == "running"
    made.kill("hospital-1")
    states.clear()
    made.nap = lambda seconds: states.append("slept")  # type: ignore[method-assign]
    with pytest.raises(TooFewParties):
        made.lead(patience=2).run()
    assert states == ["slept"] * 2
    assert progress(logged(tmp_path / "log", made))["state"] == "stopped (too-few-parties)"
