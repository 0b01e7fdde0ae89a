"""docs/troubleshooting.md quotes messages of the program, its codes and its exit statuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from secure_fl import errors
from secure_fl.cli.main import STATUSES
from secure_fl.policy.violations import PolicyRefusal

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
VALUE = "\0"  # a value in an f-string


@cache
def texts() -> tuple[str, ...]:
    """All strings of the program; an f-string has VALUE for each of its values."""
    folders = ("secure_fl", "cli", "crypto", "algorithms", "audits")
    trees = [ast.parse(f.read_text()) for folder in folders for f in (ROOT / folder).rglob("*.py")]
    return tuple(text for tree in trees for node in ast.walk(tree) for text in strings(node))


def strings(node: ast.AST) -> Iterator[str]:
    """The text of a string or an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):
        parts = node.values
        yield "".join(str(p.value) if isinstance(p, ast.Constant) else VALUE for p in parts)


def occurs(message: str) -> bool:
    """True if a string of the program begins with this message; "..." stands for anything."""
    parts = [re.escape(part) for part in message.removesuffix("...").strip().split("...")]
    pattern = re.compile(".+".join(parts), re.S)
    return any(map(pattern.match, texts()))


def table(heading: str) -> list[str]:
    """The first cells of all tables below a heading."""
    part = re.split(r"^## ", PAGE[PAGE.index(f"## {heading}") + 3 :], flags=re.M)[0]
    return [row.split(" | ")[0].removeprefix("| ") for row in part.splitlines() if row[:2] == "| "]


def quoted() -> list[str]:
    """The messages in the first column of the tables."""
    before = PAGE[: PAGE.index("## Codes at the coordinator")]
    return re.findall(r"^\| `(.+?)` \|", before, re.M)


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_one_of_the_program(message: str) -> None:
    assert occurs(message)


def test_another_message_is_found_to_be_missing() -> None:
    assert len(quoted()) >= 25
    assert not occurs("nothing listens on ...: the coordinator has left")


def test_codes_and_statuses_are_those_of_the_program() -> None:
    classes = [PolicyRefusal, *vars(errors).values()]
    known = {one.code for one in classes if hasattr(one, "code")}
    codes = re.findall(r"`(\w+)`", " ".join(table("Codes at the coordinator")))
    assert len(codes) >= 9 and set(codes) <= known
    statuses = [cell for cell in table("Exit statuses") if cell.isdecimal()]
    assert statuses == [str(status) for status in STATUSES]
