"""What a hospital remembers over all runs: seeds that were used, and keys that were attacked."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.settings import Probe
from secure_fl.config.build import RunSettings
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster import Member, Roster
from secure_fl.crypto.sealing import public, secret
from secure_fl.crypto.sealing.public import _planes, _words
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, DataError, KeyringError, PlanRefused, RunError
from secure_fl.events import Event, EventLog, MembersGathered, RoundStarted, Waiting
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.pilot.plan import write_plan
from secure_fl.pilot.site_memory import (
    MOST_FORGED,
    OpenedQuestions,
    RunInputs,
    SiteMemory,
    records_of,
)
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import load_site
from secure_fl.policy.rules import PolicyRefusal
from secure_fl.protocol.frames import Frame
from secure_fl.runs.folder import RunFolder
from secure_fl.settings import TaskSettings
from secure_fl.testing.hospitals import LABELS
from tests.support.forging import forge
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises


def named(plan: Plan, name: str, **run: Any) -> Plan:
    return plan.model_copy(update={"run": plan.run.model_copy(update={"name": name, **run})})


def test_another_name_does_not_repeat_inputs_over_other_hospitals(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)), count=4)
    made.lead().run()
    made.members = {n: silo for n, silo in made.members.items() if n != "hospital-4"}
    made.processes.pop("hospital-4")
    made.down.add("hospital-4")
    made.plan = named(made.plan, "other")
    with raises(CohortError, "(cohort)", party="hospital-1"):
        made.lead(patience=0).run()
    (told, *_) = made.seen("refused")
    assert "seed" in told["why"]
    made.plan = named(made.plan, "third", seed=made.plan.run.seed + 1)
    made.lead(patience=0).run()
    assert made.processes["hospital-1"].done


@pytest.mark.parametrize("second", [Probe(), Probe(fit="logistic", rounds=1)])
def test_another_seed_does_not_repeat_a_probe_over_other_hospitals(
    second: Probe, tmp_path: Path
) -> None:
    """No seed changes its sums: the difference would be one hospital's moments or gradient."""
    made = local_pilot(tmp_path, plan_of(Probe()), count=4)
    made.lead().run()
    made.members = {n: silo for n, silo in made.members.items() if n != "hospital-4"}
    made.processes.pop("hospital-4")
    made.down.add("hospital-4")
    seed = made.plan.run.seed + 1
    made.plan = named(made.plan.model_copy(update={"algorithm": second}), "other", seed=seed)
    with raises(CohortError):
        made.lead(patience=0).run()
    refused = [told for told in made.seen("refused") if told.get("why")]
    assert (
        "the same was asked over hospital-1, hospital-2, hospital-3, hospital-4"
        in (refused[0]["why"])
    )
    made.close()


def test_a_refused_plan_does_not_use_its_seed_up(tmp_path: Path) -> None:
    labels = ("other", *LABELS[1:])
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), task=TaskSettings(labels=labels)))
    with raises(PlanRefused, party="hospital-1"):
        made.lead(patience=0).run()
    assert not list(tmp_path.rglob("runs.jsonl"))  # neither the seed nor the sites are noted
    made.plan = named(plan_of(FedAvg(rounds=1)), "corrected")
    made.lead(patience=0).run()
    assert made.finished() == set(made.members)


def test_a_result_states_the_collusion_bound_of_the_members_that_took_part(tmp_path: Path) -> None:
    """By the whole roster, it would state that two of these three hospitals learn nothing."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)), count=5, threshold=3)
    for name in ("hospital-4", "hospital-5"):
        made.processes.pop(name).close()
        made.down.add(name)
    made.lead(patience=0).run()
    (file,) = (tmp_path / "hospital-1").glob("run/result.json")
    bound = json.loads(file.read_text())["protection"]["collusion_bound"]
    assert bound["honest_coordinator"] == 1


def test_a_run_goes_on_under_its_name(tmp_path: Path) -> None:
    memory = SiteMemory(tmp_path)
    memory.begin(RunInputs("study", "notes", 0, "a"))
    SiteMemory(tmp_path).begin(RunInputs("study", "notes", 0, "a"))  # a new process
    memory.begin(RunInputs("study", "others", 0, "b"))
    with raises(CohortError, "'study'", "0", field="run.seed"):
        SiteMemory(tmp_path).begin(RunInputs("study2", "notes", 0, "c"))
    with raises(CohortError, "'study'", "0", field="run.seed"):
        SiteMemory(tmp_path).begin(RunInputs("study2", "renamed", 0, "a"))
    memory.begin(RunInputs("study2", "renamed", 0, "c"))
    memory.begin(RunInputs("host", "one", 0))  # it trains on no records
    memory.begin(RunInputs("host2", "two", 0))
    assert (tmp_path / "runs.jsonl").stat().st_mode & 0o777 == 0o600


def test_changed_records_of_a_run_are_known_under_any_name(tmp_path: Path) -> None:
    memory = SiteMemory(tmp_path)
    memory.begin(RunInputs("study", "notes", 0, "a"))
    memory.begin(RunInputs("study", "notes", 0, "b"))  # one record changed since
    with raises(CohortError, "'study'", field="run.seed"):
        memory.begin(RunInputs("study2", "renamed", 0, "b"))
    memory.begin(RunInputs("study2", "renamed", 0, "c"))
    with raises(CohortError, "'study2'", field="run.seed"):
        memory.begin(RunInputs("study", "notes", 0, "c"))
    memory.begin(RunInputs("study", "notes", 0, "a"))
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 3


def test_an_invitation_after_the_last_day_of_the_roster_is_refused(tmp_path: Path) -> None:
    """A process that has waited since before must not accept it."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    past = datetime.now(UTC) - timedelta(days=2)
    made.roster = replace(made.roster, created=past, expires=past + timedelta(days=1))
    for name in made.members:
        made.start(name)
    with raises(CohortError, "(keyring)", party="hospital-1"):
        made.lead(patience=0).run()
    assert "the roster expired on" in made.seen("refused", "hospital-1")[0]["why"]


def test_a_new_seed_keeps_the_records_of_each_split(tmp_path: Path) -> None:
    """A later study may start from a model of the earlier one, which must not have its tests."""
    rows = "".join(f"{k},note {k},{'ade' if k % 3 else 'none'}\n" for k in range(60))
    (tmp_path / "notes.csv").write_text("id,text,label\n" + rows)
    file = tmp_path / "site.toml"
    file.write_text(
        '[site]\nalgorithms = ["fedavg"]\nuntil = 2030-01-01\n\n[[data.set]]\nname = "notes"\n'
        'train = "notes.csv"\ndev = 0.1\ntest = 0.2\n'
    )
    me, plan = Member("north", "party", None, Identity.generate("north").public), plan_of()
    first, *later = (
        records_of(load_site(file), me, named(plan, f"study-{seed}", seed=seed))
        for seed in (0, 1, 2)
    )
    assert first.test and all((one.train, one.test) == (first.train, first.test) for one in later)


def test_what_opens_and_what_does_not_tells_about_the_key() -> None:
    """The attack: a total that is changed a little opens or not by one coefficient of the key."""
    key, width = secret.generate(), COHORT.degree
    total = public.Sum(public.load(key.public()), width)
    for k in range(3):
        rng = np.random.default_rng(k)
        total.add(secret.seal(key, rng.integers(0, COHORT.modulus, width, dtype=np.uint64)))
    (part,) = total.result()
    words, truth = _words(part[1:], 2 * width), secret.open(key, [part], width, 3)

    def opens(at: int) -> bool:
        changed = words.copy()
        changed[at] += np.uint64(300)
        changed[width] += np.uint64(300)
        return bool((secret.open(key, [part[:1] + _planes(changed)], width, 3) == truth).all())

    assert {opens(at) for at in range(1, 24)} == {True, False}


def test_keys_under_which_a_sum_was_forged_open_nothing_more(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    for k in range(MOST_FORGED):  # in each run once: then sites know its coordinator
        settings = RunSettings(name=f"forged-{k}", seed=k)
        made.plan = plan_of(FedAvg(rounds=1), run=settings)
        forge(made)
    victim = "hospital-1"
    refused = [told["code"] for told in made.seen("refused", victim)]
    assert refused == ["tamper"] * MOST_FORGED
    made.events.clear()
    made.start(victim)  # also after a new start of the process
    made.plan = plan_of(FedAvg(rounds=1), run=RunSettings(name="honest", seed=9))
    with raises(CohortError, "(keyring)", party=victim):
        made.lead(patience=0).run()
    told, *_ = made.seen("refused")
    assert told["party"] == victim and "keys rotate" in told["why"]
    with raises(KeyringError, reason="retired-keys"):
        made.processes[victim]._memory.require_unforged(made.roster)
    SiteMemory(tmp_path / "another").require_unforged(made.roster)


def test_a_forged_sum_whose_note_fails_once_is_counted_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the first try; the hub asks again, and the answer reveals a bit."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    victim = made.processes["hospital-1"]
    note, step, full = SiteMemory.forged, victim.step, list[RunError]()

    def forged(memory: SiteMemory, run: str, roster: Roster) -> None:
        if memory is victim._memory and not full:
            full.append(RunError("no space is left", reason="unwritable"))
            raise full[0]
        note(memory, run, roster)

    def asked_twice(frame: Frame) -> Frame:
        try:
            return step(frame)
        except RunError:
            return step(frame)

    monkeypatch.setattr(SiteMemory, "forged", forged)
    monkeypatch.setattr(victim, "step", asked_twice)
    forge(made)
    assert full and sum("forged" in line for line in victim._memory._lines) == 1


def test_a_name_that_has_passed_to_another_site_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    """By name, a repeated round would be over the same parties, and the difference somebody's."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    memory, before, later = SiteMemory(tmp_path / "notes"), made.roster, made.roster.members
    memory.note_sites("study", before)
    SiteMemory(tmp_path / "notes").require_same_sites("study", replace(before, version=2))
    joined = Member("joined", "party", None, Identity.generate("joined").public)
    SiteMemory(tmp_path / "notes").require_same_sites(
        "study", replace(before, members=(*later, joined))
    )
    other = replace(later[0], identity=Identity.generate(later[0].name).public)
    passed = replace(before, members=(other, *later[1:]))
    with raises(CohortError, later[0].name, field="roster"):
        SiteMemory(tmp_path / "notes").require_same_sites("study", passed)
    SiteMemory(tmp_path / "notes").require_same_sites("another", passed)


# --- a plan that was refused binds nobody -------------------------------------------------------


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


# --- opened questions -----------------------------------------------------------------------------


CARDS = {"north": "1", "south": "2", "west": "3"}


def test_a_question_is_answered_over_the_same_sites_or_not_at_all(tmp_path: Path) -> None:
    notes = OpenedQuestions(tmp_path, CARDS)
    notes.admit(("how many",), ("south", "north", "west"))
    again = OpenedQuestions(tmp_path, CARDS)  # the process was started again
    again.admit(("how many",), ("north", "south", "west"))
    again.admit(("how old",), ("north", "south"))
    with raises(CohortError, "north, south, west", field="survivors"):
        again.admit(("how many",), ("north", "south"))


def test_a_name_that_has_passed_to_another_site_is_another_one(tmp_path: Path) -> None:
    OpenedQuestions(tmp_path, CARDS).admit(("how many",), tuple(CARDS))
    with raises(CohortError, field="survivors"):
        OpenedQuestions(tmp_path, {**CARDS, "west": "4"}).admit(("how many",), tuple(CARDS))


def test_the_same_records_under_another_name_are_not_summed_over_other_hospitals(
    tmp_path: Path,
) -> None:
    """A second study whose data set has another name: its sums would differ by one update."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)), count=4)
    made.lead().run()
    made.members = {n: silo for n, silo in made.members.items() if n != "hospital-4"}
    made.processes.pop("hospital-4")
    made.down.add("hospital-4")
    made.plan = named(made.plan.model_copy(update={"dataset": "notes-2026"}), "other")
    with raises(CohortError, "(cohort)", party="hospital-1"):
        made.lead(patience=0).run()
    (told, *_) = made.seen("refused")
    assert "used seed 0 on these records" in told["why"]
