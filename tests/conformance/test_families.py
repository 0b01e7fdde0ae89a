"""The table of docs/models.md, cell by cell: every family works, or is refused with its reason.

FedAvg, what it saves and every refusal are tried always; the other cells are marked slow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from secure_fl import FedAvg, ProtectionSettings, Silo, TaskSettings, TrainingSettings
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.corpora import make
from secure_fl.errors import ModelError
from secure_fl.federation.result import Result
from secure_fl.learning.fetching import quiet
from secure_fl.learning.tasks.heads import AttentiveClassifier
from secure_fl.settings import DPSettings, ModelSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.families import COLUMNS, FAMILIES, PAGE, Family, page, save
from tests.support.raising import raises

TRIED = [column for column in COLUMNS if column not in ("FedAvg", "saved")]
NOTE = "bleeding after warfarin"


@pytest.fixture(autouse=True)
def unheard(code_cache: Path) -> Iterator[None]:
    """Some families say much about texts as short as these."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def run(family: Family, column: str, folder: Path) -> Result:
    """One round among three hospitals, of a tiny checkpoint of this family."""
    dp = DPSettings(epsilon=50, noise_multiplier=1.0, accountant="rdp")
    training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
    options: dict[str, Any] = {
        "silos": silos(size=12),
        "model": save(folder / "checkpoint", family.kind),
        "training": training.model_copy(update={"dp": dp if column == "DP-SGD" else None}),
        "task": TaskSettings(labels=LABELS, max_length=24),
        "protection": ProtectionSettings(mode="none", bits=16, min_cohort=1),
        "folder": folder / "run",
    }
    if column == "NER":
        splits = make("ner", parties=3, seed=1, size=12, labels="shared")
        options["silos"] = [Silo(f"h{i}", s.train, s.dev, s.test) for i, s in enumerate(splits)]
        options["task"] = TaskSettings(kind="ner", max_length=24)
    if column == "completion":
        splits = make("summaries", parties=3, seed=1, size=12)
        options["silos"] = [Silo(f"h{i}", s.train, s.dev, s.test) for i, s in enumerate(splits)]
        options["task"] = TaskSettings(kind="completion", max_length=24)
    algorithms = {
        "FedKD": FedKD(rounds=1, student_layers=2),
        "two networks": FedKD(rounds=1, student_layers=2, tied=False, hidden=family.maps),
        "InclusiveFL": InclusiveFL(rounds=1, tiers={"a": 1, "b": 2, "c": 3}),
        "HeteroFL": HeteroFL(rounds=1),
    }
    return small(algorithms.get(column, FedAvg(rounds=1)), **options).run()


def of(column: str, *, refused: bool) -> list[Any]:
    found = [family for family in FAMILIES if (family.why_not(column) is not None) == refused]
    return [pytest.param(family, column, id=f"{family.kind}-{column}") for family in found]


def speaks(folder: Path, model: Any, tokenizer: Any) -> None:
    """A saved folder answers with the task's labels, as the model does."""
    code = isinstance(model, AttentiveClassifier)  # as whatever is cut; only then there is code
    assert (folder / "attentive_pooling.py").exists() == code
    options: dict[str, Any] = {"trust_remote_code": True} if code else {}
    with quiet():
        auto = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **options)
        ask = transformers.pipeline(
            "text-classification", model=str(folder), device="cpu", **options
        )
    assert tuple(auto.config.id2label.values()) == LABELS
    inputs = tokenizer([NOTE], return_tensors="pt")
    with torch.no_grad():
        ours, theirs = (one.eval()(**inputs).logits for one in (model, auto))
    torch.testing.assert_close(ours, theirs)
    assert ask(NOTE)[0]["label"] == LABELS[int(ours.argmax())]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_fedavg_trains_and_what_it_saves_answers(family: Family, tmp_path: Path) -> None:
    result = run(family, "FedAvg", tmp_path)
    assert 0 < result.mean("test")["loss"] < 10
    speaks(tmp_path / "run" / "model", result.models["model"], result.tokenizers["model"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "column"), [case for column in TRIED for case in of(column, refused=False)]
)
def test_the_cell_works(family: Family, column: str, tmp_path: Path) -> None:
    result = run(family, column, tmp_path)
    assert 0 < result.mean("test")["loss"] < 10
    shared = tmp_path / "run" / ("student" if column == "FedKD" else "model")
    if column == "NER":
        with quiet():
            ask = transformers.pipeline("token-classification", model=str(shared), device="cpu")
        assert {found["entity"] for found in ask(NOTE)} <= {*result.tasks["model"].labels}
    elif column == "completion":
        with quiet():
            ask = transformers.pipeline("text-generation", model=str(shared), device="cpu")
        assert ask(NOTE, max_new_tokens=4)[0]["generated_text"].startswith(NOTE)
    else:
        name = shared.name
        speaks(shared, result.models[name], result.tokenizers[name])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_a_student_beside_its_teacher(family: Family, tmp_path: Path) -> None:
    """FedKD of two networks, as printed."""
    assert 0 < run(family, "two networks", tmp_path).mean("test")["loss"] < 10


@pytest.mark.parametrize(
    ("family", "column"), [case for column in TRIED for case in of(column, refused=True)]
)
def test_a_cell_that_does_not_work_says_why(family: Family, column: str, tmp_path: Path) -> None:
    with raises(ModelError, family.why_not(column)):
        run(family, column, tmp_path)


def test_maps_that_are_missing_are_refused_before_the_first_round(tmp_path: Path) -> None:
    spec = save(tmp_path, "longformer")
    with raises(ModelError, "map of attention", field="algorithm.hidden"):
        small(FedKD(rounds=1, student_layers=2, tied=False), silos=silos(size=12), model=spec).run()


@pytest.mark.parametrize("kind", ["t5", "bart", "gemma3"])
def test_what_has_no_one_stack_of_layers_is_refused(kind: str, tmp_path: Path) -> None:
    save(tmp_path, "bert")
    transformers.AutoConfig.for_model(kind).save_pretrained(tmp_path)
    spec = ModelSettings(name=str(tmp_path))
    with raises(ModelError, "images" if kind == "gemma3" else "encoder and a decoder"):
        small(FedAvg(rounds=1), model=spec).run()


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m tests.support.families"
