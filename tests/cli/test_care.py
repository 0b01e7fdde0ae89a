"""The program's manners: it is quick, suggests words, and a start that fails leaves no trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from secure_fl.cli.main import main
from tests.support.stories import STUDY, written


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("trian",), "'train'"),
        (("predic",), "'predict'"),
        (("doctr",), "'doctor'"),
        (("data", "descibe"), "'describe'"),
        (("settings", "trainin"), "did you mean training?"),
        (("init", "--task", "nerr"), "did you mean ner?"),
        (("init", "--algorithm", "fedavgg"), "did you mean fedavg?"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(arguments: tuple[str, ...], meant: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2 and meant in found.stderr and not found.stdout


LIGHT = """
import sys
from secure_fl.cli.main import main
try:
    main(sys.argv[1:], standalone_mode=False)
except Exception as error:
    print(error)
heavy = {"torch", "transformers", "scipy", "pyarrow", "datasets", "matplotlib"} & set(sys.modules)
print(" ".join(sorted(heavy)) or "none")
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "study"),
        ("init", "other", "--algorithm", "fedid"),
        ("settings",),
        ("settings", "run"),
        ("settings", "fedkd"),
        ("settings", "--markdown"),
        ("runs",),
        ("runs", "show", "nosuch"),
        ("status", "nosuch"),
        ("audit", "nosuch"),
        ("report", "nosuch"),
        ("compare", "nosuch", "neither"),
        ("predict", "nosuch", "a text"),
        ("push", "nosuch", "there"),
        ("docs",),
        ("data", "corpora"),
        ("train", "nosuch.toml"),
        ("train", "syntax.toml"),
        ("tune", "nosuch.toml"),
        ("evaluate", "nosuch", "--plan", "nosuch.toml"),
        ("preflight", "nosuch.toml"),
    ],
)
def test_what_looks_up_loads_nothing_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "syntax.toml").write_text("[algorithm\n")
    command = [sys.executable, "-c", LIGHT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "none", done.stdout


def test_a_start_that_fails_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "run"
    study.write_text(STUDY)
    short = ("--set", "algorithm.rounds=1", "--quiet", "--out", out)
    broken = run("train", study, "--set", "model.name=./nomodel", *short)
    assert broken.exit_code != 0 and not out.exists()
    done = run("train", study, *short)
    assert done.exit_code == 0, done.output
    assert not list(out.glob("parties/*/checkpoints/round-*"))  # it is finished
    again = run("train", study, "--resume", "--json", *short[:2], *short[3:])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads((out / "result.json").read_text())
    kept = run(
        "train", study, "--set", "run.keep_checkpoints=true", *short[:3], "--out", f"{out}-2"
    )
    assert kept.exit_code == 0 and list(Path(f"{out}-2").glob("parties/*/checkpoints/round-*"))


def test_runs_are_removed_but_not_what_is_needed(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two")
    ledger = two / "parties" / "north" / "ledger.sqlite"
    ledger.write_bytes(b"spent")
    rounds = two / "parties" / "north" / "checkpoints" / "round-00001"
    rounds.mkdir(parents=True)
    (rounds.parent / "opened.jsonl").write_text("")
    assert run("runs", "rm", one, "--yes").exit_code == 0 and not one.exists()
    assert run("runs", "rm", two, "--yes").exit_code == 4 and ledger.exists()
    assert run("runs", "rm", two, "--checkpoints", "--yes").exit_code == 0
    assert not rounds.exists() and (rounds.parent / "opened.jsonl").exists()
    assert run("runs", "rm", tmp_path / "none", "--yes").exit_code == 4
