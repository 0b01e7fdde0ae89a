"""Bases in 8 bits: the layers they stand for up to rounding, in a quarter of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from secure_fl import FedAvg, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.errors import SettingsError
from secure_fl.learning import anatomy, exporting, models
from secure_fl.learning.adapter_files import merged
from secure_fl.learning.dp.sound import sound
from secure_fl.learning.quantised import STEPS, Int8Linear, restore
from secure_fl.learning.tasks import make_task
from secure_fl.settings import AdapterSettings, DPSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.families import save
from tests.support.raising import raises

TASK = make_task(TaskSettings(labels=LABELS, max_length=32))
INT8 = AdapterSettings(base="int8", targets="linear", rank=4)


def drawn(kind: Any) -> Any:
    torch.manual_seed(0)
    plain = kind(24, 16)
    nn.init.normal_(plain.bias)
    return plain.requires_grad_(False)


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_it_is_the_plain_layer_up_to_half_a_step(kind: Any) -> None:
    plain = drawn(kind)
    held = Int8Linear(plain)
    axis = 0 if kind is Conv1D else 1
    step = plain.weight.abs().amax(axis, keepdim=True) / STEPS
    assert bool(((held.weight - plain.weight).abs() <= step * 0.5001).all())
    again = held.restored()
    assert type(again) is kind
    x = torch.randn(3, 5, 16 if kind is Conv1D else 24, requires_grad=True)
    torch.testing.assert_close(held(x), again(x))
    slopes = [torch.autograd.grad(layer(x).square().sum(), x)[0] for layer in (held, again)]
    torch.testing.assert_close(*slopes)


def test_what_is_saved_is_a_plain_layer_and_comes_back_as_it_was() -> None:
    held = Int8Linear(drawn(nn.Linear))
    assert set(held.state_dict()) == {"weight", "bias"}
    other = Int8Linear(nn.Linear(24, 16))
    other.load_state_dict(held.state_dict())
    assert torch.equal(other.rounded, held.rounded)
    torch.testing.assert_close(other.scale, held.scale)


def bytes_of(model: nn.Module) -> int:
    layers = anatomy.encoder_layers(model)
    held = [*layers.parameters(), *layers.buffers()]
    return sum(one.numel() * one.element_size() for one in held)


@pytest.mark.parametrize("kind", ["tiny", "gpt2", "modernbert"])
def test_adapters_around_it_train_and_are_saved(kind: str, tmp_path: Path) -> None:
    spec = ModelSettings() if kind == "tiny" else save(tmp_path / "checkpoint", kind)
    spec = spec.model_copy(update={"adapter": INT8})
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, TASK, tokenizer, 0)
    batch = TASK.encode(silos(size=4)[0].train, tokenizer).batch(range(4))
    TASK.loss(TASK.forward(model, batch), batch).backward()
    grads = {name: p.grad for name, p in anatomy.trainable(model).items()}
    assert all(grad is not None for grad in grads.values())
    with torch.no_grad():
        for name, weight in anatomy.trainable(model).items():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    model.eval()
    logits = TASK.forward(model, batch)
    folder = exporting.export(model, tokenizer, tmp_path / "out", TASK)
    again, _, _ = exporting.load_exported(folder)
    whole = merged(model)
    assert not any(isinstance(module, Int8Linear) for module in whole.modules())
    torch.testing.assert_close(TASK.forward(whole, batch), logits, atol=1e-4, rtol=1e-4)
    rounding = (
        0.0 if kind == "tiny" else 0.05
    )  # the adapters name a checkpoint, which is not in 8 bits
    torch.testing.assert_close(TASK.forward(again, batch), logits, atol=1e-4 + rounding, rtol=1e-4)


def test_it_takes_a_third_of_the_memory() -> None:
    tokenizer = models.load_tokenizer(ModelSettings())
    spec = ModelSettings(adapter=INT8.model_copy(update={"rank": 1}))
    small_, plain = (models.load_model(one, TASK, tokenizer, 0) for one in (spec, ModelSettings()))
    assert bytes_of(small_) < 0.36 * bytes_of(plain)
    restore(small_)
    assert bytes_of(small_) > 0.9 * bytes_of(plain)


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
def test_gradients_per_record_hold_around_it(clipping: Any) -> None:
    tokenizer = models.load_tokenizer(ModelSettings())
    model = models.load_model(ModelSettings(layers=1, adapter=INT8), TASK, tokenizer, 0).train()
    batch = TASK.encode(silos(size=2)[0].train, tokenizer).batch([0, 1])

    def loss(module: Any, batch: Any) -> torch.Tensor:
        return TASK.loss(TASK.forward(module, batch), batch, reduction="none")

    assert sound(model, loss, batch, clipping) == clipping


@pytest.mark.parametrize("kind", ["exact", "dora"])
def test_what_needs_the_weights_themselves_is_refused(kind: Any) -> None:
    with raises(SettingsError, kind):
        AdapterSettings(kind=kind, base="int8")


@pytest.mark.parametrize(
    "dp", [None, DPSettings(epsilon=50, noise_multiplier=1.0, accountant="rdp")]
)
def test_hospitals_train_around_it_sealed(dp: Any) -> None:
    training = TrainingSettings(learning_rate=1e-2, batch_size=16, device="cpu", dp=dp)
    model = ModelSettings(layers=1, adapter=INT8)
    result = small(FedAvg(rounds=1), "he+secagg", model=model, training=training).run()
    assert 0 < result.mean("test")["loss"] < 2
