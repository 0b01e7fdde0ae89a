"""Every kind of task, from built-in data to a protected, federated, exported model."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl import FedAvg, Federation, ModelSettings, ProtectionSettings, Silo, TrainingSettings
from secure_fl.corpora import make
from secure_fl.learning.exporting import load_exported
from secure_fl.settings import Kind, TaskSettings

KINDS: dict[str, tuple[Kind, str, tuple[str, ...] | None]] = {
    "ade": ("classification", "accuracy", ("ade", "no-ade")),
    "pairs": ("pair", "accuracy", None),
    "codes": ("multilabel", "micro_f1", None),
    "similarity": ("regression", "pearson", None),
    "ner": ("ner", "f1", None),
    "news": ("ranking", "auc", None),
    "summaries": ("completion", "token_accuracy", None),
}


@pytest.mark.parametrize("corpus", KINDS)
def test_a_protected_run_of_every_kind(corpus: str, tmp_path: Path) -> None:
    kind, metric, labels = KINDS[corpus]
    splits = make(corpus, parties=3, seed=1, size=60, labels="shared")
    silos = [Silo(f"hospital-{i}", s.train, s.dev, s.test) for i, s in enumerate(splits, 1)]
    result = Federation(
        silos,
        FedAvg(rounds=1),
        task=TaskSettings(kind=kind, labels=labels, max_length=48),
        model=ModelSettings(layers=1),
        training=TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu"),
        protection=ProtectionSettings(mode="he+secagg", bits=8),
        folder=tmp_path / "run",
    ).run()
    assert result.document["main_metric"] == metric
    assert set(result.mean("test")) > {metric, "loss"}
    model, tokenizer, task = load_exported(tmp_path / "run" / "model")
    mine, theirs = task.encode(splits[0].test, tokenizer), result.task
    assert task.evaluate(model, mine)["loss"] == pytest.approx(
        theirs.evaluate(result.model, mine)["loss"], abs=1e-5
    )
    assert len(task.predict(model, splits[0].test[:3], tokenizer)) == 3
