"""Weights in pickles are refused with a sentence, and no code of theirs runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from secure_fl.errors import ModelError
from secure_fl.features.adapters import part
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, TaskSettings
from tests.support.raising import raises
from tests.support.saved_models import save_tiny

TASK = make_task(TaskSettings(labels=("no", "yes")))


class Runs:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("evil", [False, True], ids=["weights", "code"])
def test_weights_in_a_pickle_are_not_loaded(tmp_path: Path, evil: bool) -> None:
    folder, ran = Path(save_tiny(tmp_path / "model")), tmp_path / "ran"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if evil:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(ran), 2))
        with pytest.raises(pickle.UnpicklingError):  # what transformers alone says
            transformers.BertModel.from_pretrained(folder)
    else:
        torch.save(weights, folder / "pytorch_model.bin")
        assert transformers.BertModel.from_pretrained(folder)
    with raises(ModelError, "pytorch_model.bin, a pickle", "save_pretrained", model=str(folder)):
        spec = ModelSettings(name=str(folder))
        load_model(spec, TASK, load_tokenizer(spec), 0)
    assert not ran.exists()
    if evil:
        pickle.loads((folder / "pytorch_model.bin").read_bytes())  # noqa: S301 - the attack
        assert ran.exists()


def test_adapters_in_a_pickle_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Runs(tmp_path / "ran"), 2))
    with raises(ModelError, "no adapter_model.safetensors", model=str(tmp_path)):
        part.read(torch.nn.Linear(1, 1), tmp_path)
    assert not (tmp_path / "ran").exists()
