"""The lists of docs/architecture.md can be followed: the code of their steps runs."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.names import MAPPED, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLLOW = """
import json, sys, traceback
for title, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, {})
        print(title)
    except Exception:
        traceback.print_exc()
"""
LISTS = ("Add an algorithm", "Add an attack", "Add an engine", "Add a task")


def blocks(title: str) -> list[tuple[str, str]]:
    """The code of a list: what each block is for, and the block."""
    part = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r'```python(?: title="([^"]*)")?\n(.*?)```', part, re.S)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to which steps 1 and 2 of all lists were done."""
    place = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "secure_fl", place / "secure_fl")  # with bytecode, where there is some
    for title in LISTS:
        for target, code in blocks(title):
            path, _, table = target.partition(": ")
            inside = "secure_fl/" if path.split("/")[0] in MAPPED else ""
            if table:
                enter(place / f"{inside}{path}", table, code)
            elif path:
                (place / f"{inside}{path}").write_text(code, encoding="utf-8")
    return place


def enter(file: Path, table: str, code: str) -> None:
    """Put imports at the top, and the rest at the end of what is assigned to this name."""
    lines = code.splitlines(keepends=True)
    imports = "".join(line for line in lines if line.startswith("from "))
    entries = "".join(line for line in lines if not line.startswith("from "))
    text = file.read_text(encoding="utf-8")
    (value,) = [
        statement.value
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and ast.unparse(statement).startswith((f"{table} =", f"{table}:"))
    ]
    assert value is not None
    rows = text.encode().splitlines(keepends=True)
    end = sum(map(len, rows[: (value.end_lineno or 0) - 1])) + (value.end_col_offset or 0) - 1
    before, after = text.encode()[:end].decode().rstrip(), text.encode()[end:].decode()
    text = f"{before}{'' if before.endswith(',') else ','}\n{entries}{after}"
    top = "from __future__ import annotations\n"
    assert top in text
    file.write_text(text.replace(top, top + imports), encoding="utf-8")


@pytest.fixture(scope="module")
def followed(extended: Path) -> subprocess.CompletedProcess[str]:
    """The third steps, one after the other in one process."""
    steps = {title: code for title in LISTS for target, code in blocks(title) if not target}
    return subprocess.run(
        [sys.executable, "-c", FOLLOW, json.dumps(steps)],
        cwd=extended,
        env={**os.environ, "PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("title", LISTS)
def test_a_list_can_be_followed(title: str, followed: subprocess.CompletedProcess[str]) -> None:
    assert title in followed.stdout.splitlines(), followed.stderr
