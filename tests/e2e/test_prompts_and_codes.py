"""Prompts and several labels, in windows, under the algorithms, adapters and DP-SGD."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
from secure_fl.algorithms.baselines.settings import FedDF, HeteroFL
from secure_fl.algorithms.probe import Probe
from secure_fl.algorithms.settings import FedSGD
from secure_fl.corpora import make, public
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Example, Text
from secure_fl.errors import SettingsError
from secure_fl.learning.exporting import load_exported
from secure_fl.settings import AdapterSettings, DPSettings, TaskSettings
from tests.support.raising import raises

PROMPT = TaskSettings(
    prompt="patient was [MASK] .",
    label_words={"no-ade": "helped", "ade": "harmed"},
    positive="ade",
    max_length=24,
    windows=3,
)
CODES = TaskSettings(kind="multilabel", labels=LABELS, max_length=24, windows=3)
TASKS = {"prompt": (PROMPT, "ade"), "codes": (CODES, "codes")}
LORA = AdapterSettings(rank=2, targets="linear")
ONE, TWO = ModelSettings(layers=1), ModelSettings(layers=2)
LORA_ONE, LORA_TWO = ModelSettings(layers=1, adapter=LORA), ModelSettings(layers=2, adapter=LORA)


def longer(notes: tuple[Example, ...]) -> tuple[Text, ...]:
    """Notes that need several windows, each with the labels of one remark."""
    texts = [note for note in notes if isinstance(note, Text)]
    return tuple(
        replace(note, text=f"{note.text} ; {texts[at - 1].text} ; {note.text}")
        for at, note in enumerate(texts)
    )


def silos(corpus: str, host: bool) -> list[Silo]:
    splits = make(corpus, parties=3, seed=1, size=24)
    notes = longer(tuple(public(corpus, seed=1, size=24))) if host else ()
    every = [
        Silo(f"h{k}", longer(s.train), longer(s.dev), longer(s.test), public=notes)
        for k, s in enumerate(splits, 1)
    ]
    own = longer(splits[0].train[:12])
    return [*every, Silo("host", own, role="host", public=notes)] if host else every


def federation(
    name: str, algorithm: Any, model: ModelSettings = ONE, dp: str = "", **options: Any
) -> Federation:
    """A sealed federation; `dp`: the noise of DP-SGD."""
    task, corpus = TASKS[name]
    noise: Any = DPSettings(epsilon=8.0, noise=dp) if dp else None  # type: ignore[arg-type]
    training = TrainingSettings(device="cpu", batch_size=8, dp=noise)
    host = isinstance(algorithm, FedID | FedDF)
    given: dict[str, Any] = {"model": model, "task": task, "training": training} | options
    protection = ProtectionSettings(mode="he+secagg")
    return Federation(silos(corpus, host), algorithm, protection=protection, **given)


def pair(teachers: Any, **fields: Any) -> FedKD:
    return FedKD(rounds=1, student_layers=1, teachers=teachers, **fields)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("algorithm", "model", "dp"),
    [
        (pair("private"), TWO, ""),
        (pair("shared"), LORA_TWO, ""),
        (pair("personal"), LORA_TWO, ""),
        (pair("private", adaptive="sample"), TWO, "local"),
        (pair("shared", adaptive="sample"), LORA_TWO, "local"),
        (pair("personal", adaptive="sample"), LORA_TWO, "local"),
        (InclusiveFL(rounds=1, tiers={"all": 2}), LORA_TWO, ""),
        (InclusiveFL(rounds=1, tiers={"weak": 2, "strong": 3}), ModelSettings(layers=3), ""),
        (InclusiveFL(rounds=1, tiers={"all": 2}), TWO, "local"),
        (FedAvg(rounds=1), LORA_ONE, ""),
        (FedAvg(rounds=1), LORA_ONE, "local"),
        (FedSGD(rounds=2), LORA_ONE, "shared"),
    ],
    ids=[
        "private", "shared", "personal", "private-dp", "shared-dp", "personal-dp", "inclusive-lora",
        "inclusive-tiers", "inclusive-dp", "lora", "lora-dp", "lora-shared-noise",
    ],
)  # fmt: skip
def test_it_trains_and_its_folder_gives_the_scores_of_the_run(
    name: str, algorithm: Any, model: ModelSettings, dp: str, tmp_path: Path
) -> None:
    result = federation(name, algorithm, model, dp, folder=tmp_path / "run").run()
    scores = result.document["metrics"]["last"]["pooled"]
    if dp:
        assert 0 < result.document["privacy"]["overall_epsilon"] <= 8.0 * 1.02
    shared = [key for key in result.models if "/" not in key]
    records = [record for silo in silos(TASKS[name][1], host=False) for record in silo.test]
    for key in shared:
        loaded, tokenizer, task = load_exported(tmp_path / "run" / key)
        found = task.evaluate(loaded, task.encode(records, tokenizer))
        split = "test" if key == "model" else f"{key}/test"
        assert found[task.metric] == pytest.approx(scores[split][task.metric], abs=1e-5)
    assert shared or len(result.models) % 3 == 0  # each hospital has its own


@pytest.mark.parametrize("dp", ["", "local"])
def test_fedid_distils_prompts_over_windows(dp: str) -> None:
    document = federation("prompt", FedID(rounds=1), ONE, dp).run().document
    assert 0 <= document["metrics"]["last"]["pooled"]["local/test"]["accuracy"] <= 1


@pytest.mark.parametrize(
    ("name", "algorithm", "model", "dp", "field"),
    [
        ("codes", FedID(rounds=1), ONE, "", "task.kind"),
        ("codes", FedDF(rounds=1), ONE, "local", "task.kind"),
        ("codes", FedSGD(rounds=1, student_layers=1), TWO, "", "task.kind"),
        ("prompt", HeteroFL(rounds=1), TWO, "", "task.prompt"),
        ("prompt", Probe(), ONE, "", "task.prompt"),
        ("codes", Probe(), ONE, "local", "training.dp"),
        ("prompt", pair("private"), TWO, "local", "algorithm.adaptive"),
        ("codes", pair("shared", adaptive="sample", made_up=True), LORA_TWO, "local",
         "algorithm.made_up"),
        ("codes", pair("private", adaptive="none", exchange="gradient"), TWO, "local",
         "algorithm.exchange"),
        ("codes", pair("shared"), TWO, "", "model.adapter"),
        ("prompt", FedAvg(rounds=1), LORA_ONE, "shared", "training.dp.noise"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_before_records_are_read(
    name: str, algorithm: Any, model: ModelSettings, dp: str, field: str
) -> None:
    with raises(SettingsError, field=field):
        federation(name, algorithm, model, dp)
