"""The type checker refuses misuse of the privacy layer: exactly where `misuse.py` says so."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISUSE = Path(__file__).with_name("misuse.py")
MARK = "# expect: error"


def configuration() -> str:
    """The project's own, but for torch: no line of `misuse.py` needs it, and it takes longest."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    skipped = [part["module"] for part in own["overrides"] if "follow_imports" in part]
    return "\n".join(
        [
            "[mypy]",
            f"python_version = {own['python_version']}",
            "strict = True",
            f"enable_error_code = {','.join(own['enable_error_code'])}",
            *(
                f"[mypy-{name}]\nignore_missing_imports = True\nfollow_imports = skip"
                for name in [*itertools.chain(*skipped), "torch.*"]
            ),
        ]
    )


def test_misuse_does_not_type_check(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(configuration())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "mypy.ini")),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "misuse")),  # other options, another cache
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
