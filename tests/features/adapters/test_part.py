"""Adapters: found by structure, equal everywhere, loaded by `peft` itself, bounded per record."""

from __future__ import annotations

import builtins
import json
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from secure_fl.data.examples import Text
from secure_fl.errors import ModelError, SettingsError
from secure_fl.features.adapters.adapter_layers import set_product
from secure_fl.features.adapters.part import add, merged, peft
from secure_fl.learning import anatomy, exporting, fetching, models
from secure_fl.learning.anatomy import adapted
from secure_fl.learning.dp.private_model import Bounds
from secure_fl.learning.learning_rates import learning_rate_of
from secure_fl.learning.tasks import Task, make_task
from secure_fl.policy.model_size import trained_values
from secure_fl.settings import AdapterSettings, Kind, ModelSettings, TaskSettings, TrainingSettings
from tests.support.clipped_sums import clipped_sum
from tests.support.families import BY_KIND, save
from tests.support.private import FAMILIES, loss_of, make_batch, make_model
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

KINDS = ("lora", "ffa", "exact", "dora")
WRITING = make_task(TaskSettings(kind="completion", max_length=24))
TEXTS = ["fever after the second dose", "no complaints"]


def spec_of(kind: Any = "lora", pooling: Any = "cls", **fields: Any) -> ModelSettings:
    return ModelSettings(adapter=AdapterSettings(kind=kind, **fields), pooling=pooling, layers=2)


def task_of(kind: Kind) -> Task:
    labels = None if kind == "ranking" else ("yes", "no")
    return make_task(TaskSettings(kind=kind, labels=labels))


def made(spec: ModelSettings, kind: Kind = "classification") -> tuple[nn.Module, Any, Task]:
    tokenizer, task = models.load_tokenizer(spec), task_of(kind)
    return models.load_model(spec, task, tokenizer, 7), tokenizer, task


@torch.no_grad()
def stir(model: nn.Module) -> None:
    """Move all that is trained, as training would."""
    for weight in anatomy.trainable(model).values():
        weight.add_(0.1 * torch.randn_like(weight))


@torch.no_grad()
def answers(model: nn.Module, tokenizer: Any) -> Any:
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    return model(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits


@pytest.mark.parametrize("kind", KINDS)
def test_at_first_an_adapter_changes_nothing_and_only_it_and_the_head_are_trained(
    kind: Any,
) -> None:
    spec = spec_of(kind)
    model, tokenizer, _ = made(spec)
    plain, _, _ = made(ModelSettings(layers=2))
    torch.testing.assert_close(answers(model, tokenizer), answers(plain, tokenizer))
    trained = set(anatomy.trainable(model))
    assert {"classifier.weight", "classifier.bias"} <= trained
    assert all(".lora_" in name or name.startswith("classifier") for name in trained)
    assert any("lora_A" in name for name in trained) is (kind != "ffa")
    again, _, _ = made(spec)
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


def test_targets_are_attentions_or_all_linear_layers_and_those_before_the_output() -> None:
    few, every = (
        set(adapted(made(spec_of(targets=targets))[0])) for targets in ("attention", "linear")
    )
    assert "bert.encoder.layer.1.attention.self.query" in few and "bert.pooler.dense" in few
    assert every - few == {
        f"bert.encoder.layer.{i}.{part}.dense"
        for i in (0, 1)
        for part in ("intermediate", "output")
    }
    rank = spec_of(rank=4)
    values = sum(w.numel() for n, w in anatomy.trainable(made(rank)[0]).items() if "encoder" in n)
    assert trained_values(rank) == values == 2 * 4 * (4 * 2 * 64)  # as a site's limit counts


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft asks transformers
@pytest.mark.parametrize(
    ("kind", "task"), [*zip(KINDS, ["classification", "ner"] * 2, strict=True)]
)
def test_peft_loads_the_folder_around_its_base(kind: Any, task: Kind, tmp_path: Path) -> None:
    model, tokenizer, made_task = made(spec_of(kind), task)
    stir(model)
    exporting.export(model, tokenizer, tmp_path, made_task)
    auto = {
        "classification": transformers.AutoModelForSequenceClassification,
        "ner": transformers.AutoModelForTokenClassification,
    }[task]
    base = auto.from_pretrained(tmp_path / "base")
    loaded = peft().PeftModel.from_pretrained(base, tmp_path).eval()
    expected = answers(model, tokenizer)
    torch.testing.assert_close(answers(loaded, tokenizer), expected)
    assert not torch.allclose(answers(auto.from_pretrained(tmp_path / "base"), tokenizer), expected)
    torch.testing.assert_close(answers(exporting.load_exported(tmp_path)[0], tokenizer), expected)
    torch.testing.assert_close(answers(merged(model), tokenizer), expected)
    assert adapted(model) and not adapted(merged(model))


def test_a_folder_of_adapters_names_the_checkpoint_and_holds_no_copy_of_it(tmp_path: Path) -> None:
    whole, tokenizer, task = made(ModelSettings(layers=2))
    exporting.export(whole, tokenizer, tmp_path / "checkpoint", task)
    spec = ModelSettings(name=str(tmp_path / "checkpoint"), adapter=AdapterSettings())
    model = models.load_model(spec, task, tokenizer, 1)
    stir(model)
    exporting.export(model, tokenizer, tmp_path / "adapters", task)
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "checkpoint")
    assert not (tmp_path / "adapters" / "base").exists()
    size = (tmp_path / "adapters" / "adapter_model.safetensors").stat().st_size
    assert size < (tmp_path / "checkpoint" / "model.safetensors").stat().st_size / 5
    loaded = exporting.load_exported(tmp_path / "adapters")[0]
    torch.testing.assert_close(answers(loaded, tokenizer), answers(model, tokenizer))


@pytest.mark.parametrize("task", ["classification", "ranking"])
def test_heads_of_our_own_lie_beside_the_adapters(task: Kind, tmp_path: Path) -> None:
    spec = spec_of(pooling="attentive" if task == "classification" else "cls")
    model, tokenizer, made_task = made(spec, task)
    stir(model)
    exporting.export(model, tokenizer, tmp_path, made_task)
    loaded = exporting.load_exported(tmp_path)[0].state_dict()
    kept = merged(model).state_dict()
    assert loaded.keys() == kept.keys()
    for name, weight in kept.items():
        torch.testing.assert_close(loaded[name], weight)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("base", ["float32", "bfloat16"])
def test_adapters_of_a_writing_model_are_a_folder_for_peft(base: Any, tmp_path: Path) -> None:
    spec = ModelSettings(layers=1, adapter=AdapterSettings(targets="linear", base=base))
    tokenizer = models.load_tokenizer(spec)
    model = models.load_model(spec, WRITING, tokenizer, 0)
    assert all(".lora_" in name for name in anatomy.trainable(model))  # no head is sent
    assert anatomy.word_output(model) not in adapted(model).values()
    with torch.no_grad():
        for layer in adapted(model).values():
            layer.lora_B["default"].weight.normal_(0, 0.1)
    folder = exporting.export(model, tokenizer, tmp_path, WRITING)
    with fetching.quiet():
        whole = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
        whole = peft().PeftModel.from_pretrained(whole, str(folder)).eval()
    assert isinstance(whole, peft().PeftModelForCausalLM)
    batch = WRITING.encode(
        [Text(str(n), note, "an event") for n, note in enumerate(TEXTS)], tokenizer
    ).batch([0, 1])
    with torch.no_grad():
        found, ours = (WRITING.loss(WRITING.forward(one, batch), batch) for one in (whole, model))
    torch.testing.assert_close(found, ours, atol=2e-2, rtol=2e-2)


TARGETS = ("attention", "linear")
ADAPTED = [family for family in BY_KIND if family != "albert"]


@pytest.mark.parametrize(
    ("family", "targets"),
    mostly_slow(product(ADAPTED, TARGETS), *zip(ADAPTED, cycle(TARGETS), strict=False)),
)
def test_every_family_has_adapters(family: str, targets: Any, tmp_path: Path) -> None:
    adapter = AdapterSettings(rank=2, targets=targets)
    spec = save(tmp_path / "base", family).model_copy(update={"adapter": adapter})
    tokenizer, task = models.load_tokenizer(spec), task_of("classification")
    model = models.load_model(spec, task, tokenizer, 7)
    assert len(adapted(model)) >= 3
    stir(model)
    exporting.export(model, tokenizer, tmp_path / "adapters", task)
    loaded, _, _ = exporting.load_exported(tmp_path / "adapters")
    torch.testing.assert_close(
        answers(loaded, tokenizer), answers(model, tokenizer), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("kind", ["lora", "ffa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dp_bounds_each_record_of_an_adapter(family: str, kind: Any, clipping: Any) -> None:
    model, batch = make_model(family), make_batch(family)
    settings = AdapterSettings(kind=kind, rank=2, targets="linear")
    add(model, ModelSettings(adapter=settings), seed=0, fresh=())
    stir(model)  # B = 0 would hide A's gradients
    each = []
    for row in range(len(batch["labels"])):
        model.zero_grad()
        loss_of(family)(model, {k: v[row : row + 1] for k, v in batch.items()}).sum().backward()
        grads = [w.grad for w in anatomy.trainable(model).values()]
        each.append(torch.cat([g.flatten() for g in grads if g is not None]))
    model.zero_grad()
    clip = float(np.median([float(g.norm()) for g in each]))
    expected = torch.stack([g * min(1.0, clip / (float(g.norm()) + 1e-6)) for g in each]).sum(0)
    found = clipped_sum(model, loss_of(family), batch, Bounds(clip, clipping=clipping))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * clip)


@pytest.mark.parametrize("pooling", ["cls", "attentive"])
def test_a_base_in_bfloat16_holds_half_and_answers_alike(pooling: Any) -> None:
    full, tokenizer, _ = made(spec_of(pooling=pooling))
    half, _, _ = made(spec_of(pooling=pooling, base="bfloat16"))
    frozen = [w for w in half.parameters() if not w.requires_grad]
    assert {w.dtype for w in frozen} == {torch.bfloat16}
    assert {w.dtype for w in anatomy.trainable(half).values()} == {torch.float32}
    found, expected = answers(half, tokenizer), answers(full, tokenizer)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.1)
    half.train()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    half(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.sum().backward()
    assert all(w.grad is not None for w in anatomy.trainable(half).values())


def test_a_product_of_any_rank_becomes_an_adapter() -> None:
    model, _, _ = made(spec_of("exact"))
    layer = next(iter(adapted(model).values()))
    move = torch.randn(64, 20) @ torch.randn(20, 64)
    set_product(layer, move)
    assert layer.r["default"] == 20
    torch.testing.assert_close(layer.get_delta_weight("default"), move, atol=1e-4, rtol=1e-4)


def test_a_shared_layer_is_refused(tmp_path: Path) -> None:
    spec = save(tmp_path, "albert").model_copy(update={"adapter": AdapterSettings()})
    with raises(ModelError, "one layer's weights"):
        models.load_model(spec, task_of("classification"), models.load_tokenizer(spec), 7)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="base"):
        AdapterSettings(kind="exact", base="bfloat16")
    with pytest.raises(ValueError, match="freeze_embeddings"):
        ModelSettings(freeze_embeddings=False, adapter=AdapterSettings())
    real = builtins.__import__

    def without_peft(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with raises(ModelError, "peft", field="model.adapter"):
        made(spec_of())


@pytest.mark.parametrize(("width", "rate"), [(1024, 1.5e-3), (768, 2e-3), (384, 4e-3), (64, 1e-2)])
def test_adapters_take_larger_steps_than_the_model(width: int, rate: float) -> None:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=8, hidden_size=width, **shape)
    model = transformers.BertForSequenceClassification(config)
    add(model, spec_of(), seed=0, fresh=())
    for alone in (False, True):
        assert learning_rate_of(model, TrainingSettings(), alone=alone) == rate


def test_a_lora_config_of_peft_becomes_settings() -> None:
    from peft import LoraConfig

    config = LoraConfig(r=4, lora_alpha=12, lora_dropout=0.1, target_modules="all-linear")
    wanted = AdapterSettings(rank=4, alpha=12, dropout=0.1, targets="linear")
    assert ModelSettings(adapter=config).adapter == wanted
    usual = ModelSettings(adapter=LoraConfig(use_dora=True)).adapter
    assert usual == AdapterSettings(kind="dora", rank=8, alpha=8)
    for odd in (LoraConfig(bias="all"), LoraConfig(target_modules=["query"])):
        with raises(SettingsError, "AdapterSettings(rank=", field="adapter"):
            ModelSettings(adapter=odd)
