"""What `export` writes stands alone: others load it without us; nothing is loaded by mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.errors import ModelError
from secure_fl.learning import exporting, models
from secure_fl.learning.anatomy import body_of
from secure_fl.learning.tasks import Task, make_task
from secure_fl.settings import AdapterSettings, ModelSettings, TaskSettings
from tests.support.families import save

TASK = make_task(TaskSettings(labels=("a", "b", "c")))
TEXT = "fever and cough"
ASK = """
import json, sys, transformers
folder = sys.argv[1]
ask = transformers.pipeline("text-classification", model=folder, trust_remote_code=True)
said = {one["label"]: one["score"] for one in ask([sys.argv[2]], top_k=None)[0]}
print(json.dumps({"said": said, "ours": "secure_fl" in sys.modules}))
"""


def attentive(folder: Path, spec: ModelSettings, task: Task = TASK) -> tuple[Any, Any]:
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, task, tokenizer, 4, pooling="attentive")
    exporting.export(model, tokenizer, folder, task)
    return model, tokenizer


def elsewhere(folder: Path, cache: Path) -> Any:
    """What another program says that knows nothing of us."""
    home = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | home
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(folder), TEXT],
        cwd=cache, env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def test_attentive_pooling_answers_in_a_pipeline_without_us(tmp_path: Path) -> None:
    model, tokenizer = attentive(tmp_path / "out", ModelSettings())
    inputs = tokenizer([TEXT], return_tensors="pt")
    with torch.no_grad():
        chances = model(**inputs).logits[0].softmax(-1).tolist()
    told = elsewhere(tmp_path / "out", tmp_path)
    assert not told["ours"]
    assert told["said"] == pytest.approx(dict(zip(TASK.labels, chances, strict=True)), abs=1e-5)


@pytest.mark.parametrize("kind", ["deberta-v2", "modernbert", "gpt2"])
def test_attentive_pooling_over_other_families(kind: str, tmp_path: Path) -> None:
    spec = save(tmp_path / "checkpoint", kind).model_copy(update={"layers": 2})
    model, _ = attentive(tmp_path / "out", spec)
    again, _, task = exporting.load_exported(tmp_path / "out")
    assert task == TASK
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    config = (tmp_path / "out" / "config.json").read_text()
    assert str(tmp_path) not in config


def test_a_damaged_attentive_folder_is_refused(tmp_path: Path) -> None:
    _, tokenizer = attentive(tmp_path, ModelSettings())
    (tmp_path / exporting.WEIGHTS).write_bytes(b"nothing")
    with pytest.raises(ModelError, match="complete exported model"):
        exporting.load_exported(tmp_path)
    with pytest.raises(ModelError):  # by a new run, too
        models.load_model(ModelSettings(name=str(tmp_path)), TASK, tokenizer, 0)


@pytest.mark.parametrize("kind", ["tiny", "distilbert", "gpt2"])
def test_a_new_run_goes_on_from_a_folder_with_attentive_pooling(kind: str, tmp_path: Path) -> None:
    spec = ModelSettings() if kind == "tiny" else save(tmp_path / "checkpoint", kind)
    model, tokenizer = attentive(tmp_path / "out", spec)
    folder = ModelSettings(name=str(tmp_path / "out"))
    again = models.load_model(folder, TASK, models.load_tokenizer(folder), 9)
    inputs = tokenizer([TEXT], return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)
    assert "backbone" in dict(again.named_children())  # pooled attentively, without being asked
    other = make_task(TaskSettings(labels=("a", "b")))
    moved: Any = models.load_model(folder, other, tokenizer, 9)
    assert moved.classifier.weight.shape[0] == 2
    torch.testing.assert_close(moved.pooling.query.weight, model.pooling.query.weight)
    cut = folder.model_copy(update={"layers": 1})
    short: Any = models.load_model(cut, TASK, tokenizer, 9, pooling="attentive")
    plain = models.load_model(cut, TASK, tokenizer, 9, pooling="cls")
    kept = dict(short.backbone.named_parameters())
    assert 0 < len(kept) < len(dict(model.backbone.named_parameters()))
    bodies = dict(body_of(plain).named_parameters())
    for name, weight in model.backbone.named_parameters():
        assert name not in kept or torch.equal(kept[name], weight)
        assert name not in bodies or torch.equal(bodies[name], weight)


@pytest.mark.parametrize("adapter", [None, AdapterSettings(rank=2, last=1)])
def test_means_of_the_last_layers_are_saved(
    adapter: AdapterSettings | None, tmp_path: Path
) -> None:
    spec = ModelSettings(layers=2, pooling="mean", adapter=adapter)
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, TASK, tokenizer, 4)
    head = {n for n, w in model.named_parameters() if w.requires_grad and "backbone" not in n}
    assert head == {"classifier.weight", "classifier.bias"}
    exporting.export(model, tokenizer, tmp_path / "model", TASK)
    again, _, _ = exporting.load_exported(tmp_path / "model")
    batch = tokenizer(["a note", "another one"], padding=True, return_tensors="pt")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, model.eval()(**inputs).logits)
