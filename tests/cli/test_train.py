"""A run as a user meets it: train, resume, look, predict; and the demo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from secure_fl.cli import show
from secure_fl.runs import checkpoint
from tests.support.command_line import ran, run
from tests.support.stories import STUDY, written


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a settings file, a run together and a run alone."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(STUDY)
    for name, override in (("together", "run.seed=0"), ("alone", "algorithm.name=local")):
        ran("train", folder / "study.toml", "--set", override, "--out", folder / name)
    return folder


def test_training_writes_a_run_and_shows_it(place: Path) -> None:
    scores = place / "scores.csv"
    found = ran("train", place / "study.toml", "--out", place / "shown", "--sink", f"csv={scores}")
    assert "all records,2,test,model,accuracy," in scores.read_text()
    assert "hospital-1" not in scores.read_text()
    for text in ("hospital-1", "hospital-3", "all records", "accuracy", "UNPROTECTED"):
        assert text in found.stdout
    assert "round 2/2" in found.stderr
    result = json.loads((place / "shown" / "result.json").read_text())
    assert result["schema"] == "secure-fl/result/1"
    assert (place / "shown" / "settings.toml").is_file()
    assert (place / "shown" / "model" / "config.json").is_file()


def test_an_unprotected_run_warns_loudly_and_a_protected_one_does_not(place: Path) -> None:
    warned = run("train", place / "study.toml", "--out", place / "w1", "--json")
    assert "UNPROTECTED" in warned.stderr
    protected = ("--set", "protection.mode=he+secagg", "--set", "algorithm.rounds=1")
    calm = ran("train", place / "study.toml", "--out", place / "w2", *protected)
    assert "UNPROTECTED" not in calm.output
    assert "protected by he+secagg, no sum over fewer than 3" in calm.stdout


def test_pooling_all_records_says_so(place: Path) -> None:
    options = ("--set", "algorithm.name=centralized", "--set", "algorithm.rounds=1")
    found = ran("train", place / "study.toml", "--out", place / "pooled", *options)
    assert "ALL RECORDS" in found.stderr
    assert "protected by" not in found.stdout


def test_json_is_the_result_and_nothing_else(place: Path) -> None:
    found = run("train", place / "study.toml", "--out", place / "json", "--json")
    written = json.loads((place / "json" / "result.json").read_text())
    assert json.loads(found.stdout) == written


def test_quiet_prints_the_result_without_progress(place: Path) -> None:
    options = ("--quiet", "--set", "algorithm.name=local")
    found = run("train", place / "study.toml", "--out", place / "quiet", *options)
    assert (found.exit_code, found.stderr) == (0, "")
    assert "test accuracy" in found.stdout and "means" in found.stdout


def test_resuming_with_other_settings_is_refused_with_their_list(place: Path) -> None:
    options = ("--resume", "--set", "algorithm.rounds=9", "--set", "training.batch_size=4")
    found = ran("train", place / "study.toml", "--out", place / "together", *options, code=4)
    assert "algorithm.rounds: 2 -> 9" in found.stderr
    assert "training.batch_size: 8 -> 4" in found.stderr


def test_resuming_nothing_is_refused(place: Path) -> None:
    ran("train", place / "study.toml", "--out", place / "nothing", "--resume", code=2)
    assert not (place / "nothing").exists()


def test_ctrl_c_tells_how_to_go_on_and_that_command_does(place: Path) -> None:
    out = place / "cut short"
    program = [str(Path(sys.executable).with_name("secure-fl")), "train", "study.toml"]
    options = ["--set", "algorithm.rounds=10", "--out", str(out)]
    child = subprocess.Popen(
        [*program, *options],
        cwd=place,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Shells let background jobs ignore Ctrl-C, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 240
    while not list(out.glob("parties/hospital-3/checkpoints/round-*")):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    command = said.strip().splitlines()[-1].strip()
    expected = f"secure-fl train study.toml --set algorithm.rounds=10 --out '{out}' --resume"
    assert command == expected
    again = ran("train", place / "study.toml", *options, "--resume", "--json")
    assert json.loads(again.stdout)["metrics"]["last"]["round"] == 10


# --- looking at runs ---------------------------------------------------------


def test_runs_are_listed_with_their_state(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Path(r["folder"]).name: r for r in json.loads(run("runs", place, "--json").stdout)}
    together = found["together"]
    result = json.loads((place / "together" / "result.json").read_text())
    assert together["status"] == "finished"
    assert together["protection"] == "none"
    assert together["value"] == result["metrics"]["last"]["pooled"]["test"]["accuracy"]
    assert together["bytes"] == sum(p["up"] + p["down"] for p in result["bytes"].values())
    monkeypatch.chdir(place)
    table = run("runs", ".").stdout
    assert "NONE" in table
    assert "together" in table
    monkeypatch.setenv("COLUMNS", "80")
    (line,) = [line for line in run("runs", ".").stdout.splitlines() if "together" in line]
    assert "finished" in line and "accuracy" in line


def test_an_unfinished_run_is_stopped_and_says_how_to_go_on(place: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "half"
    checkpoint.save(run_folder / "parties" / "a" / "checkpoints" / "round-00003", {})
    (run_folder / "settings.toml").write_text('[algorithm]\nname = "fedavg"\nrounds = 9\n')
    found = run("runs", "show", run_folder)
    assert "stopped, round 3 of 9" in found.stdout
    assert "--resume" in found.stdout
    assert json.loads(run("runs", "show", run_folder, "--json").stdout)["round"] == 3


def test_a_stopped_run_tells_its_scores_so_far(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", rounds=6, done=False)
    shown = run("runs", "show", folder).stdout
    assert "test accuracy 0.820 after round 5, over all hospitals" in shown


def test_folders_without_runs_are_said_to_be(tmp_path: Path) -> None:
    assert "no run in" in run("runs", tmp_path).stdout
    assert run("runs", tmp_path / "none").exit_code == 2
    assert run("runs", "show", tmp_path).exit_code == 4


# --- predicting --------------------------------------------------------------


def test_labels_and_probabilities_are_printed(place: Path) -> None:
    found = run("predict", place / "together", "Rash after velodorin.", "Feels well.", "--json")
    answers = json.loads(found.stdout)["predictions"]
    assert len(answers) == 2
    for answer in answers:
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert answer["label"] in answer["probabilities"]
    table = run("predict", place / "together", "Rash [with] :smile: brackets.").stdout
    assert "Rash [with] :smile: brackets." in table  # nothing of a record is taken for markup


def test_texts_come_from_a_file_or_stdin_too(place: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Rash.\n\nFever.\n")
    (tmp_path / "notes.csv").write_text("id,text\n7,Rash.\n8,Fever.\n")
    lines = json.loads(
        run("predict", place / "together", "--file", tmp_path / "notes.txt", "--json").stdout
    )
    table = json.loads(
        run("predict", place / "together", "--file", tmp_path / "notes.csv", "--json").stdout
    )
    piped = json.loads(run("predict", place / "together", "--json", input="Rash.\nFever.\n").stdout)
    assert lines == piped
    assert [a["id"] for a in table["predictions"]] == ["7", "8"]
    assert [a["label"] for a in table["predictions"]] == [a["label"] for a in lines["predictions"]]


def test_a_hospital_s_own_model_goes_by_its_name(place: Path) -> None:
    asked = ran("predict", place / "alone", "Rash.", code=4)
    assert "--party hospital-1 or hospital-2 or hospital-3" in asked.stderr
    found = run("predict", place / "alone", "Rash.", "--party", "hospital-2", "--json")
    assert "hospital-2" in json.loads(found.stdout)["model"]
    assert run("predict", place / "alone", "Rash.", "--party", "nobody").exit_code == 4
    assert run("predict", place / "together", "Rash.", "--party", "hospital-1").exit_code == 4


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("--file", "nowhere.txt"), 2),
        (("a", "b", "--pair", "c"), 2),
        (("a", "--file", "b.txt"), 2),
    ],
)
def test_bad_input_is_not_predicted(place: Path, arguments: tuple[str, ...], status: int) -> None:
    assert run("predict", place / "together", *arguments).exit_code == status
    assert run("predict", place / "nowhere", "a").exit_code == 2


# --- the demo ----------------------------------------------------------------


def test_the_demo_compares_and_leaves_its_runs(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    found = ran("demo", "--seeds", 1, "--rounds", 1, "--no-audit", "--out", out)
    for text in ("alone", "unprotected", "sealed", "hospital-3", "all records", str(out)):
        assert text in found.stdout
    assert found.stdout.rstrip().endswith(str(out / "report.html"))
    summary = json.loads((out / "result.json").read_text())
    assert summary["schema"] == "secure-fl/demo/2"
    assert summary["protection"]["mode"] == "he+secagg"
    folders = [out / "seed-0" / name for name in ("alone", "clear", "sealed", "fedkd")]
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        reached = result["metrics"]["last"]["pooled"]["test"]["accuracy"]
        assert summary[folder.name]["seed"] == [reached]
    for name, other in (("margin", "alone"), ("price", "clear")):
        difference = summary["sealed"]["mean"] - summary[other]["mean"]
        assert summary[name]["mean"] == pytest.approx(difference)
    clear, sealed = ((folder / "settings.toml").read_text().splitlines() for folder in folders[1:3])
    apart = [a.split(" = ")[0] for a, b in zip(clear, sealed, strict=True) if a != b]
    assert set(apart) <= {"name", "mode", "folder"}  # the same algorithm, in the clear and sealed
    page = (out / "report.html").read_text()
    for title in ("each alone", "FedAvg in the clear", "FedAvg sealed", "FedKD sealed"):
        assert title in page
    ran("demo", "--seeds", 1, "--rounds", 1, "--no-audit", "--out", out, code=4)


def test_a_second_shared_model_is_shown_beside_the_first() -> None:
    """FedKD's student and teachers: whoever reads the table sees which is better."""
    scores = {
        "party": {"north": {"dev": {"f1": 0.1}, "test": {"f1": 0.1}}},
        "pooled": {
            f"{model}{split}": {"f1": value}
            for model, value in (("", 0.25), ("student/", 0.75))
            for split in ("dev", "test")
        },
    }
    document = {
        "main_metric": "f1",
        "parties": ["north"],
        "metrics": {"last": scores, "best": scores},
    }
    names, dev, tests = ([row[at] for row in show.result_table(document).rows] for at in (0, 1, 2))
    assert names == ["all records", "all records, student", "north"]
    assert dev == tests == ["0.250", "0.750", "0.100"]


def test_hospitals_are_shown_by_their_own_models_where_a_host_holds_the_runs() -> None:
    def scored(value: float, model: str = "") -> dict[str, dict[str, float]]:
        return {f"{model}dev": {"accuracy": value}, f"{model}test": {"accuracy": value}}

    scores = {
        "party": {"north": scored(0.25, "local/"), "host": scored(0.5)},
        "mean": scored(0.5) | scored(0.25, "local/"),
    }
    document = {
        "main_metric": "accuracy",
        "parties": ["host", "north"],
        "metrics": {"last": scores, "best": scores},
    }
    table = show.result_table(document)
    names, tests = ([row[at] for row in table.rows] for at in (0, 2))
    assert names == ["host's model", "host", "north"]
    assert tests == ["0.500", "0.500", "0.250"]
