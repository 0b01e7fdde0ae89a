"""The walk-throughs run, and print what their page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "walkthroughs.md"
SCRIPTS = ("first_federation", "reading_an_audit")


def cells(script: str) -> list[str]:
    """The cells of code, as editors and Jupyter tell them apart."""
    text = (ROOT / "examples" / f"{script}.py").read_text(encoding="utf-8")
    parts = re.split(r"^# %%(.*)\n", text, flags=re.M)[1:]
    return [body.strip() for kind, body in zip(parts[::2], parts[1::2], strict=True) if not kind]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_shows_every_cell(script: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for code in cells(script):
        assert code in page, code


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_walkthrough_prints_what_its_page_shows(script: str) -> None:
    """But for figures, which machines may round differently."""
    command = [sys.executable, str(ROOT / "examples" / f"{script}.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = without_figures(PAGE.read_text(encoding="utf-8"))
    missing = [one for one in printed.splitlines() if without_figures(one.strip()) not in page]
    assert missing == []


def without_figures(text: str) -> str:
    return re.sub(r"\d+([.,]\d+)*", "#", text)
