"""The demo's page: one picture that says what its matrix says, and every way to learn beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.audits.attacks import reading
from secure_fl.audits.controls import recorded
from secure_fl.audits.findings import AuditFinding, AuditTrial
from secure_fl.audits.report import render
from secure_fl.audits.roles import COORDINATOR
from secure_fl.audits.run import UPDATE, WORDS, _recovered
from secure_fl.cli.demo_runs import ALONE, together
from secure_fl.config.load import dump, loads
from secure_fl.testing.hospitals import silos, small
from tests.support.documents import three
from tests.support.stories import STUDY, story


def trial(attack: str, deployed: float) -> AuditTrial:
    """One that works unprotected, and not on noise."""
    found = AuditFinding(attack, COORDINATOR, "north", "", deployed, 0.0, 0.5, 100)
    return AuditTrial(found.at(value=1.0), found, found.at(value=0.0))


def test_who_reads_an_update_is_never_drawn_at_nothing() -> None:
    """With frozen embeddings no attack makes words of an update, which is read all the same."""
    read, silent = trial(reading.ONE, 0.99), trial("token bag", 0.0)
    assert _recovered([read, silent]) == (0.99, UPDATE)
    assert _recovered([read, trial("token bag", 1.0)]) == (1.0, WORDS)
    sealed, _ = _recovered([trial(reading.ONE, 0.01), silent])
    assert sealed == 0.0
    assert _recovered([])[0] is None


def test_clear_and_sealed_differ_in_protection_alone() -> None:
    lines = [dump(way.settings(record=True)).splitlines() for way in together()[:2]]
    apart = {a.split(" = ")[0] for a, b in zip(*lines, strict=True) if a != b}
    assert apart == {"name", "mode"}
    assert [way.settings().algorithm.name for way in together("fedadam")][:2] == ["fedadam"] * 2
    assert ALONE.settings().algorithm.name == "local"


def test_one_page_has_the_audits_and_who_was_trained_beside_them(tmp_path: Path) -> None:
    alone, *stories = [story(tmp_path / name) for name in ("alone", "clear", "sealed", "fedkd")]
    page = render(three(), stories, beside=[alone])
    learned = page.index("How they learned, side by side")
    for name in ("alone", "clear", "sealed", "fedkd"):
        assert f'<th scope="row">{name}</th>' in page[learned : page.index("all-matrix")]
    assert "How they learned, side by side" not in render(three())
    assert "Bytes over rounds" not in page  # the training says it
    assert render(three()).count("Bytes over rounds</h4>") == 3


def test_what_an_audit_trains_beside_a_run_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each control drew a table of its own into the audit's line of progress."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as at a terminal
    shown = small(silos=silos(size=16), progress=None)
    shown.run()
    assert "hospital-1" in capfd.readouterr().err
    recorded(loads(f"run = {{record = true}}\n{STUDY}"), tmp_path / "control", until=1)
    assert capfd.readouterr().err == ""
