"""A member that spoils sums and withholds its uploads costs nobody else the cohort's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import structs

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.config.build import RunSettings
from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.machine import Coordinator
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, make_roster
from secure_fl.errors import KeyringError, Misconduct, PartyFailed, PlanRefused, SecureFLError
from secure_fl.events import Convicted, MembersGathered, SumDisputed, Withheld
from secure_fl.pilot import site_memory
from secure_fl.pilot.member_faults import FAILED
from secure_fl.pilot.plan import RESTARTED
from secure_fl.pilot.progress import EarlierEvents
from secure_fl.pilot.site_memory import MOST_CHARGES, MOST_FORGED, SiteMemory
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import (
    Complaint,
    Failed,
    FromParty,
    Gathered,
    SumInput,
    UnmaskShares,
)
from tests.support.event_documents import event_of
from tests.support.forging import forge
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises
from tests.support.spoiling import Spoiler

LIAR = "hospital-3"


def plan(name: str, seed: int) -> Plan:
    return plan_of(FedAvg(rounds=2), run=RunSettings(name=name, seed=seed))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[LocalPilot]:
    """A pilot in which one tags wrongly each time, and never shows what it sent."""
    town = local_pilot(tmp_path, plan("run", 0), 5)
    town.faults[LIAR] = Spoiler(town.keys[LIAR], slot=-1, hides=True).faults
    yield town
    town.close()


def lead(made: LocalPilot, *, remembers: bool) -> None:
    """Lead the run in a new process of the coordinator, which has its folder or not."""
    told = [event for event in made.events if event["party"] == "coordinator"]
    earlier = EarlierEvents.read(map(event_of, told)) if remembers else None
    made.lead(patience=0, earlier=earlier).run()


def require_keys(made: LocalPilot) -> None:
    for name in set(made.members) - {LIAR}:
        made.processes[name]._memory.require_unforged(made.roster)


def test_a_member_that_hides_three_uploads_is_out_and_keys_stay(made: LocalPilot) -> None:
    with raises(PartyFailed, party=LIAR, reason=HIDDEN):  # twice, in this run
        lead(made, remembers=False)
    with raises(PartyFailed, party=LIAR, reason=FAILED):  # the round needs it; sites refuse it
        lead(made, remembers=False)
    require_keys(made)
    made.plan = plan("other", 1)
    lead(made, remembers=False)
    require_keys(made)
    honest = set(made.members) - {LIAR}
    assert made.finished() == honest
    assert [event["parties"] for event in made.seen("excluded")] == [[LIAR]] * 2


def test_half_of_the_members_do_not_have_another_left_out(tmp_path: Path) -> None:
    """They claim that it is charged with two sums; an honest site would have the same charges."""

    def refuse(message: FromParty, bulk: bytes) -> tuple[FromParty, bytes]:
        return Failed("cohort", "hospital-4"), b""

    town = local_pilot(tmp_path, plan("run", 0), 4)
    town.faults = {name: {Gathered: refuse} for name in ("hospital-1", "hospital-2")}
    with raises(PlanRefused, party="hospital-1"):
        lead(town, remembers=False)
    assert not town.seen("excluded")
    town.close()


def test_a_coordinator_that_forges_totals_and_names_a_member_loses_it_and_then_the_keys(
    made: LocalPilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the blame for forged sums is taken for two of them, and by the others only."""
    made.faults.clear()
    stop = Coordinator._stop

    def lie(coordinator: Coordinator, error: SecureFLError) -> None:
        stop(coordinator, PartyFailed("a lie", party=LIAR, reason=HIDDEN))

    monkeypatch.setattr(Coordinator, "_stop", lie)
    for k in range(3):
        made.plan = plan(f"forged-{k}", k)
        forge(made)
    memories = {name: process._memory for name, process in made.processes.items()}
    for name in set(made.members) - {LIAR}:
        assert memories[name].charged(made.roster) == {LIAR}
        notes = [line.keys() for line in memories[name]._lines]
        assert sum("forged" in line for line in notes) == 3  # in the last run without the member
        assert sum("party" in line for line in notes) == 2
    assert not memories[LIAR].charged(made.roster)
    assert sum("forged" in line for line in memories[LIAR]._lines) == 2
    reasons = [event.get("why", "") for event in made.seen("refused")]
    assert sum("cut short two inquiries" in reason for reason in reasons) == 4


def test_a_member_that_is_named_too_often_explains_no_more_sums(made: LocalPilot) -> None:
    memory = SiteMemory(made.folder / "notes")
    charges = [memory.charge("run", made.roster, LIAR) for _ in range(3)]
    assert charges == [True, True, False]
    for _ in range(MOST_FORGED + 2):
        memory.forged("run", made.roster)
    with raises(KeyringError, reason="retired-keys"):
        memory.require_unforged(made.roster)


def test_charges_of_all_members_explain_few_sums_under_one_key(tmp_path: Path) -> None:
    """A coordinator forges totals, and names each member twice: every hospital opens them all."""

    def forged(limit: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr(site_memory, "MOST_CHARGES", limit)
        memory, opened = SiteMemory(folder), 0
        named = [member.name for member in roster.parties[1:]] * 2
        with suppress(KeyringError):
            while opened < 99:
                memory.require_unforged(roster)
                memory.forged("run", roster)
                opened += 1
                if named:
                    memory.charge("run", roster, named.pop())
        return opened

    cards = [Identity.generate(f"hospital-{k}").public for k in range(16)]
    members = tuple(Member(card.name, "party", None, card) for card in cards)
    roster = make_roster(members, Identity.generate("coordinator").public)
    with pytest.MonkeyPatch.context() as patch:
        assert forged(99, tmp_path / "each", patch) == 2 * 15 + MOST_FORGED
    with pytest.MonkeyPatch.context() as patch:
        assert forged(MOST_CHARGES, tmp_path / "all", patch) == MOST_CHARGES + MOST_FORGED


def test_a_member_beyond_the_limit_of_charges_is_refused_as_well(made: LocalPilot) -> None:
    memory = SiteMemory(made.folder / "notes")
    others = sorted(set(made.members) - {LIAR})
    named = [name for name in others[:2] for _ in range(2)] + [LIAR, LIAR]
    explained = [memory.charge("run", made.roster, name) for name in named]
    assert explained == [True] * MOST_CHARGES + [False]
    assert memory.charged(made.roster) == {*others[:2], LIAR}


def test_a_new_roster_has_no_charges_and_no_forged_sums(made: LocalPilot) -> None:
    memory = SiteMemory(made.folder / "notes")
    for _ in range(MOST_FORGED + 2):
        memory.forged("run", made.roster)
    assert memory.charge("run", made.roster, LIAR) and memory.charge("run", made.roster, LIAR)
    assert memory.charged(made.roster) == {LIAR}
    later = make_roster(made.roster.members, made.coordinator.public, version=2)
    assert memory.charged(later) == set() and memory.charge("run", later, LIAR)
    memory.require_unforged(later)
    with raises(KeyringError, reason="retired-keys"):
        memory.require_unforged(made.roster)


def test_an_explained_sum_has_no_charge(made: LocalPilot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inquiry convicts a member. A coordinator that names another has nobody charged."""
    made.faults[LIAR] = Spoiler(made.keys[LIAR], slot=-1).faults
    stop = Coordinator._stop

    def lie(coordinator: Coordinator, error: SecureFLError) -> None:
        stop(coordinator, PartyFailed("a lie", party="hospital-1", reason=HIDDEN))

    monkeypatch.setattr(Coordinator, "_stop", lie)
    lead(made, remembers=False)
    for name in set(made.members) - {LIAR}:
        memory = made.processes[name]._memory
        assert memory.charged(made.roster) == set()
        notes = [line for line in memory._lines if "forged" in line or "explained" in line]
        assert ["forged" in line for line in notes] == [True, False]
        assert not any("party" in line for line in notes)


def test_a_member_that_cannot_use_keys_still_testifies(tmp_path: Path) -> None:
    """The liar sends one of three useless keys, and complains of a total at the same time.

    A victim that leaves the inquiry would be named for that, and its testimony would be missing.
    """
    town = local_pilot(tmp_path, plan("run", 0), 3)
    victim, totals = "hospital-1", list[Frame]()
    carry = town.exchange

    def keep(frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        totals.append(frames[LIAR])
        yield from carry(frames, deadline)

    def garble(message: UnmaskShares, bulk: bytes) -> tuple[FromParty, bytes]:
        assert message.offer is not None
        shares = {**message.offer.shares, victim: bytes(len(message.offer.shares[victim]))}
        return structs.replace(message, offer=structs.replace(message.offer, shares=shares)), bulk

    def complain(message: SumInput, bulk: bytes) -> tuple[FromParty, bytes]:
        if message.sum == 1:
            return message, bulk
        return Complaint(totals[-1].head), totals[-1].bulk

    town.exchange = keep  # type: ignore[method-assign]
    town.faults[LIAR] = {UnmaskShares: garble, SumInput: complain}
    with raises(Misconduct, party=LIAR):
        lead(town, remembers=False)
    convicted = {event["party"] for event in town.seen("convicted") if event["parties"] == [LIAR]}
    assert victim in convicted and not town.seen("withheld")
    refused = town.seen("refused", victim)
    assert [event["code"] for event in refused] == ["keys"]  # its first answer to that total
    town.close()


def test_a_member_that_leaves_as_the_sum_fails_is_charged_with_it(made: LocalPilot) -> None:
    """It spoils a sum, and answers the total with a restart: the run ends before an inquiry."""

    def leave(message: FromParty, bulk: bytes) -> tuple[FromParty, bytes]:
        return Failed(RESTARTED), b""

    def first(frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        answers = dict(carry(frames, deadline))
        yield from sorted(answers.items(), key=lambda answer: answer[0] != LIAR)

    carry = made.exchange
    made.exchange = first  # type: ignore[method-assign]
    made.faults[LIAR] = {**made.faults[LIAR], Complaint: leave}
    with raises(PartyFailed, party=LIAR, reason=FAILED):
        lead(made, remembers=False)
    assert not made.seen("sum_disputed")
    for name in set(made.members) - {LIAR}:
        made.processes[name]._memory.require_unforged(made.roster)
        assert made.processes[name]._memory.charged(made.roster) == {LIAR}


def test_one_that_remembers_stops_and_names_who_hides(made: LocalPilot) -> None:
    for _ in range(4):
        with raises(PartyFailed, party=LIAR, reason=HIDDEN):
            lead(made, remembers=True)
    require_keys(made)
    assert [event["parties"] for event in made.seen("withheld")] == [[LIAR]] * 2


@pytest.mark.parametrize("nth", [1, 2])  # as it is sent the total; as the others look into it
def test_a_restart_does_not_end_an_inquiry_into_anothers_upload(made: LocalPilot, nth: int) -> None:
    asked = list[str]()

    def before(town: LocalPilot, party: str) -> None:
        if town.seen("refused") and party == "hospital-5":  # others have found the total wrong
            asked.append(party)
            if len(asked) == nth:
                town.restart(party)

    made.before = before
    with raises(PartyFailed, party=LIAR, reason=HIDDEN):
        lead(made, remembers=True)
    require_keys(made)
    assert [event["parties"] for event in made.seen("withheld")] == [[LIAR]] * 2


def test_restarts_of_all_members_in_an_inquiry_do_not_end_the_run(made: LocalPilot) -> None:
    """The adversary found it: the coordinator looked for one party in an error that names none."""
    ended = list[str]()

    def before(town: LocalPilot, party: str) -> None:
        if town.seen("sum_disputed") and not ended:
            ended.extend(town.members)
            for name in ended:
                town.restart(name)

    made.before = before
    with raises(PartyFailed, party=LIAR, reason=HIDDEN):
        lead(made, remembers=True)
    require_keys(made)
    assert [event["parties"] for event in made.seen("restarted")] == [sorted(made.members)]


def test_an_inquiry_that_a_crash_ended_counts_as_well() -> None:
    complaint = SumDisputed(parties=("x",), round=1)
    named, hidden = Convicted(parties=("x",), round=1), Withheld(parties=("y",))
    read = EarlierEvents.read
    assert read([complaint, named, complaint, complaint, hidden]).unsolved == ("", "y")
    assert read([complaint, named, complaint]).unsolved == ("",)


def test_a_later_conviction_for_something_else_ends_no_inquiry() -> None:
    """An inquiry ends with its gathering; a false share in the next one does not solve it."""
    gathered, complaint = MembersGathered(members=("x", "y")), SumDisputed(parties=("x",), round=1)
    named = Convicted(parties=("y",), round=2, evidence="a false share")
    read = EarlierEvents.read
    assert read([gathered, complaint, gathered, named]).unsolved == ("",)
    assert read([gathered, complaint, named, gathered]).unsolved == ()
    hidden = Withheld(parties=("y",))
    assert read([gathered, complaint, hidden, gathered, named]).unsolved == ("y",)


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
