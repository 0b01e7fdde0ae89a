"""A path that the user typed and that does not exist ends every command with status 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ran, run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECURE_FL_PASSPHRASE", "a long passphrase of words")
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    Path("runs/first").mkdir(parents=True)
    Path("train.csv").write_text("text,label\nrash,ade\n", encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [
        "runs lst", "runs show runs/frist", "runs rm runs/frist --yes", "report runs/frist",
        "predict runs/frist text", "audit runs/frist", "compare runs/frist runs/frist",
        "status runs/frist", "train frist.toml", "ledger show frist.sqlite",
    ],
)  # fmt: skip
def test_a_missing_path_is_a_wrong_command_line(command: str) -> None:
    found = ran(*command.split(), code=2)
    if "runs/frist" in command:
        assert "did you mean runs/first?" in found.stderr


def test_a_missing_kit_and_a_second_init_are_wrong_command_lines() -> None:
    ran("site", "init", "north", "--dataset", "notes", "--train", "train.csv")
    Path("north.kit").write_bytes(b"")
    found = ran("site", "check", "site.toml", "--kit", "nroth.kit", code=2)
    assert "did you mean north.kit?" in found.stderr
    assert run("init", "pilot").exit_code == 0
    again = ran("init", "pilot", code=2)
    assert "--force" in again.stderr


def test_a_page_that_does_not_exist_gets_a_suggestion() -> None:
    found = ran("docs", "pilots", code=2)
    assert "did you mean pilot?" in found.stderr
    assert "\n  pilot " in run("docs").output


def test_nothing_to_predict_is_reported_before_torch_is_loaded() -> None:
    model = Path("runs/first/model")
    model.mkdir()
    (model / "secure_fl.json").write_text('{"kind": "classification"}', encoding="utf-8")
    code = (
        "import sys; from secure_fl.cli.main import main\n"
        "try: main(['predict', 'runs/first'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.stdout.strip() == "2 False" and "there is no input" in done.stderr
