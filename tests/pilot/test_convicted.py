"""Who spoils a sum is left out, the others go on, and the evidence is kept and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.cli.main import main
from secure_fl.crypto.sealing.masking import Slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.display.run_page import write_run_page
from secure_fl.errors import CohortError, Misconduct
from secure_fl.pilot.coordinator_process import RunLeader
from secure_fl.settings import ProtectionSettings
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

LIAR = "hospital-3"


def spoiling(
    monkeypatch: pytest.MonkeyPatch, in_round: int, liars: tuple[str, ...] = (LIAR,)
) -> None:
    """In one round the liars change a slot of what they send, after they tagged it."""
    sealed, seal = SecureSumInProgress._masked, SecureSumInProgress._seal

    def remember(sum: SecureSumInProgress, group: Any, at: Any) -> Any:
        sum.round = at[0]  # type: ignore[attr-defined]
        return seal(sum, group, at)

    def masked(sum: SecureSumInProgress, *what: Any) -> Slots:
        slots = sealed(sum, *what)
        if sum._context.me == LIAR and sum.round >= in_round:  # type: ignore[attr-defined]
            slots[0] = (slots[0] + np.uint64(1)) % np.uint64(COHORT.modulus)
        return slots

    monkeypatch.setattr(SecureSumInProgress, "_seal", remember)
    monkeypatch.setattr(SecureSumInProgress, "_masked", masked)


def five(folder: Path) -> LocalPilot:
    protection = ProtectionSettings(min_cohort=3)
    return local_pilot(folder, plan_of(FedAvg(rounds=3), protection=protection), 5)


def test_the_others_go_on_without_who_spoiled_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = five(tmp_path)
    spoiling(monkeypatch, 2)
    lead = made.lead(patience=0)
    lead.run()
    assert lead.document()["convicted"] == [LIAR]
    honest = sorted(set(made.members) - {LIAR})
    assert {name for name, process in made.processes.items() if process.done} == set(honest)
    models = {(tmp_path / name / "run" / "model" / "model.safetensors") for name in honest}
    assert len({file.read_bytes() for file in models}) == 1
    named = [
        event["parties"] for event in made.seen("convicted") if event["party"] == "coordinator"
    ]
    assert named == [[LIAR]]
    last = [event for event in made.seen("round_started") if event["party"] == "coordinator"][-1]
    assert last["members"] == honest
    for name in honest:  # nobody's keys count as attacked, and all have the evidence
        notes = [line.keys() for line in made.processes[name]._memory._lines]
        assert sum("forged" in line for line in notes) == 1
        assert sum("explained" in line for line in notes) == 1
        assert evidence(made, name).exists()


def test_whoever_reads_of_the_run_is_told_who_spoiled_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = five(tmp_path)
    spoiling(monkeypatch, 2)
    made.lead(patience=0).run()
    run, said = tmp_path / "hospital-1" / "run", f"as the evidence here shows: {LIAR}"
    assert json.loads((run / "result.json").read_text())["convicted"] == [LIAR]
    assert said in write_run_page(run).read_text()
    for command in (["status"], ["runs", "show"]):
        told = CliRunner().invoke(main, [*command, str(run)])
        assert said in " ".join(told.output.split()), told.output
    heard = [event for event in made.seen("convicted") if event["party"] == "hospital-1"]
    assert len(heard) == 1  # and `join` says it once


def evidence(made: LocalPilot, name: str, accused: str = LIAR) -> Path:
    (own,) = (made.folder / name).glob(f"run/parties/{name}")
    return own / "evidence" / accused


def stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPilot:
    """A run that stopped when the liar was named, and a liar that is honest from now on."""
    made = five(folder)
    with monkeypatch.context() as patch:
        spoiling(patch, 2)
        patch.setattr(RunLeader, "_go_on_without", lambda *_: require_nobody())
        with pytest.raises(Misconduct):
            made.lead(patience=0).run()
    return made


def require_nobody() -> None:
    raise Misconduct("the coordinator's process ends here", party=LIAR)


def test_a_coordinator_that_has_forgotten_who_was_named_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stopped(tmp_path, monkeypatch)
    with raises(CohortError, party="hospital-1"):
        made.lead(patience=0).run()
    made.lead(patience=0, named={LIAR}).run()
    assert {n for n, process in made.processes.items() if process.done} == {*made.members} - {LIAR}


def test_a_site_does_not_go_on_by_evidence_that_was_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stopped(tmp_path, monkeypatch)
    file = evidence(made, "hospital-1")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with raises(CohortError, party="hospital-1"):
        made.lead(patience=0, named={LIAR}).run()
    refused = [event for event in made.seen("refused") if event["party"] == "hospital-1"]
    assert refused[-1]["code"] == "run"
    for process in made.processes.values():  # the others had begun
        process.close()
