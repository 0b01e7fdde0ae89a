"""The pages for data-protection officers: claims name tests that exist, numbers lead to claims."""

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
CLAIM = re.compile(r"^\| (C\d+) \|", re.M)


def claims() -> list[str]:
    """List the numbers of all claims."""
    return CLAIM.findall((FOLDER / "claims.md").read_text(encoding="utf-8"))


@cache
def in_module(file: str) -> frozenset[str]:
    """The test functions that stand in a module."""
    path = ROOT / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    functions = (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


def test_every_claim_names_a_test() -> None:
    rows = (FOLDER / "claims.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if CLAIM.match(row) and not TEST.search(row)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    named = TEST.findall(page.read_text(encoding="utf-8"))
    assert [f"{file}::{test}" for file, test in named if test not in in_module(file)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_is_that_of_a_claim(page: Path) -> None:
    cited = set(re.findall(r"\bC\d+\b", page.read_text(encoding="utf-8")))
    assert claims() and cited <= set(claims())
