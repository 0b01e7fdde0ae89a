"""The tests' own house: what they share stands in tests/support, and folders mirror packages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "benchmarks" / "tests").rglob("*.py")),
]
CROSSING = {  # what no single package promises
    "conformance": "every implementation of an interface, against the same cases",
    "e2e": "whole runs as a user starts them",
    "security": "the promises of the threat model, one file each, and attacks across packages",
    "support": "helpers of several test modules",
    "typing": "misuse that must not type-check",
}


def imported(source: str) -> set[str]:
    """Every module that some source imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def of_tests(module: str) -> bool:
    """Whether this is a module that pytest collects."""
    first, *rest = module.split(".")
    return first in ("tests", "benchmarks") and any(part.startswith("test_") for part in rest)


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("from tests.pilot.test_faults import storm", True),
        ("from tests.pilot import test_faults", True),
        ("import benchmarks.tests.test_scale", True),
        ("def f():\n    from tests.test_errors import x", True),
        ("from tests.support.storms import storm", False),
        ("from secure_fl.data import test_part", False),
    ],
)
def test_the_rule_sees_what_it_must(line: str, refused: bool) -> None:
    assert any(map(of_tests, imported(line))) == refused


def test_no_test_module_is_imported() -> None:
    imports = {file: imported(file.read_text()) for file in MODULES}
    assert not {file for file, names in imports.items() if any(map(of_tests, names))}


def test_tests_of_the_product_need_no_benchmark() -> None:
    needed = set()
    for file in MODULES:
        if file.is_relative_to(ROOT / "tests"):
            needed |= imported(file.read_text())
    assert not {name for name in needed if name.startswith("benchmarks")}


def test_folders_mirror_packages() -> None:
    folders = {
        file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")
    }
    packages = {folder for folder in folders if (ROOT / "secure_fl" / folder).is_dir()}
    assert {str(folder) for folder in folders - packages} <= set(CROSSING)


def test_helpers_stand_in_support_alone() -> None:
    allowed = ("test_", "__init__", "conftest")
    elsewhere = [
        str(file.relative_to(ROOT))
        for file in MODULES
        if not file.name.startswith(allowed) and file.parent != ROOT / "tests" / "support"
    ]
    assert elsewhere == ["tests/typing/misuse.py"]  # read by mypy
