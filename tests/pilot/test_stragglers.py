"""Who is waited for, since when: at the coordinator and at those who wait, and told once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from secure_fl.cli.coordinate import log_line
from secure_fl.errors import TooFewParties
from secure_fl.events import EventLog, RoundStarted, Waiting
from secure_fl.pilot.member_faults import StragglerWatch, arrived
from secure_fl.pilot.metrics import Meter
from secure_fl.pilot.plan import write_plan
from secure_fl.pilot.progress import progress
from secure_fl.protocol.messages import Failed, Invite
from tests.support.command_line import ran
from tests.support.event_documents import event_of, into
from tests.support.local_pilot import LocalPilot, at_frames, local_pilot

NAMES = ("north", "south", "west")


class Hub:
    """Some come, in their order; and some answer late."""

    def __init__(self, *come: str) -> None:
        self.come, self.late = list(come), dict[str, float]()
        self.there: set[str] = set()

    def wait_for(self, parties: Any, timeout: float) -> frozenset[str]:
        if self.come:
            self.there.add(self.come.pop(0))
        return frozenset(parties) - self.there

    def waited_for(self) -> dict[str, float]:
        return self.late


def noted(events: list[dict[str, Any]]) -> list[list[str]]:
    return [event["parties"] for event in events]


def test_at_the_start_every_arrival_changes_for_whom_it_waits() -> None:
    events: list[dict[str, Any]] = []
    arrived(Hub("south", "south", "north", "west"), NAMES, 5.0, EventLog("c", into(events)))
    assert noted(events) == [["north", "west"], ["west"]]
    assert [event["members"] for event in events] == [["south"], ["north", "south"]]
    events.clear()
    arrived(Hub("south"), NAMES, 0.0, EventLog("c", into(events)))
    assert noted(events) == [["north", "west"]]


def test_an_operator_does_not_wait_for_who_is_missing() -> None:
    asked = iter([False, True])
    arrived(Hub("south"), NAMES, 3600.0, EventLog("c", lambda _: None), lambda: next(asked))
    assert not list(asked)


def test_a_step_that_takes_long_names_who_is_late_and_again_when_it_takes_twice_as_long() -> None:
    events: list[dict[str, Any]] = []
    hub = Hub()
    look, over = StragglerWatch(hub, EventLog("c", into(events))), threading.Event()
    expected = {
        59.0: None, 61.0: "slow", 66.0: None, 121.0: None, 123.0: "slow", 130.0: None,
        247.0: "slow",
    }  # fmt: skip
    for seconds, event in expected.items():
        before, hub.late = len(events), {"west": seconds}
        look(over)
        assert [e["event"] for e in events[before:]] == ([event] if event else []), seconds
    hub.late = {"west": 250.0, "north": 61.0}  # one more: told at once
    look(over)
    hub.late = {"north": 70.0}
    look(over)
    assert noted(events)[-2:] == [["north", "west"], ["west"]]
    assert events[-1]["event"] == "slow_answered"
    assert log_line(event_of(events[-1]), 3) == "this step no longer waits for west"


def test_status_forgets_who_is_no_longer_waited_for(tmp_path: Path) -> None:
    made = local_pilot(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.toml").write_text(write_plan(made.plan))
    slow = {"event": "slow", "at": 100.0, "seconds": 61.0, "parties": ["north", "west"]}
    lines = [{"event": "round_started", "round": 1, "members": list(NAMES)}, slow]
    for more, waits in (
        ([], {"for": ["north", "west"], "since": 39.0, "until": None}),
        (
            [{"event": "slow_answered", "parties": ["west"]}],
            {"for": ["north"], "since": 39.0, "until": None},
        ),
        ([{"event": "slow_answered", "parties": ["west", "north"]}], None),
    ):
        events = "".join(json.dumps(line) + "\n" for line in (*lines, *more))
        (run / "events.jsonl").write_text(events)
        assert progress(run)["waits"] == waits


def test_a_status_shows_who_returned_and_no_wait_from_before_a_restart(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(write_plan(local_pilot(tmp_path).plan))
    lines = [
        {"event": "lost", "parties": ["north"], "round": 1},
        {"event": "slow", "at": 100.0, "seconds": 61.0, "parties": ["west"]},
        {"event": "returned", "parties": ["north"]},
    ]

    def shown() -> dict[str, Any]:
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        return progress(tmp_path)

    assert shown()["members"]["north"]["state"] == "here" and shown()["waits"]
    lines.append({"event": "resumed", "after": 1, "state": "running"})
    assert shown()["state"] == "gathering" and shown()["waits"] is None


def test_who_is_left_says_once_for_whom_it_waits_and_so_does_its_status(tmp_path: Path) -> None:
    made = local_pilot(tmp_path)  # three of three are needed
    made.before = at_frames("hospital-1", {9}, LocalPilot.kill)
    naps = [0]

    def nap(seconds: float) -> None:
        naps[0] += 1

    made.nap = nap  # type: ignore[method-assign]
    with pytest.raises(TooFewParties):
        made.lead(patience=60).run()
    of_two = made.seen("waiting", "hospital-2")
    (event,) = of_two
    assert event["parties"] == ["hospital-1"] and naps[0] == 60
    assert len(made.seen("plan_accepted", "hospital-2")) <= 2
    at_the_hub = made.seen("waiting", "coordinator")
    assert noted(at_the_hub) == [["hospital-1"]]
    said = [line for event in made.events if (line := log_line(event_of(event), 2))]
    assert sum(line.startswith("stopped") for line in said) == 1  # once, when patience was over
    run = tmp_path / "hospital-2" / "run"
    found = progress(run)
    assert found["state"] == "waiting" and found["waits"]["for"] == ["hospital-1"]
    assert found["members"]["hospital-1"]["state"] == "away"
    assert found["members"]["hospital-2"]["up"] > 0
    shown = ran("status", run).output
    assert "waits for hospital-1 since 20" in shown and "hospital-2" in shown


def test_a_hospital_is_not_told_of_strangers(tmp_path: Path) -> None:
    made = local_pilot(tmp_path)
    link = made.link(b"c" * 16, "hospital-1")
    message = Invite(write_plan(made.plan), ("hospital-2", "\x1b[2Jmallory"))
    answer = link.unpack(made.processes["hospital-1"].step(link.pack(message)))
    assert isinstance(answer, Failed) and answer.code == "cohort"


def test_seconds_are_measured_until_somebody_comes() -> None:
    now = 100.0
    meter = Meter(clock=lambda: now)
    meter.note(Waiting(parties=("west",)))
    now = 130.0
    meter.note(Waiting(parties=("west", "north")))
    meter.slow = lambda: {"south": 3.0}
    now = 140.0
    found = {dict(k[1])["member"]: v for k, v in meter.numbers().items() if "waited" in k[0]}
    assert found == {"west": 40.0, "north": 10.0, "south": 3.0}
    meter.note(RoundStarted(round=2, members=("west",)))
    meter.slow = dict
    assert not [key for key in meter.numbers() if "waited" in key[0]]


def test_a_coordinator_that_was_begun_again_says_how_the_last_one_ended(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("[algorithm]\nrounds = 4\n")
    events: list[dict[str, Any]] = [
        {"event": "round_started", "round": 2, "members": []},
        {"event": "stopped", "code": "operator", "final": True},
        {"event": "resumed", "after": 2, "state": "running"},
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    found = progress(tmp_path)
    assert found["notes"] == ["resumed in round 2"]
    assert found["state"] == "gathering"  # killed now, it was not stopped by an operator
