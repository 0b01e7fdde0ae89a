"""The walk-through shows its programs, and what they print."""

from __future__ import annotations

import re

import pytest

from tests.support.walkthrough import CELL, PAGE, ROOT, SCRIPTS, render, section


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_shows_every_cell(script: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    parts = CELL.split((ROOT / "examples" / f"{script}.py").read_text(encoding="utf-8"))[1:]
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if not kind:
            assert body.strip() in page


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_walkthrough_prints_what_its_page_shows(script: str) -> None:
    """Without figures, which machines may round differently."""
    shown = section(PAGE.read_text(encoding="utf-8"), script)
    assert without_figures(render(script)) == without_figures(shown)


def without_figures(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\d+([.,]\d+)*", "#", text))
