"""Audits of scripts: the coordinator reads updates without protection, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl import ScriptCohort, audit_script, simulate
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import Verdict
from secure_fl.audits.run import audit
from secure_fl.config.load import dump, loads
from secure_fl.errors import RunError, SettingsError
from tests.support.raising import raises


def learn(cohort: ScriptCohort) -> None:
    draw = np.random.default_rng(cohort.index)
    state = {"w": np.zeros(400)}
    for _ in cohort.rounds(state):
        moved = state["w"] + draw.normal(size=400)
        state["w"] = cohort.mean({"w": moved}, weight=100, base=state)["w"]


@pytest.mark.parametrize(("mode", "found"), [("he+secagg", Verdict.HOLDS), ("none", Verdict.LEAKS)])
def test_the_coordinator_reads_updates_only_without_protection(mode: str, found: Verdict) -> None:
    trials = audit_script(learn, rounds=2, protection={"mode": mode, "bits": 16})
    reads = {(t.attack, t.role): t for t in trials}
    coordinator = reads["reading one hospital", "coordinator"]
    assert coordinator.verdict == found
    assert coordinator.control is not None and coordinator.control.value == pytest.approx(1)
    assert reads["reading a sum", "one hospital"].verdict == Verdict.LEAKS  # what all may read


@pytest.mark.parametrize("option", [{"folder": "run"}, {"record": True}, {"resume": True}])
def test_an_audit_has_folders_of_its_own(option: dict[str, Any]) -> None:
    with raises(SettingsError, next(iter(option))):
        audit_script(learn, rounds=1, **option)


def test_the_audit_of_a_folder_points_to_the_audit_of_scripts(tmp_path: Path) -> None:
    simulate(learn, rounds=1, folder=tmp_path / "run", record=True)
    with raises(RunError, "audit_script", reason="missing"):
        audit(tmp_path / "run")


def test_settings_that_name_files_of_each_hospital_are_no_script(tmp_path: Path) -> None:
    rows = (f'[[data.party]]\nname = "{name}"\ntrain = "{name}.csv"\n' for name in "abc")
    text = dump(loads("".join(rows) + '[algorithm]\nname = "fedavg"\n', tmp_path))
    (tmp_path / "settings.toml").write_text(text)
    assert AuditedRun(tmp_path).settings.algorithm.name == "fedavg"
