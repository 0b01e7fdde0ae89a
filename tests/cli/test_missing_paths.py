"""A path that the user typed and that does not exist ends every command with status 2."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fl.cli.predict import examples_of, lines_of
from secure_fl.data.examples import Text
from secure_fl.display.run_history import LEAD
from secure_fl.errors import DataError
from tests.support.command_line import ran, run
from tests.support.raising import raises
from tests.support.stories import STUDY


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


def test_a_ledger_that_no_run_has_begun_is_named_as_such() -> None:
    assert "no ledger yet" in ran("ledger", "show", "north.sqlite", code=2).stderr


def test_pages_are_listed_by_their_headings() -> None:
    found = run("docs").output
    assert "---" not in found and "SKILL " in found


def test_a_folder_that_is_no_run_has_no_model() -> None:
    found = ran("predict", "runs", "text", code=4)
    assert "no run in this folder" in found.stderr and "--resume" not in found.stderr


def test_a_coordinators_run_is_shown_without_scores() -> None:
    folder = Path("runs/study")
    folder.mkdir()
    (folder / "settings.toml").write_text('[algorithm]\nname = "fedavg"\nrounds = 2\n')
    document = {
        "schema": LEAD, "status": "finished", "run": "study", "algorithm": "fedavg", "rounds": 2,
        "protection": "he+secagg", "bytes": {"north": {"up": 3, "down": 4}}, "seconds": {"run": 1},
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(document))
    shown = ran("runs", "show", folder).stdout
    assert "round 2 of 2" in shown and "coordinator has no scores and no model" in shown
    assert "2/2" in ran("runs", "list", "runs").stdout
    asked = ran("predict", folder, "text", code=4).stderr
    assert "coordinator" in asked and "--resume" not in asked


@pytest.mark.parametrize("command", ["evaluate runs/x --plan s.toml", "stats s.toml --plan s.toml"])
def test_commands_that_cannot_resume_name_what_helps(command: str) -> None:
    """Before anything is read: a crashed or refused one leaves such a folder, too."""
    folder = Path("runs/first")
    (folder / "settings.toml").write_text("")
    Path("s.toml").write_text(STUDY)
    found = ran(*command.split(), "--out", folder, code=4)
    assert "--out" in found.stderr and "secure-fl runs rm runs/first" in found.stderr
    assert "--resume" not in found.stderr


def test_a_second_run_of_the_same_name_is_told_of_out() -> None:
    Path("study.toml").write_text(STUDY)
    folder = Path("runs/study")
    folder.mkdir()
    (folder / "settings.toml").write_text("")
    assert "--out" in ran("train", "study.toml", code=4).stderr


CARD = '{"kind": "classification"}'


@pytest.mark.parametrize(
    ("content", "texts", "what"),
    [
        ("Gr\xf6\xdfe\n".encode("latin-1"), None, "is not UTF-8"),
        ("\ufeffRash.\n\nFever.\n".encode(), ["Rash.", "Fever."], ""),
    ],
)
def test_texts_of_files_and_stdin_are_utf8_with_or_without_a_mark(
    content: bytes, texts: list[str] | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("lines.txt").write_bytes(content)
    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    for file in (Path("lines.txt"), None):
        if texts is None:
            with raises(DataError, what):
                lines_of(file)
        else:
            assert lines_of(file) == texts


def test_an_empty_text_is_not_predicted() -> None:
    (Path("runs/first") / "secure_fl.json").write_text(CARD)
    assert "text 2 is empty" in ran("predict", "runs/first", "Rash.", " ", code=2).stderr


def test_a_file_with_the_columns_of_the_run_is_predicted() -> None:
    settings = '[data]\ncolumns = {text = "Befund", patient = "Fall", label = "Code"}\n'
    Path("runs/first/settings.toml").write_text(settings)
    Path("own.csv").write_text("Befund\nRash.\n", encoding="utf-8")
    Path("other.csv").write_text("text\nRash.\n", encoding="utf-8")
    Path("new.csv").write_text("Note\nRash.\n", encoding="utf-8")
    for file, given in (("own.csv", ()), ("other.csv", ()), ("new.csv", ("text=Note",))):
        (example,) = examples_of(Path(file), "classification", Path("runs/first"), given)
        assert example == Text("0", "Rash.")


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
