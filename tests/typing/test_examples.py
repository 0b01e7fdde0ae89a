"""What readers copy type-checks: README's ten lines, the examples, and the pages' programs.

By mypy, and by pyright's rules where `basedpyright` is installed (`make types`).
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAM = re.compile(r"^```python(?: title=\"(.*?)\")?\n(.*?)^```", re.M | re.S)
READER = "from secure_fl import Silo\n\nsilos: list[Silo] = []\n"  # what a page takes for granted
PYRIGHT = {
    "include": ["."],
    "extraPaths": [str(ROOT)],
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    # A setting's `name` narrows a word of the class above it. pyright takes that for unsafe unless
    # both say `frozen=True`, and does not see that the sections are frozen by their base.
    "reportIncompatibleVariableOverride": "none",
    "reportMissingImports": "none",  # flwr and torchao are not installed; mypy checks ours
}


def programs() -> dict[str, str]:
    """Whole programs by name; lines that are to be put into a file of ours are none."""
    found = {file.stem: file.read_text("utf-8") for file in (ROOT / "examples").glob("*.py")}
    for page in PAGES:
        told = PROGRAM.findall(page.read_text("utf-8"))
        if page.stem == "walkthroughs":  # one program in parts
            told = [("", "".join(code for _, code in told))] if told else []
        for number, (title, code) in enumerate(told):
            into = ": " in title  # lines for a table of ours
            made = "fedstep import" in code or "engines.bytes" in code or '"ordinal"' in code
            made = made or "Net()" in code
            if not into and not made:  # what a page has just told to make is not there
                needs = READER * ("Federation(silos" in code)
                found[f"{page.stem.replace('-', '_')}_{number}"] = needs + code
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, code in programs().items():
        (folder / f"{name}.py").write_text(code, "utf-8")
    return folder


def test_programs_are_found() -> None:
    found = programs()
    assert {"README_0", "reading_an_audit", "audits_0", "evaluation_1", "models_2"} <= found.keys()
    assert "Federation(hospitals, to_csv" not in "".join(found.values())


def test_mypy_finds_nothing(written: Path) -> None:
    skipped = "".join(
        f"[mypy-{name}.*]\nignore_missing_imports = True\nfollow_imports = skip\n"
        for name in (
            "torch",
            "datasets",
            "transformers",
            "opacus",
            "tenseal",
            "pyarrow",
            "pandas",
            "scipy",
            "sklearn",
            "torchao",
            "flwr",
            "nvflare",
        )
    )
    (written / "mypy.ini").write_text(f"[mypy]\ncheck_untyped_defs = True\n{skipped}")
    files = sorted(str(file) for file in written.glob("*.py"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(written / "mypy.ini")),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "examples")),
            *("--follow-imports=silent", "--scripts-are-modules", *files),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None,
    reason="basedpyright is not installed: `make types` does that, and brings Node, 290 MB",
)
def test_pyright_finds_nothing_and_would_find_misuse(written: Path) -> None:
    (written / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    wrong = 'from secure_fl import FedAvg\n\nFedAvg(rounds="five")\n'
    (written / "wrong.py").write_text(wrong)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson"),
            *("--pythonpath", sys.executable, "--project", str(written)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        (Path(one["file"]).name, one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert [name for name, _ in found] == ["wrong.py"], found
