"""What the README and docs promise: the ten lines run, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_ten_lines_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 1
    statements = [line for line in blocks[0].splitlines() if line and line[0] not in " )]"]
    assert len(statements) <= 10
    done = subprocess.run(
        [sys.executable, "-c", blocks[0]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout and "parties are needed" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
    for path in re.findall(
        r"`((?:secure_fl|crypto|algorithms|cli|tests|benchmarks)/[\w./*-]+)`", text
    ):
        assert list(ROOT.glob(path.rstrip("/"))), path


def test_every_algorithm_is_in_the_table() -> None:
    from secure_fl.algorithms.registry import ALGORITHMS

    text = (ROOT / "README.md").read_text()
    for name in ALGORITHMS:
        assert f"| `{name}` |" in text
