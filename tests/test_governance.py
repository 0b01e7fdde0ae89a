"""The trust pages: promises and claims have tests, and all numbers and anchors exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted((DOCS / "governance").glob("*.md")), DOCS / "threat-model.md"]
ROW = re.compile(r"^\| ([CP]\d+) \|", re.M)
TEST = re.compile(r"^([CP]\d+) (tests/[\w/]+\.py)::(\w+)$", re.M)


def text(page: str) -> str:
    """Read a page of the documentation."""
    return (DOCS / page).read_text(encoding="utf-8")


def numbers(page: str) -> list[str]:
    """List the numbers in the first column of a page's tables."""
    return ROW.findall(text(page))


@cache
def functions_in(file: str) -> frozenset[str]:
    """Collect the test functions of a module."""
    path = ROOT / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    functions = (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


def test_every_promise_and_claim_has_a_test_that_exists() -> None:
    listed = TEST.findall(text("governance/claims.md"))
    assert [f"{file}::{test}" for _, file, test in listed if test not in functions_in(file)] == []
    stated = [*numbers("threat-model.md"), *numbers("governance/claims.md")]
    assert len(stated) == len(set(stated)) > 20
    assert {number for number, *_ in listed} == set(stated)


def test_every_promise_names_its_test_and_its_proof() -> None:
    rows = [row for row in text("threat-model.md").splitlines() if ROW.match(row)]
    assert rows
    for row in rows:
        _, _, test, why = row.strip("| ").split(" | ")
        assert re.fullmatch(r"`tests/[\w/]+\.py`", test) and functions_in(test.strip("`")), row
        assert re.fullmatch(r"\[[^]]+\]\([\w-]+\.md(#[\w-]+)?\)", why), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cited_numbers_exist(page: Path) -> None:
    cited = set(re.findall(r"\b[CP]\d+\b", page.read_text(encoding="utf-8")))
    known = {*numbers("threat-model.md"), *numbers("governance/claims.md")}
    assert cited <= known


def headings(page: Path) -> set[str]:
    """Compute the anchors of a page's headings, as the site makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    plain = [re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in found]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}
