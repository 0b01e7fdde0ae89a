"""A whole pilot as `pilot local` shows it: in 80 columns, with every step that fails named."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fl.cli.processes import PROGRAM
from secure_fl.cli.steps import WIDTH, Steps
from secure_fl.errors import RunError
from tests.support.raising import raises

INIT = "site init {name} --dataset notes --train none.jsonl --made-up --passphrase-file passphrase"


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
    return Steps(tmp_path)


def typed(said: str) -> list[list[str]]:
    """The commands of a story, as a shell would take them."""
    joined = re.sub(r"\\\n\s+", "", said)
    return [shlex.split(row) for row in re.findall(r"^[\w-]+\$ secure-fl (.*)$", joined, re.M)]


def test_what_is_shown_fits_80_columns_and_can_be_typed(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "identity {name} --keys folder-of-keys --card a-card-with-a-longer-name.card.json"
    said = steps.type_at_each(["north", "south"], f"keys {long} --passphrase-file 'pass phrase'")
    steps.type("north", "keys --help", last=2)
    steps.send("north", "south", "a-card-with-a-longer-name.card.json")
    shown = capsys.readouterr().out
    assert all(len(line) <= WIDTH for line in shown.splitlines())
    (first, second) = typed(shown)
    assert first[-1] == "pass phrase" and second == ["keys", "--help"]
    assert "The same at south." in shown and re.search(r"\.\.\. \d+ lines\n.*\n.*\nnorth ->", shown)
    assert "fingerprint" in said[1] and said[0] != said[1]
    assert (steps.folder / "south" / "a-card-with-a-longer-name.card.json").exists()


def test_a_step_that_fails_ends_the_story_with_what_it_said(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    with raises(RunError, reason="unfinished") as failed:
        steps.type_at_each(["north", "south"], INIT)
    shown = capsys.readouterr().out
    assert "no such file" in shown and all(len(line) <= WIDTH for line in shown.splitlines())
    assert "site init north" in str(failed.value) and "status 2" in str(failed.value)


def test_a_process_that_fails_while_others_are_followed_is_named(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    following = steps.start("north", "completion --wrong")
    with raises(RunError, reason="unfinished") as failed:
        steps.follow(following, until="what it never says")
    assert "party north" in str(failed.value) and "status 2" in str(failed.value)
    assert "--wrong" in capsys.readouterr().out
    ends = Steps(steps.folder)
    with raises(RunError, reason="unfinished"):  # it ends well, and has not said it
        ends.follow(ends.start("south", "--version"), until="what it never says")


def local(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "pilot", "local", *options],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_a_story_that_cannot_go_on_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "9")
    failed = local(tmp_path, "--size", "8")
    assert failed.returncode == 4 and "SECURE_FL_SCRYPT_LOG_N is '9'" in failed.stdout
    assert "`secure-fl site init hospital-1" in failed.stderr and "2  The" not in failed.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    done = local(tmp_path, "--size", "24")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(len(line) <= WIDTH for line in done.stdout.splitlines())
    told = [words[:2] for words in typed(done.stdout)]
    order = ["site init", "keys ceremony", "pilot init", "site check", "site approve", "site erase"]
    places = [told.index(command.split()) for command in order]
    assert places == sorted(places)
    assert re.search(r"kill -9 \d+  \(`join` of hospital-2\)", done.stdout)
    for said in ("waits for hospital-2", "finished, round 3 of 3", "approved by anna", "same, "):
        assert said in done.stdout, said
    assert re.search(r"labels: answered; ade \d+, no-ade \d+", done.stdout)
    assert re.search(r"erased study \(asked for by name\)", done.stdout)
    runs = {file.parts[-4] for file in tmp_path.glob("pilot/*/runs/study/model")}
    assert runs == {"hospital-2", "hospital-3"}
