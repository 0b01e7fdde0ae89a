"""A model's card says what its run says, nothing of one hospital alone; a push takes it along."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import transformers
from click.testing import CliRunner

from secure_fl import FedAvg, TrainingSettings
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.cli import show
from secure_fl.cli.main import main
from secure_fl.cli.predict import model_folder
from secure_fl.data.examples import Text
from secure_fl.errors import RunError
from secure_fl.events import metric_name
from secure_fl.features.export.command import publish
from secure_fl.features.export.model_card import TASK, write_card, write_cards
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.fetching import quiet
from secure_fl.settings import DPSettings, ModelSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.families import save
from tests.support.raising import raises

DP = DPSettings(epsilon=50, noise_multiplier=1.0, accountant="rdp")
FAST = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu", dp=DP)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run under DP-SGD, of a checkpoint in a folder."""
    home = tmp_path_factory.mktemp("home")
    model = save(home / "checkpoint", "bert")
    at, records = home / "study", silos(size=16)
    small(FedAvg(rounds=1), "he+secagg", model=model, training=FAST, silos=records, folder=at).run()
    return home / "study"


def sizes() -> dict[str, int]:
    found = silos(size=16)
    return {name: sum(len(getattr(s, name)) for s in found) for name in ("train", "dev", "test")}


def test_the_card_says_what_the_result_says(run: Path) -> None:
    card = (run / "model" / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    assert result["records"] == sizes()
    for split, count in sizes().items():
        assert f"{count} {split}" in card
    for metric, value in result["metrics"]["last"]["pooled"]["test"].items():
        assert f"| {metric_name(metric, result['scored_class'])} | {value:.4f} |" in card
    assert f"ε = {result['privacy']['overall_epsilon']:.2f}" in card
    assert result["protection"]["statement"] in card and "`he+secagg`" in card
    assert "It was not audited." in card
    for file in (run / "settings.toml", run / "result.json", run / "model" / "model.safetensors"):
        assert f"| sha256 of {file.name} | {sha256(file.read_bytes()).hexdigest()} |" in card
    assert "pipeline_tag: text-classification" in card and "- differential-privacy" in card
    assert all(f"`{label}`" in card for label in LABELS)


def test_the_card_s_pipeline_cuts_long_texts_as_the_run_does(run: Path) -> None:
    line = re.search(r"ask = pipeline\((.*)\)", (run / "model" / "README.md").read_text())
    assert line is not None
    given = eval(f"dict(task={line[1]})", {"__builtins__": {"dict": dict}})  # noqa: S307
    model, tokenizer, task = load_exported(run / "model")
    text = "no rash after the dose " * 300
    with quiet():
        (said,) = transformers.pipeline(**given | {"model": str(run / "model")}, device="cpu")(text)
    (answer,) = task.predict(model, [Text("0", text)], tokenizer)
    assert said["score"] == pytest.approx(max(answer["probabilities"].values()), abs=1e-5)


def test_the_scores_are_those_of_the_delivered_round(run: Path, tmp_path: Path) -> None:
    """With `training.patience`, the last rounds are the worse ones, and the best is delivered."""
    copy = shutil.copytree(run, tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    best = result["metrics"]["last"] | {"round": 77, "pooled": {"test": {"accuracy": 0.125}}}
    result["metrics"]["best"], result["model_round"] = best, 77
    (copy / "result.json").write_text(json.dumps(result))
    write_cards(copy)
    card = (copy / "model" / "README.md").read_text()
    assert "| accuracy | 0.1250 |" in card and "after round 77" in card


def test_the_card_of_a_folder_with_code_loads_it_without_running_it(
    run: Path, tmp_path: Path
) -> None:
    """It names digests, and where they have to come from, before it names remote code."""
    here = tmp_path / "study"
    shutil.copytree(run, here)
    model, code = here / "model", b"raise SystemExit\n"
    task = json.loads((model / "secure_fl.json").read_text())
    (model / "secure_fl.json").write_text(json.dumps(task | {"pooling": "attentive"}))
    (model / "attentive_pooling.py").write_bytes(code)
    write_card(here, model)
    card = (model / "README.md").read_text()
    assert "load_exported" in card and "pipeline(" not in card
    assert card.index("run none of it") < card.index("trust_remote_code") < card.index("SHA-256")
    assert f"| sha256 of attentive_pooling.py | {sha256(code).hexdigest()} |" in card


def test_the_card_names_no_path_and_no_hospital(run: Path) -> None:
    card = (run / "model" / "README.md").read_text()
    assert str(run.parent) not in card and "base_model" not in card
    assert "hospital-" not in card


def test_a_hospital_s_own_figures_stay_out_of_the_card(run: Path, tmp_path: Path) -> None:
    """As a pilot's member writes it: its result counts its own records, and pools none."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "secure_fl.json").write_bytes(
        (run / "model" / "secure_fl.json").read_bytes()
    )
    result = json.loads((run / "result.json").read_text())
    own = result["metrics"]["last"]["party"]["hospital-1"]["test"]
    last = result["metrics"]["last"] | {"pooled": {}}
    changed = {"records": None, "roster": "12345 67890", "metrics": {"last": last}}
    (tmp_path / "result.json").write_text(json.dumps(result | changed))
    write_cards(tmp_path)
    card = (tmp_path / "model" / "README.md").read_text()
    assert not any(f"{value:.4f}" in card for value in own.values())
    assert "stays with it" in card and "None over all hospitals' records" in card
    assert "| roster | 12345 67890 |" in card


@pytest.mark.parametrize("role", ["the public", "coordinator"])
def test_an_audit_is_told_with_its_verdict(run: Path, role: str) -> None:
    """Reasons and untested parts name hospitals, and stay in the report."""
    trials = [{"verdict": "holds", "role": "coordinator"}] * 2 + [
        {"verdict": "leaks", "role": role}
    ]
    reasons = ["coordinator: one hospital's update, correlation 1.00 (hospital-2)"]
    audit = {"status": "beyond policy", "trials": trials, "reasons": reasons}
    (run / "audit.json").write_text(json.dumps(audit))
    try:
        write_card(run, run / "model")
    finally:
        (run / "audit.json").unlink()
    card = (run / "model" / "README.md").read_text()
    assert "**beyond policy** (2 holds, 1 leaks). Its report has 1 reason." in card
    assert "hospital-" not in card and "correlation" not in card
    assert ("No attack on the released model" in card) is (role != "the public")
    write_cards(run)


def test_a_student_answers_and_a_teacher_s_card_says_whose_it_is(tmp_path: Path) -> None:
    algorithm, records = FedKD(rounds=1, student_layers=1), silos(size=16)
    made = small(
        algorithm, model=ModelSettings(layers=2), silos=records, folder=tmp_path / "r"
    ).run()
    student, teacher = tmp_path / "r" / "student", tmp_path / "r/parties/hospital-1/model"
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    pooled = result["metrics"]["last"]["pooled"]
    card = (student / "README.md").read_text()
    assert f"| accuracy | {pooled['student/test']['accuracy']:.4f} |" in card
    assert "one hospital's own" not in card
    assert "one hospital's own" in (teacher / "README.md").read_text()
    better = pooled["student/dev"]["accuracy"] >= pooled["dev"]["accuracy"]
    assert result["use"] == ("student" if better else "model")
    assert replace(made, document=result | {"use": "student"}).model is made.models["student"]
    said = show.model_line(result)
    assert said is not None and ("the student" if better else "teacher") in said
    for use in ("student", "model"):  # whichever it is, predict takes it or asks for whose
        (tmp_path / "r" / "result.json").write_text(json.dumps(result | {"use": use}))
        if use == "student":
            assert model_folder(tmp_path / "r", None) == student
        else:
            with raises(RunError, "--party", reason="missing"):
                model_folder(tmp_path / "r", None)
        assert model_folder(tmp_path / "r", "hospital-1") == teacher
    with quiet():
        ask = transformers.pipeline("text-classification", model=str(student), device="cpu")
    assert ask("no complaints")[0]["label"] in LABELS


def test_a_run_that_is_not_finished_has_no_card(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secure_fl.json").write_text("{}")
    with raises(RunError, "finished run", reason="missing"):
        write_card(tmp_path, tmp_path)


# --- pushed ------------------------------------------------------------------


def test_push_into_a_folder_is_whole_and_never_over_another(run: Path, tmp_path: Path) -> None:
    there = tmp_path / "models" / "ade"
    there.parent.mkdir()
    (there.parent / ".ade.new").mkdir()  # what an interrupted push left
    for options, status in (([], 0), ([], 4), (["--replace"], 0)):
        done = CliRunner().invoke(main, ["push", str(run), str(there), *options])
        assert done.exit_code == status, done.output
    assert [path.name for path in there.parent.iterdir()] == ["ade"]
    with raises(RunError, "no model of secure-fl", reason="exists"):
        publish(run / "model", str(tmp_path / "models"), replace=True)
    assert (there / "README.md").read_text() == (run / "model" / "README.md").read_text()
    with quiet():
        ask = transformers.pipeline("text-classification", model=str(there), device="cpu")
    assert ask("no complaints")[0]["label"] in LABELS


def test_push_publishes_no_other_model_than_the_one_that_was_named(
    run: Path, tmp_path: Path
) -> None:
    home, out = tmp_path / "study", tmp_path / "out"
    shutil.copytree(run, home)
    shutil.copytree(run / "model", home / "student")
    for arguments, said in (
        (["--name", "studnet"], "--name model or student"),
        (["--name", "parties/hospital-1/model"], "--name model or student"),
        (["--name", "student", "--party", "hospital-1"], "either --name or --party"),
    ):
        done = CliRunner().invoke(main, ["push", str(home), str(out), *arguments])
        assert done.exit_code != 0 and said in done.output
        assert not out.exists()
    done = CliRunner().invoke(main, ["push", str(home), str(out), "--name", "student"])
    assert done.exit_code == 0 and f"published {home / 'student'}" in done.output.replace("\n", "")


def test_a_refused_target_leaves_the_card_as_it_is(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "study"
    shutil.copytree(run, home)
    (home / "model" / "README.md").write_text("edited")
    done = CliRunner().invoke(main, ["push", str(home), str(tmp_path)])
    assert done.exit_code == 4
    assert (home / "model" / "README.md").read_text() == "edited"


class Refusing(BaseHTTPRequestHandler):
    """A hub that lets nobody in."""

    def do_POST(self) -> None:
        """Say no."""
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def hub() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_hub_that_refuses_is_told_in_a_sentence(
    run: Path, hub: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    url = f"http://127.0.0.1:{hub.server_port}/hospitals/ade"
    with raises(RunError, "rejected", reason="unwritable"):
        publish(run / "model", url)
    assert hub.asked == ["/api/repos/create"]  # type: ignore[attr-defined]


class Hosting(Refusing):
    """A hub with one repository, which answers all questions and takes no file."""

    def do_POST(self) -> None:
        """Say that the repository exists, and that a card is well-formed."""
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path != "/api/repos/create":
            return super().do_POST()
        address = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
        return self._answer(409, {"url": f"{address}/hospitals/ade"})

    def do_GET(self) -> None:
        """Describe the repository."""
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        about = self.server.about  # type: ignore[attr-defined]
        names = [sibling["rfilename"] for sibling in about["siblings"]]
        tree = [{"type": "file", "path": name, "size": 0, "oid": "0"} for name in names]
        self._answer(200, tree if "/tree/" in self.path else about)

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize(
    ("private", "files", "options", "said"),
    [
        (False, [], {}, "is public"),
        (True, [], {"public": True}, "is private"),
        (True, ["README.md"], {"replace": True}, "no model of secure-fl"),
        (True, [TASK, "adapter.bin"], {}, "has a model"),
        (True, [TASK, "adapter.bin"], {"replace": True}, ""),
        (False, [".gitattributes"], {"public": True}, ""),
    ],
)
def test_a_repository_with_other_readers_or_files_is_refused(
    run: Path,
    hub: HTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    private: bool,
    files: list[str],
    options: dict[str, bool],
    said: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    siblings = [{"rfilename": name} for name in files]
    hub.about = {"id": "hospitals/ade", "private": private, "siblings": siblings}  # type: ignore[attr-defined]
    hub.RequestHandlerClass = Hosting
    url = f"http://127.0.0.1:{hub.server_port}/hospitals/ade"
    with raises(RunError, said or "rejected", reason="exists" if said else "unwritable"):
        publish(run / "model", url, **options)
    uploads = [path for path in hub.asked if "preupload" in path]  # type: ignore[attr-defined]
    assert bool(uploads) is not bool(said)


def test_models_do_not_travel_in_clear(run: Path) -> None:
    with raises(RunError, "https", reason="malformed"):
        publish(run / "model", "http://hub.example/hospitals/ade")
