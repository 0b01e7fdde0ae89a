"""Less padding, and fewer activations in memory: the same records, and the same gradients."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from secure_fl import FedAvg, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.corpora import make
from secure_fl.data.examples import Text
from secure_fl.errors import ModelError, SettingsError
from secure_fl.learning import anatomy, local_training, models
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.settings import DPSettings
from secure_fl.testing.hospitals import LABELS, small
from tests.support.event_documents import into
from tests.support.raising import raises

TASK = make_task(TaskSettings(labels=LABELS, max_length=32))
TEXTS = [Text(str(i), "rash " * (i * 7 % 30 + 1), label=LABELS[i % 2]) for i in range(100)]
DP = DPSettings(epsilon=8.0, noise_multiplier=1.0, accountant="rdp")


def passed(seed: int, *, alike: bool) -> list[Any]:
    encoded = TASK.encode(TEXTS, tiny_tokenizer())
    return list(encoded.batches(8, torch.Generator().manual_seed(seed), alike=alike))


def lengths(batches: list[Any]) -> list[list[int]]:
    return [batch["attention_mask"].sum(-1).tolist() for batch in batches]


def test_batches_of_like_lengths_hold_every_record_once_and_less_padding() -> None:
    plain, alike = passed(1, alike=False), passed(1, alike=True)
    assert sorted(chain(*lengths(plain))) == sorted(chain(*lengths(alike)))
    cells = [sum(batch["input_ids"].numel() for batch in found) for found in (plain, alike)]
    tokens = sum(sum(row) for row in lengths(plain))
    assert cells[1] - tokens < (cells[0] - tokens) / 4
    assert lengths(alike) == lengths(passed(1, alike=True)) != lengths(passed(2, alike=True))
    longest = [max(row) for row in lengths(alike)]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))  # in any order


def test_rankings_have_no_one_length() -> None:
    task = make_task(TaskSettings(kind="ranking"))
    encoded = task.encode(make("news", parties=1, seed=0, size=4)[0].train, tiny_tokenizer())
    with raises(SettingsError, field="training.bucketing"):
        next(encoded.batches(2, torch.Generator(), alike=True))


@pytest.mark.parametrize("saving", ["bucketing", "checkpointing"])
def test_under_dp_they_are_refused(saving: str) -> None:
    with pytest.raises(ValueError, match=saving):
        TrainingSettings.model_validate({saving: True, "dp": DP})


def once(*, again: bool) -> tuple[dict[str, Tensor], int]:
    """A step's gradients under dropout, and the bytes that were kept for them."""
    model = models.load_model(ModelSettings(), TASK, tiny_tokenizer(), 0).train()
    if again:
        models.recompute(model)
    batch, kept = passed(1, alike=False)[0], {0: 0}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(0)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = TASK.loss(TASK.forward(model, batch), batch)
    loss.backward()
    found = {name: p.grad for name, p in anatomy.trainable(model).items() if p.grad is not None}
    return found, sum(size for at, size in kept.items() if at not in weights)


def test_layers_computed_again_give_the_same_gradients_in_less_memory() -> None:
    (plain, kept), (again, fewer) = once(again=False), once(again=True)
    assert plain.keys() == again.keys() != set()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-7, rtol=1e-5)
    assert fewer < kept / 3


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(rounds=1), FedKD(rounds=1, student_layers=1), HeteroFL(rounds=1, mix="wide")],
)
def test_federations_come_to_the_same_model(algorithm: Any) -> None:
    found = []
    for again in (False, True):
        training = TrainingSettings(
            learning_rate=2e-3, batch_size=16, device="cpu", checkpointing=again, bucketing=True
        )
        found.append(small(algorithm, training=training).run().mean("test")["loss"])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_what_cannot_is_refused_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load_model(ModelSettings(layers=1), TASK, tiny_tokenizer(), 0)
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with raises(ModelError, field="training.checkpointing"):
        models.recompute(model)


@pytest.mark.parametrize("knows", [False, True])
def test_a_processor_without_bfloat16_trains_in_float32_and_says_so(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_training, "supports_bfloat16", lambda device: knows)

    def trained(precision: str) -> tuple[dict[str, Tensor], list[Any]]:
        events: list[Any] = []
        asked = TrainingSettings.model_validate({"precision": precision, "batch_size": 8})
        run = small(FedAvg(rounds=1), training=asked, listener=into(events)).run()
        warned = [event["text"] for event in events if event["event"] == "warning"]
        return run.model.state_dict(), warned

    full, silent = trained("float32")
    half, warned = trained("bfloat16")
    assert not silent
    assert all(torch.equal(full[name], half[name]) for name in full) == (not knows)
    assert len(warned) == (0 if knows else 3) and all("float32" in line for line in warned)
