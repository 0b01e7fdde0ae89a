"""Transformers by name or folder: load, cut to a depth, freeze."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
import transformers
from torch import nn

from secure_fl.errors import ModelError
from secure_fl.learning import builtin
from secure_fl.learning.adapters import adapt
from secure_fl.learning.anatomy import (
    body_of,
    depth,
    freeze_embeddings,
)
from secure_fl.learning.fetching import (
    Attention,
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
from secure_fl.learning.tasks.heads import AttentiveClassifier, NewsRanker
from secure_fl.settings import ModelSettings

Pooling: TypeAlias = Literal["cls", "attentive"]

AUTO = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "causal": "AutoModelForCausalLM",
}


def auto_of(head: str) -> Any:
    """The class of transformers for a head; touching it loads the modelling code."""
    return getattr(transformers, AUTO[head])


def load_tokenizer(spec: ModelSettings) -> Any:
    """Return the model's own fast tokenizer; its `model_max_length` is what the model can read."""
    if spec.name == "tiny":
        return builtin.tiny_tokenizer()
    tokenizer = fetch(
        transformers.AutoTokenizer.from_pretrained, spec.name, trust_remote_code=False
    )
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token  # as is usual for decoders, which have none
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ModelError(
            "the tokenizer is not a fast one, or has no padding token",
            model=spec.name,
            fix="save it as tokenizer.json with a pad_token",
        )
    tokenizer.model_max_length = min(tokenizer.model_max_length, readable(spec))
    return tokenizer


def readable(spec: ModelSettings) -> int:
    """How many tokens the model has positions for; some families' begin behind the padding's."""
    config = configured(spec, None, {})
    attention = supported(transformers.AutoModel, config, "sdpa")
    places = getattr(config, "max_position_embeddings", None)
    if not places or places < 0:
        return sys.maxsize
    with torch.device("meta"):  # shapes without memory
        body = transformers.AutoModel.from_config(config, attn_implementation=attention)
    taken = {
        table.padding_idx + 1
        for name, table in body.named_modules()
        if isinstance(table, nn.Embedding) and "position" in name and table.padding_idx is not None
    }
    return int(places) - max(taken, default=0)


def load_backbone(
    spec: ModelSettings, tokenizer: Any, seed: int, *, attn_implementation: Attention = "sdpa"
) -> nn.Module:
    """Return the encoder without a head (and without BERT's pooler, which nothing would train)."""
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
    """Return the model with the task's head, on the CPU, in evaluation mode and float32.

    What the checkpoint does not hold (the head; everything with `pretrained = false`) depends on
    `seed` alone, on every machine; the global random state is left as it was. `complete` refuses
    a checkpoint without this very head.
    """
    pooling = pooling or pooling_of(spec, task.head)
    if pooling == "attentive" and task.head == "token":
        raise ModelError("NER has no pooling", fix="use pooling 'cls' for NER")
    if task.head == "ranking" or pooling == "attentive":
        backbone = load_backbone(spec, tokenizer, seed, attn_implementation=attn_implementation)
        with seeded(seed):
            model = attach(backbone, task)
        own = [name for name, _ in model.named_parameters() if not name.startswith("backbone.")]
        builtin.redraw(model, own, seed, spread(body_of(model).config))
        if pooling == "attentive" and pooled_folder(spec.name) and spec.pretrained:
            take_head(model, spec.name)
        return model.eval()
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


@torch.no_grad()
def require_causal(model: Any, name: str) -> None:
    """Refuse a model that sees the next token: it would learn to copy it, and could not write."""
    texts = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]])
    one, other = model.eval()(input_ids=texts, use_cache=False).logits[:, :-1]
    if not torch.allclose(one, other, atol=1e-4):
        raise no_writer(name)


def take_head(model: nn.Module, folder: str) -> None:
    """Go on with a folder's pooling, and with its output layer if that has as many labels."""
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    stored = pooled_weights(folder, "")
    fitting = {name: value for name, value in stored.items() if value.shape == shapes.get(name)}
    head = {name: value for name, value in fitting.items() if not name.startswith("backbone.")}
    model.load_state_dict(head, strict=False)


def recompute(model: nn.Module) -> None:
    """Let layers in training keep their inputs alone, and be computed again for their gradients."""
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel):
            if not module.supports_gradient_checkpointing:
                raise ModelError(
                    "this model cannot compute its layers again for their gradients",
                    model=type(module).__name__,
                    fix="remove training.checkpointing",
                    field="training.checkpointing",
                )
            # Earlier releases have it under the other name alone, of which later ones warn.
            newer = getattr(module, "activation_checkpointing_enable", None)
            enable = newer or module.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def attach(backbone: nn.Module, task: Task) -> nn.Module:
    """Put our own head of the task around a backbone."""
    if task.head == "ranking":
        return NewsRanker(backbone)
    return AttentiveClassifier(backbone, task.outputs_per_row)


def head_fields(task: Task, name: str = "") -> dict[str, Any]:
    """Return what a transformers config says about the head (and about the built-in decoder)."""
    if task.head == "causal":
        return {"is_decoder": True} if name == "tiny" else {}
    names = task.labels or ("score",)
    fields: dict[str, Any] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
    if task.head == "sequence":
        fields["problem_type"] = "single_label_classification" if task.labels else "regression"
    return fields


def finish(model: Any, spec: ModelSettings, seed: int, fresh: Iterable[str]) -> nn.Module:
    """Apply the rest of the settings: a depth that can be told, frozen embeddings, adapters."""
    if spec.layers is not None:
        depth(model)
    if spec.freeze_embeddings:
        freeze_embeddings(model)
    adapt(model, spec, seed, fresh)
    module: nn.Module = model.eval()
    return module
