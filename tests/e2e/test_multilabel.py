"""Several labels per record, also in long notes: federations, DP-SGD, pipelines and commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from secure_fl import (
    FedAvg,
    Federation,
    FedID,
    FedKD,
    InclusiveFL,
    ModelSettings,
    ProtectionSettings,
    Silo,
    TrainingSettings,
)
from secure_fl.algorithms.probe import Probe
from secure_fl.corpora import make, public
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Example, Text
from secure_fl.data.splits import write
from secure_fl.errors import DataError, SettingsError
from secure_fl.features.evaluation.evaluation import evaluate
from secure_fl.learning.exporting import load_exported
from secure_fl.settings import AdapterSettings, DPSettings, TaskSettings
from tests.support.command_line import ran

TASK = TaskSettings(kind="multilabel", labels=LABELS, max_length=48)
SPLITS = make("codes", parties=3, seed=1, size=48)
CPU = TrainingSettings(device="cpu", batch_size=8)


def silos() -> list[Silo]:
    return [Silo(f"h{k}", s.train, s.dev, s.test) for k, s in enumerate(SPLITS, 1)]


def run(algorithm: Any, task: TaskSettings = TASK, **options: Any) -> Any:
    given: dict[str, Any] = {"model": ModelSettings(layers=1), "training": CPU, "silos": silos()}
    given |= {"protection": ProtectionSettings(mode="none"), "task": task} | options
    return Federation(given.pop("silos"), algorithm, **given).run()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed run whose model transformers can load as it is."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(
        FedAvg(rounds=2), folder=folder, model=ModelSettings(layers=1, pooling="cls"),
        protection=ProtectionSettings(mode="he+secagg"),
    )  # fmt: skip
    return folder


def test_a_pipeline_answers_each_label_with_its_own_probability(trained: Path) -> None:
    config = json.loads((trained / "model" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    text = SPLITS[0].test[0].text  # type: ignore[union-attr]
    ask = transformers.pipeline("text-classification", model=str(trained / "model"), top_k=None)
    said = {one["label"]: one["score"] for one in ask([text])[0]}
    asked = ["predict", str(trained), text, "--json"]
    done = ran(*asked)
    (answer,) = json.loads(done.stdout)["predictions"]
    assert said == pytest.approx(answer["probabilities"], abs=1e-5)
    assert sum(said.values()) != pytest.approx(1, abs=0.01)
    assert set(answer["labels"]) == {name for name, p in said.items() if p > 0.5}
    shown = ran(*asked[:-1])
    assert "labels" in shown.stdout


def test_sealed_scores_are_those_of_all_records(trained: Path) -> None:
    model, tokenizer, task = load_exported(trained / "model")
    records = [record for splits in SPLITS for record in splits.test]
    found = json.loads((trained / "result.json").read_text())["metrics"]["last"]["pooled"]["test"]
    expected = task.evaluate(model, task.encode(records, tokenizer))
    assert found == pytest.approx(expected, abs=1e-5)
    assert {"micro_f1", "macro_f1", "auroc", "precision_at_1", "precision_at_5"} < set(found)
    both = evaluate([trained, trained / "model"], silos(), task=TASK)
    for scores in both.scores.values():
        assert scores["micro_f1"] == pytest.approx(found["micro_f1"], abs=1e-9)
    (differences,) = both.differences.values()
    assert differences.keys() == scores.keys()
    assert all(d["interval"] == [0.0, 0.0] for d in differences.values())


def test_dp_sgd_bounds_a_record_whatever_its_labels() -> None:
    dp = TrainingSettings(device="cpu", batch_size=16, dp=DPSettings(epsilon=8.0))
    document = run(FedAvg(rounds=1), training=dp).document
    assert document["privacy"]["overall_epsilon"] == pytest.approx(8.0, rel=0.02)


def test_fedkd_distils_probabilities_of_labels() -> None:
    result = run(FedKD(rounds=1, student_layers=1), model=ModelSettings(layers=2))
    assert "micro_f1" in result.document["metrics"]["last"]["pooled"]["student/test"]


def test_distillation_of_classes_is_refused_before_anything_is_computed() -> None:
    notes = public("codes", seed=1, size=40)
    every = [Silo(s.name, s.train, s.dev, s.test, public=notes) for s in silos()]
    host = Silo("host", SPLITS[0].train[:16], role="host", public=notes)
    with pytest.raises(SettingsError, match="multilabel has several per record") as caught:
        run(FedID(rounds=1), silos=[*every, host])
    assert caught.value.where["field"] == "task.kind"


def test_a_label_that_one_hospital_has_must_be_declared() -> None:
    own = silos()
    other = Silo("h4", [*SPLITS[0].train[:8], *_with_label("Z99", 2)], test=SPLITS[0].test)
    with pytest.raises(DataError, match="different label sets") as caught:
        run(FedAvg(rounds=1), TaskSettings(kind="multilabel", max_length=48), silos=[*own, other])
    assert "h1 lacks Z99" in str(caught.value) and "task.labels" in str(caught.value)
    with pytest.raises(DataError, match="not one of the task's labels"):
        run(FedAvg(rounds=1), silos=[*own, other])


def _with_label(label: str, count: int) -> list[Any]:
    return [Text(f"z{k}", f"fever and cough {k}", label=(label,)) for k in range(count)]


def test_owners_see_their_labels(tmp_path: Path) -> None:
    write(SPLITS[0].train, file := tmp_path / "notes.jsonl")
    asked = ["data", "describe", str(file), "--task", "multilabel", "--json"]
    done = ran(*asked)
    counts = json.loads(done.stdout)["train"]["labels"]
    assert counts["E11"] == sum("E11" in r.label for r in SPLITS[0].train)  # type: ignore[union-attr, operator]
    assert counts["(no label)"] == sum(r.label == () for r in SPLITS[0].train)  # type: ignore[union-attr]


def test_five_thousand_labels_are_trained_sealed_and_scored(tmp_path: Path) -> None:
    """Most labels have no record anywhere, as in a list of diagnosis codes."""
    labels = (*LABELS, *(f"X{k:04}" for k in range(5000 - len(LABELS))))
    task = TaskSettings(kind="multilabel", labels=labels, max_length=48)
    sealed = ProtectionSettings(mode="he+secagg")
    result = run(FedAvg(rounds=1), task, protection=sealed, folder=tmp_path / "run")
    found = result.document["metrics"]["last"]["pooled"]["test"]
    records = [record for splits in SPLITS for record in splits.test]
    expected = result.evaluate(records)
    assert {n: found[n] for n in expected} == pytest.approx(expected, abs=1e-5)
    assert "auroc" not in found and not any(name.startswith("f1/") for name in found)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The 100 most frequent of 5000 labels" in page and LABELS[0] in page
    assert '<th scope="row">X4000' not in page


# --- long notes in windows ------------------------------------------------------------------------


LONG_SPLITS = make("codes", parties=3, seed=1, size=96)
LONG = TaskSettings(kind="multilabel", labels=LABELS, max_length=24, windows=6)


def long(notes: tuple[Example, ...]) -> Iterator[Text]:
    """Notes of one, two and three remarks' notes, with the codes of all."""
    texts = [note for note in notes if isinstance(note, Text)]
    for at in range(0, len(texts), 3):
        some = texts[at : at + 1 + at // 3 % 3]
        codes = sorted({code for note in some for code in note.label or ()})  # type: ignore[union-attr]
        text = "; ".join(note.text for note in some)
        yield replace(some[0], text=text, label=tuple(codes))


def long_silos() -> list[Silo]:
    return [
        Silo(f"h{k}", tuple(long(s.train)), tuple(long(s.dev)), tuple(long(s.test)))
        for k, s in enumerate(LONG_SPLITS, 1)
    ]


def run_long(algorithm: Any, **options: Any) -> Any:
    return run(algorithm, LONG, silos=long_silos(), **options)


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        (FedKD(rounds=1, student_layers=1), {"layers": 2}),
        (
            FedKD(rounds=1, student_layers=1, teachers="shared", made_up=True),
            {"layers": 2, "adapter": AdapterSettings(rank=3, targets="linear")},
        ),
        (Probe(rounds=1), {"layers": 1}),
        (Probe(fit="logistic", rounds=2), {"layers": 1}),
        (InclusiveFL(rounds=1, tiers={"all": 2}), {"layers": 2}),
    ],
    ids=["fedkd", "shared teachers", "ridge", "logistic", "inclusivefl"],
)
def test_algorithms_train_on_windows(algorithm: Any, model: dict[str, Any]) -> None:
    result = run_long(algorithm, model=ModelSettings(**model))
    scores = result.document["metrics"]["last"]["pooled"]
    assert any("micro_f1" in found for found in scores.values())


def test_sealed_scores_and_predictions_of_long_notes(tmp_path: Path) -> None:
    result = run_long(
        FedAvg(rounds=2), folder=tmp_path / "run", model=ModelSettings(layers=1, pooling="cls"),
        protection=ProtectionSettings(mode="he+secagg"),
    )  # fmt: skip
    model, tokenizer, task = load_exported(tmp_path / "run" / "model")
    assert (task.windows, task.overlap) == (6, None)
    records = [record for silo in long_silos() for record in silo.test]
    expected = task.evaluate(model, task.encode(records, tokenizer))
    found = result.document["metrics"]["last"]["pooled"]["test"]
    assert found == pytest.approx(expected, abs=1e-5)
    text = max((r.text for r in records if isinstance(r, Text)), key=len)
    pieces = task.encode([Text("0", text, label=())], tokenizer).batch([0])
    assert pieces["windows"].tolist() > [1]
    (answer,) = task.predict(model, [Text("0", text)], tokenizer)
    assert set(answer["probabilities"]) == set(LABELS)
    assert "windows of 24 tokens" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_pipeline_answers_one_window_as_the_run_does(tmp_path: Path) -> None:
    run_long(
        FedAvg(rounds=1), folder=tmp_path / "run", model=ModelSettings(layers=1, pooling="cls")
    )
    folder = tmp_path / "run" / "model"
    model, tokenizer, task = load_exported(folder)
    short = "known diabetes; no asthma"
    (answer,) = task.predict(model, [Text("0", short)], tokenizer)
    ask = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    said = {one["label"]: one["score"] for one in ask([short])[0]}
    assert said == pytest.approx(answer["probabilities"], abs=1e-5)


def test_dp_sgd_trains_on_windows_without_taking_records_one_by_one(tmp_path: Path) -> None:
    dp = TrainingSettings(device="cpu", batch_size=16, dp=DPSettings(epsilon=8.0))
    result = run_long(FedAvg(rounds=1), training=dp, folder=tmp_path / "run")
    assert result.document["privacy"]["overall_epsilon"] == pytest.approx(8.0, rel=0.02)
    logs = [file.read_text() for file in (tmp_path / "run").rglob("events.jsonl")]
    assert logs and not any("one by one" in text for text in logs)
