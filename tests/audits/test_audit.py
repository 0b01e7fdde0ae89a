"""Whole audits: three protections, three matrices, as docs/threat-model.md says; planted bugs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from secure_fl.audits import code_trials
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.document import AuditDocument, encode, read
from secure_fl.audits.findings import Verdict
from secure_fl.audits.run import TrialCache, audit
from secure_fl.audits.selftest.masks import mask_trials
from secure_fl.cli.main import main
from secure_fl.config.load import loads
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.sealing.masking import StreamId, mask_key
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.errors import RunError
from secure_fl.federation.federation import Federation
from secure_fl.protocol.frames import digest
from tests.support.audited_runs import train
from tests.support.matrices import cells
from tests.support.raising import raises
from tests.support.unmasked import without_masks

UNMASKED = "secagg without its masks"  # a planted defect


def trained(folder: Path, mode: str = "he+secagg", **options: Any) -> Path:
    """Train a tiny recorded run."""
    return train(folder, mode=mode, size=16, **options)


def protected(folder: Path, mode: str) -> Path:
    """Train a tiny recorded run, with or without a planted defect."""
    if mode != UNMASKED:
        return trained(folder, mode)
    with without_masks():
        return trained(folder, "secagg")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    made: Path = tmp_path_factory.mktemp("audits")
    return made


@pytest.fixture(scope="module")
def documents(place) -> dict[str, AuditDocument]:
    """Quick audits of the same federation under three protections, with one control for all."""
    options: dict[str, Any] = {"quick": True, "code": False, "controls": place / "controls"}
    modes = ("none", UNMASKED, "he+secagg")
    return {mode: audit(protected(place / mode, mode), **options) for mode in modes}


ONE, SUM = "one hospital's update", "a sum of updates"
COORDINATOR, HOSPITAL = "coordinator", "one hospital"
WITH_ONE, WITH_TWO = "coordinator + 1 hospital", "coordinator + 2 hospitals"


def test_matrices_differ_as_the_threat_model_says(documents):
    # Two of three colluders are left with one update by subtraction, whatever the protection.
    common = {HOSPITAL: "nothing", WITH_TWO: "everything"}
    seen = {mode: cells(document, ONE) for mode, document in documents.items()}
    pad = {COORDINATOR: "nothing", WITH_ONE: "everything"}  # it hides uploads without masks
    assert seen[UNMASKED] == common | pad
    assert seen["none"] == common | dict.fromkeys(pad, "everything")
    assert seen["he+secagg"] == common | dict.fromkeys(pad, "nothing")
    sums = {mode: cells(document, SUM)[COORDINATOR] for mode, document in documents.items()}
    assert sums == {"none": "of a sum", UNMASKED: "nothing", "he+secagg": "nothing"}


def test_the_status_is_that_of_the_promises(documents):
    assert {mode: d.status for mode, d in documents.items()} == {
        "none": "beyond policy",
        UNMASKED: "beyond policy",  # any party with the coordinator reads every update
        "he+secagg": "within policy",
    }
    assert any(COORDINATOR in reason for reason in documents["none"].reasons)
    assert all(WITH_ONE in reason for reason in documents[UNMASKED].reasons)


def test_every_cell_points_to_trials_with_their_controls(documents):
    for document in documents.values():
        trials = {trial.id: trial for trial in document.trials}
        assert len(trials) == len(document.trials)
        for row in document.matrix:
            for cell in row.cells:
                assert cell.access == "not tested" or cell.evidence
                for at in cell.evidence:
                    trial = trials[at]
                    assert trial.role == cell.role
                    assert trial.control is not None and trial.null is not None
                    if cell.access in ("nothing", "everything", "of a sum"):
                        assert trial.control.succeeded and not trial.null.succeeded


def test_evidence_is_a_frame_that_the_coordinator_carried(documents, place):
    run = AuditedRun(place / "he+secagg").run
    finding = [t.deployed.evidence for t in documents["he+secagg"].trials if t.deployed]
    places = {at for evidence in finding for at in evidence}
    assert places and places <= {frame.place for frame in run.frames}


def test_the_same_run_gives_the_same_bytes(documents, place):
    again = audit(place / "he+secagg", quick=True, code=False, controls=place / "controls")
    assert encode(again) == encode(documents["he+secagg"])


def test_what_was_left_out_is_said(documents):
    statement = " ".join(documents["he+secagg"].untested)
    for part in ("gradient matching", "membership", "later rounds", "networks"):
        assert part in statement
    # AdamW's moves defeat the span check even unprotected: that is no success of the protection.
    assert "span check" in statement


# --- planted bugs ------------------------------------------------------------------------------


def verdicts(document: AuditDocument, attack: str) -> dict[str, str]:
    return {trial.role: trial.verdict for trial in document.trials if trial.attack == attack}


def test_embeddings_that_are_sent_are_found_by_the_token_bag(documents, place):
    folder = trained(place / "embeddings", "none", frozen="false")
    finding = audit(folder, quick=True, code=False)
    assert verdicts(finding, "token bag")[COORDINATOR] == "leaks"
    frozen = documents["none"]  # also unprotected
    assert verdicts(frozen, "token bag")[COORDINATOR] == "holds"
    words = next(row for row in finding.matrix if row.what.startswith("words"))
    assert {c.role: c.access for c in words.cells}[COORDINATOR] == "everything"


def test_masks_that_are_reused_are_found(documents, place, monkeypatch):
    """One seed and one place for all sums: everything still opens rightly, and nobody notices."""
    begin = StepKeys.__init__

    def planted(self: StepKeys, *given: Any) -> None:
        begin(self, *given)
        self._mask_seed = digest(b"mask" + self.me.encode())[:16]
        self._self_seed = digest(b"self" + self.me.encode())[:16]
        self._mask_key = mask_key(self._mask_seed)

    with monkeypatch.context() as bug:
        bug.setattr(StepKeys, "__init__", planted)
        bug.setattr(StreamId, "info", lambda self, purpose: purpose.encode())
        reused = AuditedRun(trained(place / "reused"))
    assert _reuse(reused) is Verdict.LEAKS
    assert _reuse(AuditedRun(place / "he+secagg")) is Verdict.HOLDS


def _reuse(made: AuditedRun) -> Verdict:
    inputs = code_trials.masked_inputs(made.run)
    (name,) = inputs
    trials = mask_trials(made.prior, True, inputs)
    reused = [t for t in trials if t.attack.endswith("reused masks") and t.deployed]
    (verdict,) = {t.verdict for t in reused if t.deployed and t.deployed.target == name}
    return verdict


def test_a_prediction_without_noise_is_found(tmp_path, monkeypatch):
    options = {
        "data": "public = 64\nlabelled = 16",
        "algorithm": "fedid",
        "more": 'counted = "parties"',
        "protection": "[protection.noise]\nepsilon = 8.0\nforce = true",
    }
    noised = trained(tmp_path / "noised", **options)
    assert _noise_trial(noised).verdict is Verdict.HOLDS
    with monkeypatch.context() as few:  # noise that was not measured is not credited
        few.setattr(code_trials, "ENOUGH", 10**6)
        assert _noise_trial(noised).verdict is Verdict.INCONCLUSIVE
    grid = lambda self, x: np.rint(np.asarray(x) * self.scale).astype(np.int64)  # noqa: E731
    monkeypatch.setattr(SkellamNoise, "share", grid)
    bare = _noise_trial(trained(tmp_path / "bare", **options))
    assert bare.verdict is Verdict.LEAKS
    assert bare.deployed is not None and bare.deployed.details["measured std"] < 0.1


def _noise_trial(folder: Path):
    made = AuditedRun(folder)
    std = made.result["noise"]["std_guaranteed"]
    (trial,) = code_trials.noise_trials(made.run, made.prior, std)
    return trial


@pytest.mark.slow
def test_a_full_audit_attacks_the_release_and_the_metadata_too(place, tmp_path):
    finding = audit(trained(tmp_path / "whole"))
    judged = {(trial.attack, trial.role): trial.verdict for trial in finding.trials}
    assert judged["sizes", COORDINATOR] == "holds"
    assert judged["timing", COORDINATOR] == "leaks"  # nothing hides when a hospital answers
    assert ("gradient matching", COORDINATOR) in judged
    assert {"membership (LiRA)", "membership (RMIA)"} <= {attack for attack, _ in judged}
    assert finding.status == "within policy"


# --- the command line --------------------------------------------------------------------------


def test_audit_and_report_as_a_user_runs_them(documents, place):
    runner = CliRunner()
    folder = place / "none"
    done = runner.invoke(main, ["audit", str(folder), "--quick"])
    assert done.exit_code == 3, done.output
    assert "delete views, parties/*/view and audit" in done.output
    assert read(folder / "audit.json").status == "beyond policy"
    assert "<html" in (folder / "report.html").read_text()
    both = runner.invoke(main, ["report", str(folder), str(folder), "--out", str(place / "both")])
    assert both.exit_code == 0, both.output
    assert "all-matrix" in (place / "both" / "report.html").read_text()


def test_wrong_folders_are_told(tmp_path):
    runner = CliRunner()
    assert runner.invoke(main, ["audit", str(tmp_path / "none")]).exit_code == 2
    done = runner.invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 4
    assert "secure-fl runs FOLDER" in done.output + str(done.stderr)
    (tmp_path / "audit.json").write_text(json.dumps({"schema": "something/9"}))
    assert runner.invoke(main, ["report", str(tmp_path)]).exit_code == 4


def test_an_audit_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What was run is not run again, and the document is the same, byte for byte."""
    folder = trained(tmp_path / "run")
    complete = encode(audit(folder, quick=True, code=False))
    begun: list[str] = []

    def stop_at_the_third(done: int, total: int, label: str) -> None:
        begun.append(label)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(folder, quick=True, code=False, progress=stop_at_the_third)
    kept = sorted((folder / "audit" / "kept").rglob("*.msgpack"))
    assert len(kept) == 2 < len(begun)
    times = [file.stat().st_mtime_ns for file in kept]

    def looked(done: int, total: int, label: str) -> None:
        if label:  # until the end, none is written again
            assert [file.stat().st_mtime_ns for file in kept] == times

    assert encode(audit(folder, quick=True, code=False, progress=looked)) == complete
    assert not (folder / "audit" / "kept").exists()


def test_what_a_quick_or_another_audit_kept_is_not_taken(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    one = TrialCache(folder, tmp_path / "work", quick=True)
    one.put("token bag", ())
    assert one.get("token bag") == ()
    assert TrialCache(folder, tmp_path / "work", quick=False).get("token bag") is None
    (folder / "result.json").write_text((folder / "result.json").read_text() + " ")
    assert TrialCache(folder, tmp_path / "work", quick=True).get("token bag") is None
    file = next((tmp_path / "work").rglob("*.msgpack"))
    file.write_bytes(b"half a fi")
    assert one.get("token bag") is None


PARTIES = """
[run]
record = true
[task]
labels = ["no", "yes"]
max_length = 8
[model]
layers = 1
[training]
device = "cpu"
[protection]
mode = "none"
[algorithm]
name = "fedavg"
rounds = 1
"""


def test_records_that_changed_since_the_run_are_refused(tmp_path: Path) -> None:
    """Attacks on the run fail if their guesses are scored with other records."""
    text = PARTIES
    for name in ("a", "b", "c"):
        file = tmp_path / f"{name}.csv"
        rows = [f"{name}{n},note {n} of {name},{('no', 'yes')[n % 2]}" for n in range(8)]
        file.write_text("\n".join(["id,text,label", *rows]))
        text += f'[[data.party]]\nname = "{name}"\ntrain = "{file}"\ndev = 0\ntest = 0\n'
    Federation.of(loads(text), tmp_path / "run").run()
    assert len(AuditedRun(tmp_path / "run").silos) == 3
    file.write_text(file.read_text().replace("c0,note 0 of c,no", "c0,note 0 of c,yes"))
    with raises(RunError, "c's records", "--record", reason="changed"):
        audit(tmp_path / "run", quick=True)
