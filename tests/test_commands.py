"""The commands and programs of the pages run at small sizes."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from secure_fl.cli.main import main
from tests.support.names import ROOT
from tests.support.processes import free_port

SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
START = (
    "docs/installation",
    "docs/coming-from",
    pytest.param("docs/own-data", marks=SLOW),
    pytest.param("README", marks=SLOW),  # tests/test_readme.py runs its program
    pytest.param("docs/quickstart", marks=SLOW),
)
GUIDES = ("algorithms", "audits", "differential-privacy", "evaluation", "statistics")
BLOCK = re.compile(r"^```(\w*)(?: title=\"(.*?)\")?\n(.*?)^```", re.M | re.S)
SMALL = ["--set", "algorithm.rounds=1", "--set", "task.max_length=16"]
FEW = ["--set", "data.size=24"]  # of built-in records
SIZES = {  # options that make a command cheap
    "audit": ["--quick"],
    "demo": ["--rounds", "1", "--no-audit"],
    "train": SMALL,
    "tune": SMALL,
    "pilot": ["--rounds", "1", "--size", "16", "--port", str(free_port())],
}
NOT_RUN = {  # commands that need a network, a release's files, or other machines
    "python3": "pip downloads packages",
    "venv/bin/pip": "pip downloads packages",
    "make": "pip downloads packages",
    "export": "the address of an index",
    "sha256sum": "the files of a release: tests/test_release.py checks and installs one",
    "openssl": "the files of a release: tests/test_release.py checks and installs one",
    "coordinate": "hospitals must join: tests/pilot runs it",
}
COMPLETED = ("study.toml", "scores.toml", "own.toml")  # settings files that may be fragments
HOSPITALS = ("north", "south", "west")
TABLES = {  # a complete settings file for the fragments of guides
    "run": '[run]\nname = "study"\n',
    "task": '[task]\nlabels = ["no-ade", "ade"]\n',
    "data": "".join(
        f'[[data.party]]\nname = "{name}"\ntrain = "{name}/train.csv"\ntest = "{name}/test.csv"\n'
        for name in HOSPITALS
    ),
    "algorithm": '[algorithm]\nname = "fedavg"\nrounds = 1\n',
}


def completed(fragment: str) -> str:
    """Add the tables that a fragment of a settings file lacks."""
    present = tomllib.loads(fragment)
    return fragment + "".join(text for name, text in TABLES.items() if name not in present)


def lines(block: str) -> Iterator[str]:
    """Join continued lines."""
    yield from filter(None, block.replace("\\\n", " ").splitlines())


def run(words: list[str]) -> None:
    """Run a command of this package in this process, with small sizes."""
    sizes = SIZES.get(words[0], [])
    if words[0] in ("train", "tune") and "corpus =" in Path(words[1]).read_text("utf-8"):
        sizes = [*sizes, *FEW]
    if words[0] == "tune" and "--try" not in words:
        sizes = [*sizes, "--try", "training.learning_rate=1e-3,2e-3"]
    done = CliRunner().invoke(main, [*words, *sizes], catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)


def execute(page: Path, *, programs: bool) -> int:
    """Run the blocks of a page in order; return their number."""
    blocks = [found for found in BLOCK.findall(page.read_text("utf-8")) if found[0]]
    for kind, title, code in blocks:
        if kind == "python" and programs:
            exec(compile(code, page.name, "exec"), {"__name__": "page"})  # noqa: S102
        elif kind == "toml" and " " not in title:
            Path(title).write_text(completed(code) if title in COMPLETED else code, "utf-8")
        for line in lines(code) if kind == "bash" else ():
            run_line(shlex.split(line, comments=True))
    return len(blocks)


def run_line(words: list[str]) -> None:
    """Run a line of a block of commands."""
    if words and words[0].endswith("secure-fl"):
        if words[1] not in NOT_RUN:
            run(words[1:])
    elif words and words[0] == "python":
        subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
    else:
        assert not words or words[0] in NOT_RUN, words


@pytest.mark.parametrize("page", START)
def test_start_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert execute(ROOT / f"{page}.md", programs=page != "README")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", GUIDES)
def test_commands_of_guides_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    if page == "audits":  # it compares two audited runs
        run(["audit", "runs/clear"])
    assert execute(ROOT / "docs" / f"{page}.md", programs=False)


def prepare(folder: Path) -> None:
    """Make what guides take for granted: records, settings, a plan, and finished runs."""
    with (ROOT / "examples" / "notes.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        for name in HOSPITALS:
            (folder / name).mkdir()
            for part, size in (("train", 24), ("test", 12)):
                with (folder / name / f"{part}.csv").open("w", encoding="utf-8") as out:
                    csv.writer(out).writerows([header, *islice(rows, size)])
    (folder / "study.toml").write_text(completed(""), encoding="utf-8")
    plan = TABLES["run"] + TABLES["task"] + TABLES["algorithm"]
    (folder / "plan.toml").write_text(f'dataset = "notes"\n{plan}', encoding="utf-8")
    run(["train", "study.toml", "--record", "--out", "runs/first"])
    for copy in ("runs/second", "runs/clear", "models/first", "models/second"):
        shutil.copytree(folder / "runs" / "first", folder / copy)
    shutil.copytree(folder / "runs" / "first" / "model", folder / "models" / "bert")
