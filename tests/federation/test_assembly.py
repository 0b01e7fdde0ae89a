"""A party and a coordinator are put together in one place each, whoever wants one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("secure_fl", "crypto", "algorithms", "audits", "cli", "benchmarks", "tests", "examples")
TYPES = "tests/typing/misuse.py"  # is type-checked and never run
PARTY, COORDINATOR = "secure_fl/federation/assembly.py", "secure_fl/coordinator/assembly.py"


def made(tree: ast.Module, module: str, name: str) -> Iterator[ast.expr]:
    """Where a class of that module is called, or is what is called by default."""
    imported = (
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    )
    if name not in imported:
        return
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            found = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.arguments):
            found = [*node.defaults, *node.kw_defaults]
        elif isinstance(node, ast.BoolOp):
            found = [*node.values]
        yield from (n for n in found if isinstance(n, ast.Name) and n.id == name)


def makers(module: str, name: str) -> dict[str, int]:
    """How often each file of the tree makes one; its subclasses' own calls do not count."""
    files = {file.resolve() for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    found = {
        file.relative_to(ROOT).as_posix(): len(
            list(made(ast.parse(file.read_text()), module, name))
        )
        for file in files
    }
    return {file: count for file, count in found.items() if count and file != TYPES}


def test_a_party_is_put_together_in_one_place() -> None:
    assert makers("secure_fl.party.session", "Session") == {PARTY: 1}


def test_a_coordinator_is_put_together_in_one_place() -> None:
    assert makers("secure_fl.coordinator.machine", "Coordinator") == {COORDINATOR: 1}


def test_a_second_place_would_be_found() -> None:
    tree = ast.parse("from a.b import Made\ndef other(make=Made):\n    return Made(1)\n")
    assert len(list(made(tree, "a.b", "Made"))) == 2
    assert not list(made(tree, "a.c", "Made"))
