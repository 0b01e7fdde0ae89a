"""A plan that was refused binds nobody: the same folders take a better one; a run that began does.

Both ends keep a run's settings: the coordinator in `--out`, a hospital under the run's name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, DataError, RunError
from secure_fl.events import Event, EventLog, MembersGathered, RoundStarted, Waiting
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.plan import Plan
from secure_fl.policy.rules import PolicyRefusal
from secure_fl.runs.folder import RunFolder
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

BAD, GOOD = plan_of(FedAvg(rounds=3)), plan_of(FedAvg(rounds=1))


GATHERED = MembersGathered(party="coordinator", members=("hospital-1",))
STARTED = RoundStarted(party="coordinator", round=1, members=("hospital-1",))


def at_most_two(plan: Plan) -> None:
    if plan.algorithm.rounds > 2:
        raise PolicyRefusal((), party="hospital-2")


def coordinate(made: LocalPilot, plan: Plan, out: Path) -> None:
    """What `secure-fl coordinate` does with its folder."""
    run = RunFolder.open(out, write_plan(plan), resume=(out / "settings.toml").exists())

    def record(event: Event) -> None:
        run.record(event)

    try:
        recorder = EventLog("coordinator", record)
        lead = RunLeader(made, made.coordinator, made.roster, plan, recorder, patience=0)
        lead.run()
        run.finish(lead.document())
    finally:
        run.close()


def test_a_plan_that_was_refused_leaves_the_folder_to_the_next(tmp_path):
    made = local_pilot(tmp_path / "town", approve={"hospital-2": at_most_two})
    out = tmp_path / "out"
    for _ in range(2):  # the same again is the same refusal
        with raises(CohortError, "(policy)", party="hospital-2"):
            coordinate(made, BAD, out)
    coordinate(made, GOOD, out)
    assert (out / "settings.toml").read_text() == write_plan(GOOD)
    assert '"refused"' not in (out / "events.jsonl").read_text()
    with raises(RunError, reason="other-settings"):
        coordinate(made, BAD, out)


def test_who_had_taken_a_seat_when_another_refused_takes_the_next_plan(tmp_path):
    """hospital-3 finds out only when all are gathered; hospital-1 sits there already."""

    def not_readable(plan: Plan) -> Silo:
        if plan.algorithm.rounds == 3:
            raise DataError("cannot be read")
        return made.members["hospital-3"]

    made = local_pilot(tmp_path / "town", records={"hospital-3": not_readable})
    with raises(CohortError, "(data)", party="hospital-3"):
        coordinate(made, BAD, tmp_path / "out")
    kept = tmp_path / "town" / "hospital-1" / "run" / "settings.toml"
    assert kept.read_text() == write_plan(BAD)
    coordinate(made, GOOD, tmp_path / "out")
    assert kept.read_text() == write_plan(GOOD)
    assert all(seat.done for seat in made.processes.values())


@pytest.mark.parametrize("trace", [GATHERED, STARTED, "parties", "result", "unreadable"])
def test_any_trace_of_a_run_keeps_its_settings(tmp_path, trace):
    run = RunFolder.open(tmp_path, write_plan(BAD), resume=False)
    run.record(Waiting(party="coordinator", parties=("hospital-1",)))
    if isinstance(trace, Event):
        run.record(trace)
    run.close()
    if trace == "parties":
        (tmp_path / "parties").mkdir()
    elif trace == "result":
        (tmp_path / "result.json").write_text("{}")
    elif trace == "unreadable":
        (tmp_path / "events.jsonl").write_bytes(b"\xff\xfe")
    with raises(RunError, reason="other-settings"):
        RunFolder.open(tmp_path, write_plan(GOOD), resume=True)
    assert (tmp_path / "settings.toml").read_text() == write_plan(BAD)
