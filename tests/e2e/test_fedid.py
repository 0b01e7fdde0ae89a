"""FedID from a settings file to exported models, and what a central model learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config import load as config
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.models import load_model
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import HOST, LABELS, hosted
from tests.support.hands import NAMES
from tests.support.private import notes
from tests.support.sampling import mostly_slow

SLOW = pytest.mark.slow
HOSTED = ("fedid", "dsfl", "mhat", "gong", "feded", "feddf")
FILE = """
[data]
corpus = "ade"
parties = 4
size = 16
public = 24
labelled = 16

[task]
kind = "classification"
max_length = 32

[model]
layers = 1

[training]
learning_rate = 2e-3
batch_size = 8
device = "cpu"

[protection]
mode = "he+secagg"

[algorithm]
name = "fedid"
rounds = 2
{settings}
"""


def ran(folder: Path, settings: str = "") -> Result:
    text = FILE.format(settings=settings)
    return Federation.of(config.loads(text), folder=folder).run()


@pytest.mark.parametrize(
    "settings",
    [
        "",
        pytest.param('feedback = "exact"\nhost_learning_rate = 0.1', marks=SLOW),
        'targets = "hard"\ncounted = "parties"\nsample = 0.5',
    ],
)
def test_from_a_settings_file_to_models_that_others_can_load(settings: str, tmp_path: Path) -> None:
    result = ran(tmp_path, settings)
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["status"] == "finished" and document["algorithm"] == "fedid"
    assert len(document["parties"]) == 5 and document["protection"]["parties"] == 4
    histories = {(h["party"], h.get("model", "")) for h in document["history"]}
    assert histories >= {(HOST, ""), (NAMES[0], "local")}
    model, _, task = load_exported(tmp_path / "model")
    assert task.labels == LABELS
    for name, weight in result.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert all((tmp_path / "parties" / name / "local").exists() for name in NAMES)
    assert not (tmp_path / "parties" / HOST / "local").exists()
    sums = [
        json.loads(line)
        for line in (tmp_path / "parties" / NAMES[0] / "transcript.jsonl").read_text().splitlines()
    ]
    to_host = [c for c in sums if c["kind"] == "SumInput" and c["audience"] == "host"]
    assert len([c for c in to_host if c["direction"] == "out"]) == 2


# --- what it learns -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [pytest.param("none", marks=SLOW), "he+secagg"])
@pytest.mark.parametrize("name", mostly_slow(HOSTED, "fedid", "feddf"))
def test_a_central_model_without_labels_learns_what_the_parties_know(name: str, mode: Any) -> None:
    """Two phrases to tell apart, each in half of the records: guessing is right in half."""
    made: Any = ALGORITHMS[name].settings
    rounds = {} if name == "gong" else {"rounds": 2}
    cfg = made(epochs=8, distill_epochs=8, labelled=False, **rounds)
    public = notes(40, "public")
    silos = [Silo(n, notes(20, n), public=public) for n in NAMES]
    host = Silo(HOST, notes(8, HOST), notes(20, "dev"), role="host", public=public)
    task = TaskSettings(labels=("no", "yes"), max_length=16)
    training = TrainingSettings(learning_rate=3e-3, batch_size=8, device="cpu")
    result = hosted(cfg, mode, silos=[*silos, host], task=task, training=training).run()
    scores = [h for h in result.document["history"] if h["party"] == HOST and h["split"] == "dev"]
    assert scores[-1]["accuracy"] == 1.0
    assert scores[0]["round"] == 1 and untaught(host, task) == 0.5


def untaught(host: Silo, task: TaskSettings) -> float:
    """How a fresh model does on the host's dev records."""
    made = make_task(task)
    tokenizer = tiny_tokenizer()
    model = load_model(ModelSettings(layers=1), made, tokenizer, 0)
    return made.evaluate(model, made.encode(host.dev, tokenizer))["accuracy"]
