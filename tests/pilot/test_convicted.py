"""Who spoils a sum is left out, the others go on, and the evidence is kept and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.blame.evidence import FalseShare
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.display.run_page import write_run_page
from secure_fl.errors import CohortError, SecureFLError, SettingsError, TooFewParties
from secure_fl.federation.assembly import make_keys
from secure_fl.pilot.plan import write_plan
from secure_fl.pilot.progress import EarlierEvents, progress
from secure_fl.protocol.messages import UnmaskShares
from secure_fl.settings import ProtectionSettings
from tests.support.command_line import ran
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises
from tests.support.spoiling import Spoiler

LIAR = "hospital-3"


def five(folder: Path) -> LocalPilot:
    """A pilot of five, one of which spoils its contributions from round 2 on."""
    made = local_pilot(folder, plan_of(FedAvg(rounds=3)), 5)
    made.faults[LIAR] = Spoiler(made.keys[LIAR], when=lambda sent: sent.at[0] >= 2).faults
    return made


def test_the_others_go_on_without_who_spoiled_a_sum(tmp_path: Path) -> None:
    made = five(tmp_path)
    lead = made.lead(patience=0)
    lead.run()
    assert lead.document()["convicted"] == [LIAR]
    honest = sorted(set(made.members) - {LIAR})
    assert made.finished() == set(honest)
    models = {(tmp_path / name / "run" / "model" / "model.safetensors") for name in honest}
    assert len({file.read_bytes() for file in models}) == 1
    named = [event["parties"] for event in made.seen("convicted", "coordinator")]
    assert named == [[LIAR]]
    last = made.seen("round_started", "coordinator")[-1]
    assert last["members"] == honest
    for name in honest:  # nobody's keys count as attacked, and all have the evidence
        notes = [line.keys() for line in made.processes[name]._memory._lines]
        assert sum("forged" in line for line in notes) == 1
        assert sum("explained" in line for line in notes) == 1
        assert evidence(made, name).exists()


def test_whoever_reads_of_the_run_is_told_who_spoiled_it(tmp_path: Path) -> None:
    made = five(tmp_path)
    made.lead(patience=0).run()
    run, said = tmp_path / "hospital-1" / "run", f"folder): {LIAR}"
    assert json.loads((run / "result.json").read_text())["convicted"] == [LIAR]
    assert said in write_run_page(run).read_text()
    for command in (["status"], ["runs", "show"]):
        told = ran(*command, run)
        assert said in " ".join(told.output.split()), told.output
    heard = made.seen("convicted", "hospital-1")
    assert len(heard) == 1  # and `join` says it once


def evidence(made: LocalPilot, name: str, accused: str = LIAR) -> Path:
    (own,) = (made.folder / name).glob(f"run/parties/{name}")
    return own / "evidence" / accused


def stopped(folder: Path) -> LocalPilot:
    """A run that stopped when the liar was named, and a liar that is honest from now on."""
    made = five(folder)
    lead = made.lead(patience=0)

    def stop(town: LocalPilot, _: str) -> None:
        lead.stopping = any(told["event"] == "convicted" for told in town.events)

    made.after = stop
    with pytest.raises(SecureFLError):
        lead.run()
    assert made.seen("convicted")
    made.after = lambda town, party: None
    made.faults.clear()
    return made


def test_a_coordinator_that_has_forgotten_who_was_named_is_refused(tmp_path: Path) -> None:
    made = stopped(tmp_path)
    with raises(CohortError, party="hospital-1"):
        made.lead(patience=0).run()
    made.lead(patience=0, earlier=EarlierEvents(frozenset({LIAR}))).run()
    assert made.finished() == {*made.members} - {LIAR}


def rotate_without_liar(made: LocalPilot) -> None:
    """Deal new keys under a new roster, as `keys rotate` does, and restart all processes."""
    made.close()
    made.members = {name: silo for name, silo in made.members.items() if name != LIAR}
    cards = [member for member in made.roster.members if member.name != LIAR]
    made.roster = replace(made.roster, version=2, members=tuple(cards))
    peers = {card.name: card.identity for card in cards}
    for name, new in make_keys("he+secagg", list(made.members), None).items():
        made.keys[name] = replace(new, identity=made.keys[name].identity, peers=peers)
        made.start(name)


def test_a_run_continues_under_a_new_roster_without_the_convicted_member(tmp_path: Path) -> None:
    """The evidence cannot be verified with the new keys; each site verified it with the old."""
    made = stopped(tmp_path)
    rotate_without_liar(made)
    file = evidence(made, "hospital-1")
    whole = file.read_bytes()
    file.write_bytes(whole + b"\0")  # no evidence that the site verified
    with raises(CohortError, party="hospital-1"):
        made.lead(patience=0).run()
    why = made.seen("refused", "hospital-1")[-1]["why"]
    assert "start a new run" in why and "remove" not in why
    file.write_bytes(whole)
    made.lead(patience=0).run()
    assert made.finished() == {*made.members}


def test_nobody_waits_for_a_sum_that_needs_a_convicted_member(tmp_path: Path) -> None:
    """The roster's threshold is 4 of 5, and the plan's is 5."""
    asked = plan_of(FedAvg(rounds=1), protection=ProtectionSettings(threshold=5))
    made = local_pilot(tmp_path, asked, 5)
    with raises(TooFewParties, "4 parties accepted; sums need 5"):
        made.lead(patience=5, earlier=EarlierEvents(frozenset({LIAR}))).run()
    assert not made.seen("waiting")
    made.plan = plan_of(FedAvg(rounds=1), protection=ProtectionSettings(threshold=6))
    with raises(SettingsError, "sums need 6 parties, and the roster has 5", field="protection"):
        made.lead()
    made.close()


def test_a_site_does_not_go_on_by_evidence_that_was_edited(tmp_path: Path) -> None:
    made = stopped(tmp_path)
    file = evidence(made, "hospital-1")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with raises(CohortError, party="hospital-1"):
        made.lead(patience=0, earlier=EarlierEvents(frozenset({LIAR}))).run()
    refused = made.seen("refused", "hospital-1")
    assert refused[-1]["code"] == "run"
    made.close()  # the others had begun


def test_evidence_under_another_name_accuses_nobody(tmp_path: Path) -> None:
    made = stopped(tmp_path)
    evidence(made, "hospital-1").rename(evidence(made, "hospital-1", "hospital-2"))
    with raises(CohortError, party="hospital-1"):
        made.lead(patience=0, earlier=EarlierEvents(frozenset({LIAR}))).run()
    refused = made.seen("refused", "hospital-1")
    assert f"evidence against {LIAR}, and not against hospital-2" in refused[-1]["why"]
    made.close()


# --- false shares ---------------------------------------------------------------------------------


FALSE = "hospital-2"


def lying(first: int, absent: str = "") -> Any:
    """Reveal a false share from this sum on; another member leaves once in that sum."""
    honest, fails = StepKeys.reveal, [absent]

    def reveal(
        keys: StepKeys, signatures: Mapping[str, bytes], signers: Mapping[str, PublicIdentity]
    ) -> UnmaskShares:
        shares = honest(keys, signatures, signers)
        if keys.index >= first and keys.me in fails:
            fails.remove(keys.me)
            raise TooFewParties("this member waits once")
        false = {"hospital-1": bytes(17)} if keys.me == FALSE and keys.index >= first else {}
        return structs.replace(shares, seeds={**shares.seeds, **false})

    return reveal


def test_no_honest_member_is_lost_if_the_others_have_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would refuse to repeat a sum without the liar, and the run would end as if by them."""
    monkeypatch.setattr(StepKeys, "reveal", lying(first=2, absent="hospital-3"))
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=3)), count=4)
    with pytest.raises(CohortError, match=f"{FALSE}, which is convicted") as raised:
        made.lead(patience=5).run()
    assert "start a new run with another seed" in str(raised.value)
    assert not made.seen("lost") and len(made.seen("gathered")) == 2
    made.close()


def test_the_others_keep_the_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepKeys, "reveal", lying(first=2))
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=3)), count=4)
    made.lead(patience=0).run()
    assert FALSE in made.connected()  # it is there all the time, and not gathered again
    assert made.finished() == (set(made.members) - {FALSE})
    made.processes[FALSE].close()  # it waits for a coordinator that asks it no more
    (named,), gathered = made.seen("convicted"), made.seen("gathered")
    assert named["parties"] == [FALSE] and len(gathered) == 1
    FalseShare.read(named["evidence"]).check({m.name: m.identity for m in made.roster.members})

    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "settings.toml").write_text(write_plan(made.plan))
    lines = [json.dumps(event) for event in (*gathered, named)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    told = progress(folder)
    assert told["members"][FALSE]["state"] == "convicted" and FALSE in told["notes"][-1]
