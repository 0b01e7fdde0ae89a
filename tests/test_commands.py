"""The commands and programs of the pages run: README and the Start pages in full, others parse."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from secure_fl.cli.main import main
from tests.support.command_line import parse
from tests.support.names import ROOT
from tests.support.processes import free_port

SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]
START = (
    "docs/installation",
    "docs/coming-from",
    pytest.param("docs/own-data", marks=SLOW),
    pytest.param("README", marks=SLOW),  # tests/test_readme.py runs its program
    pytest.param("docs/quickstart", marks=SLOW),
)
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)(?: title=\"(.*?)\")?\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(r"^(?:[\w.-]+\$ )?(?:venv/bin/)?secure-fl (.*)$", re.M)
SMALL = ["--set", "algorithm.rounds=1", "--set", "task.max_length=16"]
FEW = ["--set", "data.size=24"]  # of the built-in records that `init` names
SIZES = {  # options that make a command cheap
    "demo": ["--rounds", "1", "--no-audit"],
    "train": SMALL,
    "tune": [*SMALL, "--try", "training.learning_rate=1e-3,2e-3"],
    "pilot": ["--rounds", "1", "--size", "16", "--port", str(free_port())],
}
NOT_RUN = {  # commands that need a network, or the files of a release
    "python3": "pip downloads packages",
    "venv/bin/pip": "pip downloads packages",
    "make": "pip downloads packages",
    "export": "the address of an index",
    "sha256sum": "the files of a release: tests/test_release.py checks and installs one",
    "openssl": "the files of a release: tests/test_release.py checks and installs one",
}


def lines(block: str) -> Iterator[str]:
    """Join continued lines."""
    yield from filter(None, block.replace("\\\n", " ").splitlines())


def run(words: list[str]) -> None:
    """Run a command of this package in this process, with small sizes."""
    sizes = SIZES.get(words[0], [])
    if words[0] in ("train", "tune") and "my-study/federation.toml" in words:
        sizes = [*sizes, *FEW]
    done = CliRunner().invoke(main, [*words, *sizes], catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)


def execute(page: Path, folder: Path) -> int:
    """Run all blocks of a page in order; return their number."""
    blocks = [found for found in BLOCK.findall(page.read_text("utf-8")) if found[0]]
    for kind, title, code in blocks:
        if kind == "python" and page.stem != "README":
            exec(compile(code, page.name, "exec"), {"__name__": "page"})  # noqa: S102
        elif kind == "toml" and " " not in title:
            (folder / title).write_text(code, encoding="utf-8")
        for line in lines(code) if kind == "bash" else ():
            words = shlex.split(line, comments=True)
            if words and words[0].endswith("secure-fl"):
                run(words[1:])
            elif words and words[0] == "python":
                subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
            else:
                assert not words or words[0] in NOT_RUN, line
    return len(blocks)


@pytest.mark.parametrize("page", START)
def test_commands_and_programs_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert execute(ROOT / f"{page}.md", tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_have_these_options(page: Path) -> None:
    """Each command line names commands, options and arguments that exist."""
    for _, _, code in BLOCK.findall(page.read_text("utf-8")):
        for typed in COMMAND.findall(code.replace("\\\n", " ")):
            words = shlex.split(typed.replace("...", ""), comments=True)
            parse([word for word in words if word != "&"])
