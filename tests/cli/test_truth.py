"""Printed scores name the class of an F1, and a model that has not learned is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

from secure_fl.cli.train import custom_code
from secure_fl.events import Scored
from tests.support.command_line import ran, run

STUDY = """\
[run]
name = "study"
[task]
max_length = 16
labels = ["ade", "no-ade"]
{positive}
[data]
source = "notes.csv"
parties = 3
[model]
layers = 1
[training]
learning_rate = 1e-9
device = "cpu"
[protection]
mode = "none"
[algorithm]
name = "fedavg"
rounds = 1
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"note {n} of a patient,{'ade' if n % 3 == 0 else 'no-ade'}" for n in range(120)]
    Path("notes.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    return tmp_path


def train(positive: str) -> Result:
    Path("study.toml").write_text(STUDY.format(positive=positive), encoding="utf-8")
    return ran("train", "study.toml")


def test_reversed_labels_are_named_before_training(study: Path) -> None:
    found = train("")
    assert "precision, recall and F1 are scores of 'no-ade'" in found.stderr
    assert 'set task.positive = "ade"' in found.stderr


def test_the_table_the_card_and_the_log_name_the_class(study: Path) -> None:
    found = train('positive = "ade"')
    assert "scores of" not in found.stderr
    assert "dev f1 (ade)" in found.stderr  # the line of a round
    assert "test f1 (ade)" in found.stdout and "The model has not learned" in found.stdout
    card = Path("runs/study/model/README.md").read_text(encoding="utf-8")
    assert "| precision (ade) |" in card and "**The model has not learned" in card
    listed = run("runs").output
    assert "f1 (ade)" in listed
    shown = run("runs", "show", "runs/study").output
    assert "test f1 (ade)" in shown and "The model has not learned" in shown
    compared = run("compare", "runs/study", "runs/study").output
    assert "(ade)" in compared


def test_a_line_of_the_log_names_the_class_of_each_such_score() -> None:
    values = {"accuracy": 0.9, "f1": 0.5, "macro_f1": 0.7}
    said = Scored(round=1, split="dev", values=values, scored_class="no-ade").sentence()
    assert said == "round 1, dev: accuracy 0.900, f1 (no-ade) 0.500, macro_f1 0.700"


def test_a_head_of_our_code_is_named_because_a_pipeline_must_trust_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text('{"architectures": ["BertForSequenceClassification"]}', encoding="utf-8")
    assert custom_code(tmp_path) is None
    config.write_text('{"auto_map": {"AutoModel": "attentive_pooling.X"}}', encoding="utf-8")
    assert custom_code(tmp_path) == tmp_path / "model"
