"""Narrow models: as large as shallow ones, slices of the wide one, and computing as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import nn

from secure_fl import TaskSettings
from secure_fl.algorithms.baselines.heterofl import head_sizes
from secure_fl.algorithms.baselines.narrow_models import (
    at_width,
    encoder_parameters,
    narrow_model,
    places,
    shapes,
    size_for_depth,
    wide_config,
)
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.errors import ModelError, SettingsError
from secure_fl.events import EventLog
from secure_fl.learning import builtin
from secure_fl.learning.anatomy import encoder_layers, trainable
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, TrainingSettings
from secure_fl.testing.hospitals import silos
from tests.support.raising import raises
from tests.support.saved_models import WORDS, save_family
from tests.support.slices import require_slices

FAMILIES = ("bert", "roberta", "distilbert", "electra")
CPU = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu")


def site_of(model: ModelSettings, kind: Any = "classification") -> Site:
    labels = ("no", "yes") if kind in ("classification", "ner") else None
    task = make_task(TaskSettings(kind=kind, labels=labels))
    return Site(silos(1)[0], task, model, CPU, 3, EventLog("h"))


def test_widths_that_match_depths() -> None:
    """BERT-base's own figures; the paper (arXiv 2202.08036, Sec. 4) has 456 and 624."""
    base = transformers.BertConfig()
    assert encoder_parameters(base, 12) == 85_054_464  # known of BERT-base
    assert 12 * size_for_depth(base, 8, 12) == 624
    assert 12 * size_for_depth(base, 4, 12) == 444
    for depth in range(1, 13):
        size, goal = size_for_depth(base, depth, 12), encoder_parameters(base, depth)
        near = abs(encoder_parameters(at_width(base, size), 12) - goal)
        for other in (size - 1, size + 1):
            if 1 <= other <= 64:
                assert near <= abs(encoder_parameters(at_width(base, other), 12) - goal)
    assert size_for_depth(base, 12, 12) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_they_are(family: str, tmp_path: Path) -> None:
    site = site_of(save_family(tmp_path, family))
    model = shapes(wide_config(site), site.task, site.model_settings)
    held = sum(p.numel() for p in encoder_layers(model).parameters())
    assert encoder_parameters(wide_config(site), 3) == held


def test_tiers_from_depths_or_widths() -> None:
    config = builtin.tiny_config(100)
    assert head_sizes(HeteroFL(), config, 4) == {"weak": 8, "medium": 12, "strong": 16}
    named = HeteroFL(widths={"big": 1.0, "small": 0.25})
    assert list(head_sizes(named, config, 4).items()) == [("small", 4), ("big", 16)]
    deep = head_sizes(HeteroFL(tiers={"weak": 1, "strong": 4}), config, 4)
    assert deep == {"weak": size_for_depth(config, 1, 4), "strong": 16}
    with raises(SettingsError, "5", "4", field="algorithm.tiers"):
        head_sizes(HeteroFL(tiers={"weak": 1, "strong": 5}), config, 4)
    given: list[dict[str, Any]] = [
        {"widths": {"a": 1.0}, "tiers": {"a": 1}},
        {"widths": {}},
        {"widths": {"a": 2}},
    ]
    for wrong in given:
        with pytest.raises(ValidationError):
            HeteroFL.model_validate(wrong)


def pair(site: Site, size: int) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    wide, (narrow, _) = site.model(), narrow_model(site, size, "training")
    return wide, narrow, places(wide, narrow)


@pytest.mark.parametrize("kind", ["classification", "ner", "regression", "ranking"])
def test_the_built_in_model_narrow_is_a_slice_of_it_wide(kind: Any) -> None:
    wide, narrow, at = pair(site_of(ModelSettings(layers=2), kind), 8)
    require_slices(wide, narrow, at)
    assert not narrow.training
    assert trainable(narrow).keys() == trainable(wide).keys()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pretrained", [True, False])
def test_a_checkpoint_narrow_is_a_slice_of_it_wide(
    family: str, pretrained: bool, tmp_path: Path
) -> None:
    spec = save_family(tmp_path, family).model_copy(update={"layers": 2, "pretrained": pretrained})
    wide, narrow, at = pair(site_of(spec), 5)  # 5 of 8 in each of two heads
    require_slices(wide, narrow, at)


@pytest.mark.parametrize("way", ["whole", "sharded", "old names"])
def test_checkpoints_of_whole_models_in_parts_and_with_old_names(way: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    spec, other = save_family(tmp_path, "bert"), tmp_path / "other"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(spec.name)
    builtin.tiny_tokenizer(WORDS).save_pretrained(other)
    model.save_pretrained(other, max_shard_size="8KB" if way == "sharded" else "1GB")
    assert (other / "model.safetensors").exists() == (way != "sharded")
    if way == "old names":
        file = other / "model.safetensors"
        state = {
            n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in load_file(file).items()
        }
        save_file(state, file, {"format": "pt"})
    wide, narrow, at = pair(site_of(ModelSettings(name=str(other))), 4)
    require_slices(wide, narrow, at)


@pytest.mark.parametrize("family", ["tiny", *FAMILIES])
def test_the_narrow_model_computes_what_the_wide_one_does_in_its_slice(
    family: str, tmp_path: Path
) -> None:
    """Without norms, a wide model that is zero outside of the slice gives the same logits."""
    spec = ModelSettings(layers=2) if family == "tiny" else save_family(tmp_path, family)
    site = site_of(spec)
    wide, narrow, at = pair(site, 6)
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            inside = torch.zeros_like(parameter)
            inside[np.ix_(*(kept.numpy() for kept in at[name]))] = 1.0
            parameter.mul_(20 * inside)  # large enough for attention to matter
        for parameter in narrow.parameters():
            parameter.mul_(20)
    for model in (wide, narrow):
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.LayerNorm):
                    setattr(module, name, nn.Identity())
            if hasattr(module, "scaling"):  # of attention scores, by the head's size
                setattr(module, "scaling", 1.0)  # noqa: B010 - a module declares no such field
    batch = {"input_ids": torch.tensor([[2, 7, 9, 3, 0]]), "attention_mask": torch.ones(1, 5)}
    with torch.no_grad():
        expected, found = wide(**batch).logits, narrow(**batch).logits
        shorter = narrow(**{k: v[:, :3] for k, v in batch.items()}).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, shorter, rtol=1e-2)


@pytest.mark.parametrize("scaled", ["always", "training"])
def test_activations_are_divided_and_in_the_end_the_weights(scaled: Any) -> None:
    site = site_of(ModelSettings(layers=1))
    model, scaler = narrow_model(site, 8, scaled)
    x = torch.ones(1, 32)
    query: Any = model.get_submodule("bert.encoder.layer.0.attention.self.query")
    straight = nn.functional.linear(x, query.weight, query.bias)
    assert torch.equal(query(x), straight / (0.5 if scaled == "always" else 1.0))
    model.train()
    assert torch.equal(query(x), straight / 0.5)
    last: Any = model.get_submodule("classifier")
    assert torch.equal(last(x), nn.functional.linear(x, last.weight, last.bias))
    tokens = {"input_ids": torch.tensor([[2, 7, 9, 3]])}
    measured = model.eval()(**tokens).logits
    scaler.fold()
    torch.testing.assert_close(model(**tokens).logits, measured)
    assert not query._forward_hooks


def test_what_cannot_be_narrowed_is_refused(tmp_path: Path) -> None:
    builtin.tiny_tokenizer(WORDS).save_pretrained(tmp_path)
    config = transformers.ElectraConfig(vocab_size=230, embedding_size=8, hidden_size=16)
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be cut to a width"):
        wide_config(site_of(ModelSettings(name=str(tmp_path))))
    folder = tmp_path / "bert"
    spec = save_family(folder, "bert")
    (folder / "model.safetensors").rename(folder / "elsewhere.safetensors")
    with pytest.raises(ModelError, match="no usable safetensors"):
        narrow_model(site_of(spec), 4)
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="no usable safetensors"):
        narrow_model(site_of(spec), 4)


def test_a_checkpoint_without_its_encoder_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    spec = save_family(tmp_path, "bert")
    state = load_file(tmp_path / "model.safetensors")
    state.pop("encoder.layer.1.output.dense.weight")
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with raises(ModelError, "1", parameter="bert.encoder.layer.1.output.dense.weight"):
        narrow_model(site_of(spec), 4)
