"""Long notes in windows: every way to train, sealed scores, DP-SGD, and an exported folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from secure_fl import (
    FedAvg,
    Federation,
    FedKD,
    InclusiveFL,
    ModelSettings,
    ProtectionSettings,
    Silo,
    TrainingSettings,
)
from secure_fl.algorithms.probe import Probe
from secure_fl.corpora import make
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Example, Text
from secure_fl.learning.exporting import load_exported
from secure_fl.settings import AdapterSettings, DPSettings, TaskSettings

SPLITS = make("codes", parties=3, seed=1, size=96)
TASK = TaskSettings(kind="multilabel", labels=LABELS, max_length=24, windows=6)
CPU = TrainingSettings(device="cpu", batch_size=8)


def long(notes: tuple[Example, ...]) -> Iterator[Text]:
    """Notes of one, two and three remarks' notes, with the codes of all."""
    texts = [note for note in notes if isinstance(note, Text)]
    for at in range(0, len(texts), 3):
        some = texts[at : at + 1 + at // 3 % 3]
        codes = sorted({code for note in some for code in note.label or ()})  # type: ignore[union-attr]
        text = "; ".join(note.text for note in some)
        yield replace(some[0], text=text, label=tuple(codes))


def silos() -> list[Silo]:
    return [
        Silo(f"h{k}", tuple(long(s.train)), tuple(long(s.dev)), tuple(long(s.test)))
        for k, s in enumerate(SPLITS, 1)
    ]


def run(algorithm: Any, task: TaskSettings = TASK, **options: Any) -> Any:
    given: dict[str, Any] = {"model": ModelSettings(layers=1), "training": CPU, "task": task}
    given |= {"protection": ProtectionSettings(mode="none")} | options
    return Federation(silos(), algorithm, **given).run()


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
    result = run(algorithm, model=ModelSettings(**model))
    scores = result.document["metrics"]["last"]["pooled"]
    assert any("micro_f1" in found for found in scores.values())


def test_sealed_scores_and_predictions_of_long_notes(tmp_path: Path) -> None:
    result = run(
        FedAvg(rounds=2), folder=tmp_path / "run", model=ModelSettings(layers=1, pooling="cls"),
        protection=ProtectionSettings(mode="he+secagg"),
    )  # fmt: skip
    model, tokenizer, task = load_exported(tmp_path / "run" / "model")
    assert (task.windows, task.overlap) == (6, None)
    records = [record for silo in silos() for record in silo.test]
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
    run(FedAvg(rounds=1), folder=tmp_path / "run", model=ModelSettings(layers=1, pooling="cls"))
    folder = tmp_path / "run" / "model"
    model, tokenizer, task = load_exported(folder)
    short = "known diabetes; no asthma"
    (answer,) = task.predict(model, [Text("0", short)], tokenizer)
    ask = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    said = {one["label"]: one["score"] for one in ask([short])[0]}
    assert said == pytest.approx(answer["probabilities"], abs=1e-5)


def test_dp_sgd_trains_on_windows_without_taking_records_one_by_one(tmp_path: Path) -> None:
    dp = TrainingSettings(device="cpu", batch_size=16, dp=DPSettings(epsilon=8.0))
    result = run(FedAvg(rounds=1), training=dp, folder=tmp_path / "run")
    assert result.document["privacy"]["overall_epsilon"] == pytest.approx(8.0, rel=0.02)
    logs = [file.read_text() for file in (tmp_path / "run").rglob("events.jsonl")]
    assert logs and not any("one by one" in text for text in logs)
