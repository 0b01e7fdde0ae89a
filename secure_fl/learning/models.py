"""Transformers by name or folder: loaded, cut to a depth, frozen, and given optional parts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import nn

from secure_fl.errors import ModelError
from secure_fl.features import load
from secure_fl.learning import builtin
from secure_fl.learning.anatomy import body_of, depth, freeze_embeddings
from secure_fl.learning.fetching import (
    Attention,
    Pooling,
    configured,
    fetch,
    instantiate,
    no_writer,
    pooled_folder,
    pooled_weights,
    pooling_of,
    seeded,
    spread,
    supported,
)
from secure_fl.learning.tasks import Task
from secure_fl.learning.tasks.completion import end_of
from secure_fl.learning.tasks.heads import AttentiveClassifier, NewsRanker, ProbeClassifier
from secure_fl.settings import ModelSettings

AUTO = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "causal": "AutoModelForCausalLM",
    "prompt": "AutoModelForMaskedLM",
}


class ModelPart(Protocol):
    """An optional part of models, such as adapters: added after loading, saved and read again."""

    field: str  # its settings in [model]

    def add(self, model: nn.Module, spec: ModelSettings, seed: int, fresh: Iterable[str]) -> None:
        """Add the part in place; `fresh`: the parameters that no checkpoint gave."""

    def write(self, model: nn.Module, folder: Path) -> None:
        """Write a model with this part."""

    def base_of(self, folder: Path) -> str | None:
        """The name or folder of the model around which a folder's part belongs; None: no part."""

    def read(self, model: nn.Module, folder: Path) -> nn.Module:
        """Merge a folder's part into its base."""

    def merged(self, model: nn.Module) -> nn.Module:
        """A copy of a model with this part merged into its weights."""

    def averaging(self, spec: ModelSettings) -> Any:
        """The party program that averages this part; None: FedAvg averages its weights."""


@cache
def model_parts() -> Mapping[str, ModelPart]:
    """The parts in the table of features, by their field of [model]."""
    return {part.field: part for part in load("model_part").values()}


def add_parts(model: nn.Module, spec: ModelSettings, seed: int, fresh: Iterable[str]) -> None:
    """Add the parts that the settings ask for."""
    if spec.adapter is not None and "adapter" not in model_parts():
        raise ModelError("there are no adapters here", field="model.adapter", fix="remove it")
    for field, part in model_parts().items():
        if getattr(spec, field, None) is not None:
            part.add(model, spec, seed, fresh)


def part_in(folder: Path) -> tuple[ModelPart, str] | None:
    """The part in a folder, and the name or folder of its base; None: a plain model."""
    for part in model_parts().values():
        if (base := part.base_of(folder)) is not None:
            return part, base
    return None


def averaging_of(spec: ModelSettings) -> Any:
    """The party program that FedAvg runs for a part of this model; None: its usual one."""
    programs = (part.averaging(spec) for part in model_parts().values())
    return next((program for program in programs if program is not None), None)


def auto_of(head: str) -> Any:
    """The class of transformers for a head; this loads the modelling code."""
    return getattr(transformers, AUTO[head])


def load_tokenizer(spec: ModelSettings) -> Any:
    """The model's fast tokenizer; its `model_max_length` is at most the model's positions."""
    if spec.name == "tiny":
        return builtin.tiny_tokenizer()
    tokenizer = fetch(
        transformers.AutoTokenizer.from_pretrained, spec.name, trust_remote_code=False
    )
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token  # decoders usually have none
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ModelError(
            "the tokenizer is not a fast one, or has no padding token",
            model=spec.name,
            fix="save it as tokenizer.json with a pad_token",
        )
    tokenizer.model_max_length = min(tokenizer.model_max_length, readable(spec))
    return tokenizer


def readable(spec: ModelSettings) -> int:
    """The number of tokens that the model has positions for."""
    config = configured(spec, None, {})
    attention = supported(transformers.AutoModel, config, "sdpa")
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return sys.maxsize
    with torch.device("meta"):  # shapes without memory
        body = transformers.AutoModel.from_config(config, attn_implementation=attention)
    unused = {  # some families' positions start after the padding's
        table.padding_idx + 1
        for name, table in body.named_modules()
        if isinstance(table, nn.Embedding) and "position" in name and table.padding_idx is not None
    }
    return int(positions) - max(unused, default=0)


def load_backbone(
    spec: ModelSettings, tokenizer: Any, seed: int, *, attn_implementation: Attention = "sdpa"
) -> nn.Module:
    """The encoder without a head, and without BERT's pooler, which nothing would train."""
    backbone, fresh = instantiate(
        transformers.AutoModel, spec, tokenizer, seed, attn_implementation, {}
    )
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    builtin.redraw(backbone, fresh, seed, spread(backbone.config))
    return finish(backbone, spec, seed, fresh)


def load_model(
    spec: ModelSettings,
    task: Task,
    tokenizer: Any,
    seed: int,
    *,
    attn_implementation: Attention = "sdpa",
    pooling: Pooling | None = None,
    complete: bool = False,
) -> nn.Module:
    """The model with the task's head, on the CPU, in evaluation mode and float32.

    Weights that the checkpoint does not hold (the head; everything with `pretrained = false`)
    depend on `seed` alone, on every machine; the global random state does not change. `complete`
    refuses a checkpoint without this head.
    """
    pooling = pooling or pooling_of(spec, task.head)
    if pooling != "cls" and task.head in ("token", "prompt"):
        kind = "NER" if task.head == "token" else "a task with a prompt"
        raise ModelError(f"{kind} has no pooling", fix="remove model.pooling")
    if task.head == "ranking" or pooling != "cls":
        backbone = load_backbone(spec, tokenizer, seed, attn_implementation=attn_implementation)
        return _with_own_head(backbone, spec, task, seed, pooling)
    model, fresh = instantiate(
        auto_of(task.head), spec, tokenizer, seed, attn_implementation, head_fields(task, spec.name)
    )
    if complete and fresh:
        raise ModelError(
            "the checkpoint does not hold the head of this task",
            model=spec.name,
            parameter=fresh[0],
            fix="give a folder that `export` wrote for this task",
        )
    builtin.redraw(model, fresh, seed, spread(model.config))
    if task.head == "causal":
        require_causal(model, spec.name)
        if model.generation_config.eos_token_id is None:
            model.generation_config.eos_token_id = end_of(tokenizer)
    return finish(model, spec, seed, fresh)


def _with_own_head(
    backbone: nn.Module, spec: ModelSettings, task: Task, seed: int, pooling: Pooling
) -> nn.Module:
    """A backbone with a head that transformers does not have."""
    with seeded(seed):
        model = attach(backbone, task, pooling)
    fresh = [name for name, _ in model.named_parameters() if not name.startswith("backbone.")]
    builtin.redraw(model, fresh, seed, spread(body_of(model).config))
    if pooling == "attentive" and pooled_folder(spec.name) and spec.pretrained:
        load_head(model, spec.name)
    return model.eval()


@torch.no_grad()
def require_causal(model: Any, name: str) -> None:
    """Refuse a model that sees the next token: it would learn to copy it, and could not write."""
    texts = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]])
    one, other = model.eval()(input_ids=texts, use_cache=False).logits[:, :-1]
    if not torch.allclose(one, other, atol=1e-4):
        raise no_writer(name)


def load_head(model: nn.Module, folder: str) -> None:
    """Load a folder's pooling weights, and its output layer if it has as many labels."""
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    stored = pooled_weights(folder, "")
    fitting = {name: value for name, value in stored.items() if value.shape == shapes.get(name)}
    head = {name: value for name, value in fitting.items() if not name.startswith("backbone.")}
    model.load_state_dict(head, strict=False)


def recompute(model: nn.Module) -> None:
    """Keep only the inputs of layers in training, and recompute layers for their gradients."""
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel):
            if not module.supports_gradient_checkpointing:
                raise ModelError(
                    "this model has no gradient checkpointing",
                    model=type(module).__name__,
                    fix="remove training.checkpointing",
                    field="training.checkpointing",
                )
            # Earlier releases have only the other name, and later ones warn of it.
            newer = getattr(module, "activation_checkpointing_enable", None)
            enable = newer or module.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def attach(backbone: nn.Module, task: Task, pooling: Pooling = "attentive") -> nn.Module:
    """Put the task's head of this library around a backbone."""
    if task.head == "ranking":
        return NewsRanker(backbone)
    if pooling == "mean":
        return ProbeClassifier(backbone, task.outputs_per_row)
    return AttentiveClassifier(backbone, task.outputs_per_row)


def head_fields(task: Task, name: str = "") -> dict[str, Any]:
    """The fields of a transformers config for the head, and for the built-in decoder."""
    if task.head == "causal":
        return {"is_decoder": True} if name == "tiny" else {}
    if task.head == "prompt":  # the word output is the head
        return {}
    names = task.labels or ("score",)
    fields: dict[str, Any] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
    if task.head == "sequence":
        answers = "single_label" if task.exclusive else "multi_label"
        fields["problem_type"] = f"{answers}_classification" if task.labels else "regression"
    return fields


def finish(model: Any, spec: ModelSettings, seed: int, fresh: Iterable[str]) -> nn.Module:
    """Apply the remaining settings: a known depth, frozen embeddings, parts such as adapters."""
    if spec.layers is not None:
        depth(model)
    if spec.freeze_embeddings:
        freeze_embeddings(model)
    add_parts(model, spec, seed, fresh)
    module: nn.Module = model.eval()
    return module
