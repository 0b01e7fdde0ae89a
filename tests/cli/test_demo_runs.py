"""The demo's page: one picture that says what its matrix says, and every way to learn beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.audits.audited_run import recorded
from secure_fl.audits.report.page import render
from secure_fl.cli import demo
from secure_fl.cli.demo_runs import ALONE, together
from secure_fl.config.load import dump, loads
from secure_fl.testing.hospitals import silos, small
from tests.support.documents import three
from tests.support.pages import Page
from tests.support.stories import STUDY, story


def test_clear_and_sealed_differ_in_protection_alone() -> None:
    lines = [dump(run.settings(record=True)).splitlines() for run in together()[:2]]
    apart = {a.split(" = ")[0] for a, b in zip(*lines, strict=True) if a != b}
    assert apart == {"name", "mode"}
    assert [run.settings().algorithm.name for run in together("fedadam")][:2] == ["fedadam"] * 2
    assert ALONE.settings().algorithm.name == "local"


def test_one_page_shows_audits_and_unaudited_runs(tmp_path: Path) -> None:
    alone, *stories = [story(tmp_path / name) for name in ("alone", "clear", "sealed", "fedkd")]
    page = render(three(), stories, unaudited=[alone])
    learned = page.index("How they learned, side by side")
    for name in ("alone", "clear", "sealed", "fedkd"):
        assert f'<th scope="row">{name}</th>' in page[learned : page.index("all-accuracy-title")]
    assert "How they learned, side by side" not in render(three())


def test_the_last_screen_is_the_top_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    documents = three()
    demo._print_end(documents, 1.0, tmp_path, tmp_path / "report.html")
    printed, page = capsys.readouterr().out, Page(render(documents))
    top = page.all("table")[0]
    for cell in (e for e in page.within(top) if e.tag in ("th", "td")):
        assert cell.text in printed
    for sentence in page.within(page.all("ul", "leaks")[0]):
        assert sentence.tag != "li" or sentence.text in " ".join(printed.split())
    assert "guessing: 3 %" in printed and "freeze_embeddings = false" in printed


def test_an_audits_control_run_shows_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A control prints nothing into the audit's line of progress."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as at a terminal
    shown = small(silos=silos(size=16), progress=None)
    shown.run()
    assert "hospital-1" in capfd.readouterr().err
    recorded(loads(f"run = {{record = true}}\n{STUDY}"), tmp_path / "control", until=1)
    assert capfd.readouterr().err == ""
