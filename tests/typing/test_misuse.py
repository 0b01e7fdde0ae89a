"""The type checker refuses misuse of the privacy layer: exactly where `misuse.py` says so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISUSE = Path(__file__).with_name("misuse.py")
MARK = "# expect: error"


def test_misuse_does_not_type_check() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict"),
            *("--config-file", str(ROOT / "pyproject.toml")),
            *("--no-error-summary", "--hide-error-context", "--no-pretty"),
            "--follow-imports=silent",
            str(MISUSE.relative_to(ROOT)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = {int(n) for n in re.findall(r"^[^\n]*misuse\.py:(\d+): error:", done.stdout, re.M)}
    lines = MISUSE.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith(MARK)}
    assert expected and found == expected, done.stdout
