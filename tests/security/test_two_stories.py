"""A coordinator that tells two members different things about one sum is convicted by its own hand.

It can keep the two apart for as long as it likes; it cannot have both in a sum again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator import resume
from secure_fl.coordinator import run_steps as steps
from secure_fl.coordinator import sum_steps as step
from secure_fl.coordinator.sum_steps import Reply, SumStep, offers_to
from secure_fl.crypto.keys.identity import Identity
from secure_fl.errors import DISTRUST, CohortError, SecureFLError, WireError
from secure_fl.protocol import frames
from secure_fl.protocol.frames import (
    EquivocationProof,
    SurvivorLog,
    find_equivocation,
    statements_of,
)
from secure_fl.protocol.messages import Offer, SurvivorStatement, Unmask
from secure_fl.runs.party_checkpoints import TOLD, PartyCheckpoints
from secure_fl.settings import ProtectionSettings
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises
from tests.support.stateless import Stateless

RUN, NAMES = b"r" * 16, ("east", "middle", "north", "south", "west")
VICTIM, GONE = "hospital-5", "hospital-1"
ALL, FEWER = Unmask(NAMES, ()), Unmask(NAMES[:-1], NAMES[-1:])


def signed(who: Identity, *lists: Unmask) -> SurvivorStatement:
    """What a coordinator has signed after these lists."""
    story, last = SurvivorLog(RUN), None
    for one in lists:
        last = story.sign(who, one).statement
    assert last is not None
    return last


def offered(told: SurvivorStatement | None) -> tuple[SurvivorStatement, ...]:
    return statements_of([Offer(bytes(32), {}, bytes(32), {}, told), None])


# --- statements ---------------------------------------------------------------------------------


def test_a_crash_costs_one_statement_and_keeps_no_site_out_of_its_run(tmp_path: Path) -> None:
    me = Identity.generate("coordinator")
    one, two = signed(me, ALL), signed(me, ALL, FEWER)
    kept = PartyCheckpoints(tmp_path / "checkpoints", Stateless())
    file = tmp_path / TOLD
    for torn in (b'{"run": "72', b"\x9f\xff", b"[1]"):  # the last bytes that reached the disk
        kept.keep_statement(one)
        with file.open("ab") as end:
            end.write(torn)
        kept.keep_statement(two)
        assert list(kept.statements()) == [one, two]
        file.unlink()


def test_two_statements_about_one_sum_convict_whatever_was_told_alike_since() -> None:
    me = Identity.generate("coordinator")
    one, other = signed(me, ALL, ALL, FEWER), signed(me, ALL, FEWER, FEWER)
    found = find_equivocation([signed(me, ALL), one], offered(other), me.public)
    assert found == EquivocationProof("coordinator", one, other)
    found.check(me.public)
    again = EquivocationProof.from_bytes(found.to_bytes())
    assert again == found


def test_one_story_convicts_nobody() -> None:
    me, other = Identity.generate("coordinator"), Identity.generate("coordinator")
    mine = [signed(me, ALL), signed(me, ALL, FEWER)]
    for same in (None, mine[0], mine[1], signed(me, ALL, FEWER, ALL)):
        assert find_equivocation(mine, offered(same), me.public) is None
    invented = [signed(other, FEWER), structs.replace(mine[0], digest=bytes(32))]
    for false in invented:  # by a member, to blame the coordinator
        assert find_equivocation(mine, offered(false), me.public) is None


def test_evidence_that_was_edited_convicts_nobody() -> None:
    me, other = Identity.generate("coordinator"), Identity.generate("coordinator")
    one, two = signed(me, ALL), signed(me, FEWER)
    of_another_run = structs.replace(two, run=b"s" * 16)
    for false in (
        EquivocationProof("coordinator", one, one),
        EquivocationProof("coordinator", one, of_another_run),
        EquivocationProof("coordinator", one, structs.replace(two, signature=one.signature)),
        EquivocationProof("east", one, two),
    ):
        with pytest.raises(SecureFLError):
            false.check(me.public)
    with pytest.raises(SecureFLError):
        EquivocationProof("coordinator", one, two).check(other.public)


def test_a_member_hears_nothing_that_is_not_signed() -> None:
    me = Identity.generate("coordinator")
    told = SurvivorLog(RUN).sign(me, ALL)
    SurvivorLog(RUN).verify(me.public, told)
    for false in (ALL, structs.replace(FEWER, statement=told.statement)):
        with pytest.raises(CohortError):
            SurvivorLog(RUN).verify(me.public, false)
    late = SurvivorLog(RUN)
    late.verify(me.public, told)
    with pytest.raises(CohortError):  # the same again: no sum has two lists
        late.verify(me.public, told)


# --- pilots -------------------------------------------------------------------------------------


def five(folder: Path) -> LocalPilot:
    protection = ProtectionSettings(min_cohort=3)
    return local_pilot(folder, plan_of(FedAvg(rounds=1), protection=protection), 5)


def led(made: LocalPilot, monkeypatch: pytest.MonkeyPatch) -> SecureFLError | None:
    """Told once that another is gone, a member is lost; the others finish, and it is asked again.

    Returns the error that ended the run.
    """
    reply, lies = SumStep.reply, [1]

    def two_stories(self: SumStep, members: tuple[str, ...]) -> Reply:
        said = reply(self, members)
        if lies:
            lies.pop()
            here = tuple(name for name in members if name != GONE)
            lie = structs.replace(said.messages[VICTIM], survivors=here, dropped=(GONE,))
            return said._replace(messages={**said.messages, VICTIM: lie})
        return said

    with monkeypatch.context() as patch:
        patch.setattr(SumStep, "reply", two_stories)
        try:
            made.lead(patience=0).run()
        except SecureFLError as error:
            return error
    return None


def close(made: LocalPilot) -> None:
    """Let go of the folders of those whose run did not end."""
    made.close()


def evidence(made: LocalPilot) -> dict[str, Path]:
    found = made.folder.glob("*/run/parties/*/evidence/coordinator")
    return {file.parent.parent.name: file for file in found}


def test_a_member_that_was_kept_apart_brings_the_evidence_with_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, others = five(tmp_path), [f"hospital-{k}" for k in range(1, 5)]
    assert led(made, monkeypatch) is not None
    assert [e["parties"] for e in made.seen("lost")][:1] == [[VICTIM]]
    assert sorted(evidence(made)) == others
    for file in evidence(made).values():
        kept = EquivocationProof.from_bytes(file.read_bytes())
        assert kept is not None
        kept.check(made.coordinator.public)
    named = {e["party"] for e in made.seen("convicted") if e["parties"] == ["coordinator"]}
    assert named >= set(others)
    file = evidence(made)["hospital-2"]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SecureFLError):  # nor does it lead anything in these folders again
        made.lead(patience=0).run()
    refused = {event["party"]: event for event in made.seen("refused")}
    assert refused.keys() >= set(others)
    assert refused["hospital-1"]["code"] == "cohort"
    assert "contradictory statements" in refused["hospital-1"]["why"]
    assert refused["hospital-2"]["code"] == "run"  # its evidence was edited
    close(made)


def told_apart(made: LocalPilot, monkeypatch: pytest.MonkeyPatch) -> SecureFLError:
    """One is told in the first sum that another is gone; too few would be left to end the round."""
    reply, lies = SumStep.reply, [1]

    def two_stories(self: SumStep, members: tuple[str, ...]) -> Reply:
        said = reply(self, members)
        if not lies:
            return said
        lies.pop()
        lists = said.messages[members[0]]
        lie = structs.replace(lists, survivors=members[:-1], dropped=members[-1:])
        told = {**said.messages, members[0]: lie}
        return said._replace(messages=told)

    monkeypatch.setattr(SumStep, "reply", two_stories)
    for _ in range(2):
        with pytest.raises(SecureFLError) as caught:
            made.lead(patience=0).run()
    return caught.value


def test_where_no_sum_can_be_any_more_members_compare_as_they_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storms 28, 43 and 58: the coordinator stopped its own run, and nobody was named."""
    made = five(tmp_path)
    told_apart(made, monkeypatch)
    assert sorted(evidence(made)) == sorted(made.members)
    for file in evidence(made).values():
        kept = EquivocationProof.from_bytes(file.read_bytes())
        assert kept is not None
        kept.check(made.coordinator.public)
    whys = [told["why"] for told in made.seen("refused") if "why" in told]
    told = [why for why in whys if "told two members different things" in why]
    assert len(told) == len(made.members) and all(DISTRUST in why for why in told)
    close(made)


def test_a_coordinator_that_passes_nothing_on_says_who_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = five(tmp_path)
    monkeypatch.setattr(resume, "statements_of", lambda *_: ())
    error = told_apart(made, monkeypatch)
    assert not evidence(made) and "told them different things, at once or" in str(error)
    assert "told.jsonl" in str(error)
    close(made)


def test_without_comparing_nobody_would_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = five(tmp_path)
    monkeypatch.setattr(frames, "find_equivocation", lambda *_: None)
    assert led(made, monkeypatch) is None
    assert [e["parties"] for e in made.seen("lost")][:1] == [[VICTIM]]
    assert not evidence(made) and not made.seen("convicted")


def test_a_coordinator_that_takes_the_evidence_out_of_the_keys_gets_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = five(tmp_path)

    def without(member: str, offers: Any) -> Any:
        return {n: structs.replace(o, statement=None) for n, o in offers_to(member, offers).items()}

    monkeypatch.setattr(step, "offers_to", without)
    monkeypatch.setattr(steps, "offers_to", without)
    assert led(made, monkeypatch) is not None
    assert not evidence(made) and not made.processes[VICTIM].done
    close(made)


def test_evidence_of_nothing_names_the_accused() -> None:
    me = Identity.generate("coordinator")
    one = signed(me, ALL)
    with raises(WireError, party="coordinator"):
        EquivocationProof("coordinator", one, one).check(me.public)
