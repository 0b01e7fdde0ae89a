"""A run across seats: like a federation in one process, but anybody may stop and come back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedid import FedID
from secure_fl.coordinator.resume import Unfinished
from secure_fl.crypto.privacy.ledger import load_chain, totals
from secure_fl.errors import CohortError, TooFewParties
from secure_fl.pilot.coordinator_process import OperatorStop
from secure_fl.pilot.plan import run_id, write_plan
from secure_fl.policy.plan import Plan
from secure_fl.policy.rules import PolicyRefusal
from secure_fl.protocol.frames import Frame, peek
from secure_fl.protocol.messages import Failed, Gather, Hello, Invite, Ready, Start, Stop
from secure_fl.settings import Protection, ProtectionSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, frozen, silos
from tests.support.clinic import Clinic
from tests.support.edge import Asker
from tests.support.local_pilot import LocalPilot, at_frames, local_pilot, plan_of
from tests.support.raising import raises


def exported(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder)
    return found


@pytest.mark.parametrize(
    ("at", "answered"), [(3, False), (6, True), (9, False), (12, True), (15, False)]
)
def test_a_party_killed_at_any_phase_comes_back_and_the_run_ends(tmp_path, at, answered):
    made = local_pilot(tmp_path, count=4)
    hook = at_frames("hospital-2", {at}, LocalPilot.kill)
    setattr(made, "after" if answered else "before", hook)
    # It comes back while the others go on.
    original, lost = made.exchange, []

    def exchange(frames, deadline):
        yield from original(frames, deadline)
        if "hospital-2" in made.down:
            lost.append(made.exchanges)
            if len(lost) == 2:
                made.start("hospital-2")

    made.exchange = exchange  # type: ignore[method-assign]
    made.lead().run()
    assert lost, "it was never killed"
    finished = [name for name in made.members if made.processes[name].done]
    assert len(finished) >= 3
    ends = [exported(tmp_path / name / "run" / "model" / "model.safetensors") for name in finished]
    for other in ends[1:]:
        assert all(torch.equal(other[key], ends[0][key]) for key in ends[0])


def test_a_restart_without_the_hub_noticing_is_told(tmp_path):
    """The process begins anew between two frames: it says so, and all gather again."""
    made = local_pilot(tmp_path)
    made.before = at_frames("hospital-3", {9}, LocalPilot.restart)
    made.lead().run()
    assert made.seen("restarted") and len(made.seen("gathered")) == 2
    assert all(seat.done for seat in made.processes.values())


def test_below_the_threshold_it_waits_and_goes_on(tmp_path):
    made = local_pilot(tmp_path)  # 3 of 3
    made.before = at_frames("hospital-1", {7}, LocalPilot.kill)
    made.lead().run()
    assert made.seen("waiting")
    assert all(seat.done for seat in made.processes.values())


def test_without_patience_it_stops_and_another_lead_goes_on(tmp_path):
    made = local_pilot(tmp_path)
    made.before = at_frames("hospital-1", {12}, LocalPilot.kill)
    with pytest.raises(TooFewParties):
        made.lead(patience=0).run()
    made.start("hospital-1")
    made.before = lambda town, party: None
    made.lead().run()  # a coordinator that was restarted: it has kept nothing
    assert all(seat.done for seat in made.processes.values())


@pytest.mark.parametrize("when", ["invited", "within a round", "waiting"])
def test_an_operator_stops_after_a_round_and_while_it_waits(tmp_path, when):
    made = local_pilot(tmp_path)  # 3 of 3

    def act(town: LocalPilot, party: str) -> None:
        town.kill(party) if when == "waiting" else lead.stop()

    made.before = at_frames("hospital-1", {1 if when == "invited" else 7}, act)
    made.nap = lambda seconds: lead.stop()  # type: ignore[method-assign]
    lead = made.lead()
    with pytest.raises(OperatorStop):
        lead.run()
    assert made.seen("stopped")[-1]["code"] == OperatorStop.code
    made.before = lambda town, party: None
    made.start("hospital-1")
    made.lead().run()
    assert all(seat.done for seat in made.processes.values())


def test_an_operator_who_stops_before_the_start_asks_nobody(tmp_path):
    made = local_pilot(tmp_path)
    lead = made.lead()
    lead.stop()
    with pytest.raises(OperatorStop):
        lead.run()
    assert made.seen("stopped")[-1]["code"] == OperatorStop.code and not made.seen("gathered")


def test_a_run_id_is_never_repeated(tmp_path):
    made = local_pilot(tmp_path)
    runs = set()
    for _ in range(2):
        sent: list[Frame] = []
        original = made.exchange

        def exchange(frames, deadline, original=original, sent=sent):
            sent += list(frames.values())
            yield from original(frames, deadline)

        made.exchange = exchange  # type: ignore[method-assign]
        made.lead().run()
        runs |= {peek(frame.head).run for frame in sent}
        made.exchange = original  # type: ignore[method-assign]
    assert len(runs) == 4  # of each gathering: the call's, and the run's own
    nonces = {"a": b"a" * 16, "b": b"b" * 16}
    one = run_id(made.roster, "plan", nonces)
    assert one != run_id(made.roster, "plan", nonces | {"b": b"c" * 16})
    assert one != run_id(made.roster, "other", nonces)


def refusing(plan: Plan) -> None:
    raise PolicyRefusal((), party="hospital-2")


def test_a_site_that_refuses_says_a_code_and_keeps_the_reasons(tmp_path):
    made = local_pilot(tmp_path, approve={"hospital-2": refusing})
    with raises(CohortError, "(policy)", party="hospital-2"):
        made.lead().run()
    refused, told = made.seen("refused")  # at the site, and at the coordinator
    assert told == {
        "event": "refused",
        "party": "coordinator",
        "parties": ["hospital-2"],
        "code": "policy",
    }
    assert refused["code"] == "policy" and "does not allow" in refused["why"]
    assert not (tmp_path / "hospital-2").exists()  # nothing was begun


def test_labels_are_declared(tmp_path):
    bare = plan_of()
    plan = bare.model_copy(update={"task": bare.task.model_copy(update={"labels": None})})
    made = local_pilot(tmp_path, plan)
    with raises(CohortError, "(settings)", party="hospital-1"):
        made.lead().run()
    assert "task.labels" in made.seen("refused")[0]["why"]


@pytest.mark.parametrize("lie", ["another's nonce", "a stranger", "too few"])
def test_a_coordinator_that_lies_in_the_lobby_is_refused(tmp_path, lie):
    made = local_pilot(tmp_path)
    links = {name: made.link(b"c" * 16, name) for name in made.members}
    hello = {}
    for name, link in links.items():
        message = link.unpack(made.processes[name].step(link.pack(Invite(write_plan(made.plan)))))
        assert isinstance(message, Hello)
        hello[name] = message.nonce
    told = {
        "another's nonce": hello | {"hospital-1": b"x" * 16},
        "a stranger": hello | {"hospital-9": b"x" * 16},
        "too few": {name: hello[name] for name in ("hospital-1", "hospital-2")},
    }[lie]
    link = links["hospital-1"]
    answer = link.unpack(made.processes["hospital-1"].step(link.pack(Gather(told))))
    assert answer.code == "cohort"
    assert not made.processes["hospital-1"].joined


@pytest.mark.parametrize("checked", [False, True])
def test_a_run_starts_with_the_members_that_were_gathered(opened, checked):
    """A site checks the gathered members, such as against evidence; another one must not join."""
    asker = Asker(opened(count=4))
    asker.seated(without="hospital-4")
    run = asker.seat._under_way
    assert run is not None
    if not checked:
        run.session._cohort._members.gathered = ()
    answer = asker.say(Start(tuple(asker.made.members)))
    if checked:
        assert answer == Failed("cohort")
        assert "hospital-4" in asker.made.seen("refused")[0]["why"]
    else:
        assert isinstance(answer, Ready)


def test_frames_of_strangers_are_not_answered(tmp_path):
    made, other = local_pilot(tmp_path / "one"), local_pilot(tmp_path / "two")
    frame = other.link(b"c" * 16, "hospital-1").pack(Invite(write_plan(other.plan)))
    from secure_fl.errors import SecureFLError

    for forged in (frame, frame._replace(head=b"\x01nonsense" * 20)):
        with pytest.raises(SecureFLError):
            made.processes["hospital-1"].step(forged)
    late = made.link(b"d" * 16, "hospital-1").pack(Stop("cohort"))
    link = made.link(b"d" * 16, "hospital-1")
    link.exchange = 1
    assert link.unpack(made.processes["hospital-1"].step(late)).code == "restarted"


def test_a_run_of_another_name_spends_from_the_same_budget(tmp_path):
    # All records in each batch: accounting for sampled ones takes twenty seconds.
    training = {"learning_rate": 2e-3, "batch_size": 16, "device": "cpu"}
    dp = {"epsilon": 1.0, "target_epsilon": 0.9, "delta": 1e-3, "accountant": "rdp"}
    settings = TrainingSettings(**training, dp=dp)  # type: ignore[arg-type]
    first = plan_of(FedAvg(rounds=1), training=settings)
    made = local_pilot(tmp_path, first)
    made.lead().run()
    assert all(seat.done for seat in made.processes.values())
    made.plan = first.model_copy(
        update={"run": first.run.model_copy(update={"name": "other", "seed": 1})}
    )
    made.lead().run()
    for name in made.members:
        chain = load_chain(tmp_path / name / "ledger" / name / "ledger.sqlite")
        assert chain.owner == made.roster.member(name).identity  # as on its card
        (total,) = totals(chain)
        assert total.runs == 2  # the second fitted its noise into what the first had left
        assert 0.5 < total.spent <= total.budget == 1.0


# --- a host, and warnings at a hospital -----------------------------------------------------------


@pytest.mark.parametrize("mode", ["he+secagg", "secagg"])
def test_fedid_runs_with_what_is_in_the_kits(tmp_path: Path, mode: Protection) -> None:
    training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
    protection = ProtectionSettings(mode=mode)
    clinic = Clinic(tmp_path, plan_of(FedID(rounds=1), protection=protection, training=training))
    clinic.run()
    assert all(process.done for process in clinic.processes.values())
    clinic.close()
    for name in clinic.roster.names:
        result = json.loads((tmp_path / name / "runs" / "run" / "result.json").read_text())
        assert result["status"] == "finished"


@pytest.mark.parametrize(
    ("newcomer", "able"), [("hospital-5", 4), ("hospital-4 hospital-5", 0), ("hospital-1", 0)]
)
def test_a_host_is_no_party_of_a_sum(tmp_path: Path, newcomer: str, able: int) -> None:
    """Without newcomers, a run needs its host and min_cohort parties: here 1 and 3."""
    members = {silo.name: silo for silo in silos(parties=5, size=16)}
    members["hospital-1"] = replace(members["hospital-1"], role="host")
    made = LocalPilot(tmp_path, plan_of(FedID(rounds=1)), members, threshold=3)
    with pytest.raises(Unfinished) as caught:
        made.lead()._exclude_newcomers(tuple(members), tuple(newcomer.split()))
    assert len(caught.value.able) == able


def test_join_reports_both_and_the_coordinator_hears_of_neither(tmp_path: Path) -> None:
    assert LABELS == ("ade", "no-ade")
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), training=frozen()))
    pilot.lead().run()
    warned = [event for event in pilot.events if event["event"] == "warning"]
    texts = {(one["party"], one["code"]): one["text"] for one in warned}
    for name in pilot.members:
        assert "scores of 'no-ade'" in texts[name, "positive class"]
        assert "has not learned" in texts[name, "not learned"]
    assert {party for party, _ in texts} == set(pilot.members)
    scored = [one for one in pilot.events if one["event"] == "scores"]
    assert {one["scored_class"] for one in scored} == {"no-ade"}


def test_a_named_class_and_a_model_that_learns_need_no_warning(tmp_path: Path) -> None:
    task = TaskSettings(labels=LABELS, positive="ade", max_length=32)
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), task=task, training=frozen()))
    pilot.lead().run()
    codes = [event.get("code") for event in pilot.events if event["event"] == "warning"]
    assert "positive class" not in codes
