"""Who spoils sums and hides it costs nobody the cohort's keys, however often a run is led again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator.blame import HIDDEN
from secure_fl.errors import KeyringError, PartyFailed, SecureFLError
from secure_fl.events import Convicted, SumDisputed, Withheld
from secure_fl.pilot.progress import EarlierEvents
from secure_fl.settings import ProtectionSettings
from tests.support.event_documents import event_of
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises
from tests.support.spoiling import Spoiler

LIAR = "hospital-3"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[LocalPilot]:
    """A pilot in which one tags wrongly each time, and never shows what it sent."""
    plan = plan_of(FedAvg(rounds=2), protection=ProtectionSettings(min_cohort=3))
    town = local_pilot(tmp_path, plan, 5)
    town.faults[LIAR] = Spoiler(town.keys[LIAR], slot=-1, hides=True).faults
    yield town
    for process in town.processes.values():
        process.close()


def lead(made: LocalPilot, *, remembers: bool) -> None:
    """Lead it as a process that begins anew, with what is in the coordinator's folder or not."""
    told = [event for event in made.events if event["party"] == "coordinator"]
    earlier = EarlierEvents.read(map(event_of, told)) if remembers else None
    made.lead(patience=0, earlier=earlier).run()


def require_keys(made: LocalPilot) -> None:
    for name in set(made.members) - {LIAR}:
        made.processes[name]._memory.require_unforged(made.roster)


def test_a_coordinator_that_forgets_costs_all_their_keys(made: LocalPilot) -> None:
    for _ in range(2):
        with pytest.raises(SecureFLError):
            lead(made, remembers=False)
    with raises(KeyringError, reason="retired-keys"):
        require_keys(made)


def test_one_that_remembers_stops_and_names_who_hides(made: LocalPilot) -> None:
    for _ in range(4):
        with raises(PartyFailed, party=LIAR, reason=HIDDEN):
            lead(made, remembers=True)
    require_keys(made)
    assert [event["parties"] for event in made.seen("withheld")] == [[LIAR]] * 2


@pytest.mark.parametrize("nth", [1, 2])  # as it is sent the total; as the others look into it
def test_an_inquiry_that_anothers_restart_ended_or_forestalled_counts_as_well(
    made: LocalPilot, nth: int
) -> None:
    asked = list[str]()

    def before(town: LocalPilot, party: str) -> None:
        if town.seen("refused") and party == "hospital-5":  # others have found the total wrong
            asked.append(party)
            if len(asked) == nth:
                town.kill(party)
                town.start(party)

    made.before = before
    with raises(PartyFailed, party=LIAR, reason=HIDDEN):
        lead(made, remembers=True)
    require_keys(made)
    assert len(made.seen("sum_disputed")) == 2 and len(made.seen("withheld")) == 1


def test_an_inquiry_that_a_crash_ended_counts_as_well() -> None:
    complaint = SumDisputed(parties=("x",), round=1)
    named, hidden = Convicted(parties=("x",), round=1), Withheld(parties=("y",))
    read = EarlierEvents.read
    assert read([complaint, named, complaint, complaint, hidden]).unsolved == ("", "y")
    assert read([complaint, named, complaint]).unsolved == ("",)


def test_who_hides_is_named_where_too_few_are_left_without_it(made: LocalPilot) -> None:
    """By its answer it is lost, and with another that is away the inquiry ends there and then."""

    def before(town: LocalPilot, party: str) -> None:
        if not town.seen("gathered"):
            town.down.add("hospital-5")

    made.before = before
    made.nap = lambda seconds: None  # type: ignore[method-assign]
    with raises(PartyFailed, party=LIAR, reason=HIDDEN):
        lead(made, remembers=True)
    require_keys(made)
    assert [event["parties"] for event in made.seen("withheld")] == [[LIAR]] * 2
