"""The officer's pages: claims name tests that exist, numbers lead to claims, and all are found."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "governance"
PAGES = sorted(FOLDER.glob("*.md"))
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CLAIM = re.compile(r"^\| (C\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.M)


def claims() -> list[tuple[str, str, str, str]]:
    """Number, words, tests, and what the tests do not reach, of each claim."""
    return CLAIM.findall((FOLDER / "claims.md").read_text(encoding="utf-8"))


@cache
def in_module(file: str) -> frozenset[str]:
    """The test functions that stand in a module."""
    path = ROOT / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    functions = (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


def test_every_row_is_a_claim_with_a_number_of_its_own() -> None:
    text = (FOLDER / "claims.md").read_text(encoding="utf-8")
    table = text.partition("## Claims")[2].partition("## Not claimed")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert [number for number, *_ in claims()] == [f"C{n}" for n in range(1, len(rows) + 1)]


@pytest.mark.parametrize(("number", "words", "tests", "beyond"), claims())
def test_a_claim_names_a_test_and_what_it_does_not_reach(
    number: str, words: str, tests: str, beyond: str
) -> None:
    assert TEST.findall(tests) and not TEST.sub("", tests).strip(", ")
    assert beyond.strip("– ")
    assert not re.search(r"anonym|complian|guarant|ensure", words), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    named = TEST.findall(page.read_text(encoding="utf-8"))
    assert [f"{file}::{test}" for file, test in named if test not in in_module(file)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_is_that_of_a_claim(page: Path) -> None:
    cited = set(re.findall(r"\bC\d+\b", page.read_text(encoding="utf-8")))
    assert cited <= {number for number, *_ in claims()}


def test_the_pages_are_found() -> None:
    doors = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")
    (door,) = (one for one in doors if one.startswith("**Data-protection officer.**"))
    assert "docs/governance/README.md" in door
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"governance/{page.name}" in site
        assert page.name == "README.md" or f"]({page.name})" in index
