"""The figures of `python -m benchmarks house`, counted on a made-up checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import house
from benchmarks.__main__ import main

CORE = '''"""The core."""


class Sums:
    """Of all parties."""

    guard = None

    def add(self, a, b, c, d, e, f, g, h, i) -> None:
        """Add nine."""

    def join(self, a, b, c, d, e, f, g, h, i, *, j) -> None:
        """Whether ten are too many."""
'''
LONG = "def long():\n" + "    pass\n" * 40
FILES = {
    "secure_fl/core.py": CORE,
    "secure_fl/features/__init__.py": "",
    "secure_fl/features/guard/hook.py": "class Sums:\n    guard = 1\n",
    "secure_fl/features/other/hook.py": LONG + "\ndef short():\n" + "    pass\n" * 39,
    "tests/test_core.py": "guard = 1\n" * 3,
    "benchmarks/speed.py": "x = 1\n",
    "docs/pages.py": "x = 1\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> house.Checkout:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "secure_fl" / "untracked.py").write_text("class Sums:\n    guard = 1\n")
    return house.Checkout(tmp_path)


def test_files_are_told_apart(checkout: house.Checkout) -> None:
    assert sorted(checkout.product) == sorted(f for f in FILES if f.startswith("secure_fl/"))
    assert (checkout.lines("tests"), checkout.lines("benchmarks")) == (3, 1)


def test_features_and_the_lines_that_name_them(checkout: house.Checkout) -> None:
    assert house.feature_folders(checkout) == [f"{house.FEATURES}/guard", f"{house.FEATURES}/other"]
    assert house.feature_lines(checkout, "guard") == ["secure_fl/core.py:7: guard = None"]
    assert house.feature_lines(checkout, "questions") == []


def test_functions_and_names(checkout: house.Checkout) -> None:
    (many,) = house.many_parameters(checkout)
    assert many.endswith("join, 10 parameters")
    (long,) = house.long_functions(checkout)
    assert long.endswith("long, 41 lines")
    assert house.repeated_classes(checkout) == [
        "Sums: secure_fl/core.py, secure_fl/features/guard/hook.py"
    ]
    (files,) = house.repeated_files(checkout)
    assert files.startswith("hook.py: ")


def test_docstrings(checkout: house.Checkout) -> None:
    texts = [line.split(": ", 1)[1] for line in house.odd_docstrings(checkout)]
    assert sorted(texts) == ["Of all parties.", "Whether ten are too many."]


def test_imports() -> None:
    graph = {
        "a": frozenset({"b"}),
        "b": frozenset({"c", "e"}),
        "c": frozenset({"a"}),
        "d": frozenset({"e"}),
        "e": frozenset[str](),
    }
    assert house.circles(graph) == ["a, b, c"]
    assert house.one_importer(graph) == ["a", "b", "c"]
    assert house.circles({"d": frozenset({"e"}), "e": frozenset()}) == []


def test_the_command_lists_places() -> None:
    runner = CliRunner()
    done = runner.invoke(main, ["house", "--list", "sum"])
    assert done.exit_code == 0 and "Cohort.sum" in done.output
    done = runner.invoke(main, ["house", "--list", "nothing"])
    assert done.exit_code != 0 and "circles" in done.output
