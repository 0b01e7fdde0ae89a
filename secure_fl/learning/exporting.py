"""Models as folders, for transformers, `peft` and `load_exported`; and a check that they can be.

Where transformers has the head, its Auto classes load the folder. The classes of attentive pooling
and of probes are saved with the weights. The news ranker's backbone loads by `AutoModel`, and its
head only by `load_exported`. A model with adapters becomes a folder for `peft`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import adapted, base_state, body_of, unwrapped
from secure_fl.learning.fetching import Attention, quiet
from secure_fl.learning.models import head_fields, load_model, load_tokenizer, model_parts, part_in
from secure_fl.learning.tasks import Task, attentive_pooling, heads, task_from
from secure_fl.learning.tasks.attentive_pooling import (
    AttentiveForSequenceClassification,
    AttentivePoolingConfig,
    ProbeForTokenClassification,
)
from secure_fl.learning.tasks.completion import open_ended
from secure_fl.learning.tasks.heads import AttentiveClassifier, NewsRanker, ProbeClassifier
from secure_fl.settings import ModelSettings

CARD = "secure_fl.json"  # the task of an exported model
HEAD = "head.safetensors"  # weights of a head that transformers does not know
WEIGHTS = "model.safetensors"
POOLED = (AttentiveClassifier, ProbeClassifier)  # saved with the code of their class


def export(model: Any, tokenizer: Any, folder: str | Path, task: Task) -> Path:
    """Write a model, its tokenizer and its task to a folder."""
    folder, model = Path(folder), unwrapped(model)
    card = {
        "version": 1,
        "kind": task.kind,
        "labels": list(task.labels),
        **task.reading(),
        "positive": task.positive,
        "pooling": _pooling(model),
    }
    if (task.temperature, task.threshold) != (1.0, None):
        card |= {"temperature": task.temperature, "threshold": task.threshold}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            _write(model, folder, task)
            (open_ended(tokenizer) if task.head == "causal" else tokenizer).save_pretrained(folder)
        (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ModelError(
            "the model cannot be written", folder=folder, fix="choose a writable folder with space"
        ) from error
    return folder


def _pooling(model: nn.Module) -> str:
    """The pooling with which a folder is read; a probe's folder says by itself how to read it."""
    if isinstance(model, ProbeClassifier) and adapted(model):
        return "mean"
    return "attentive" if isinstance(model, POOLED) else "cls"


def _write(model: Any, folder: Path, task: Task) -> None:
    own_head = isinstance(model, AttentiveClassifier | ProbeClassifier | NewsRanker)
    body = model.backbone if own_head else model
    if isinstance(model, POOLED) and not adapted(model):
        _write_pooled(model, folder, task)
        return
    if own_head:
        save_file(head_state(model), folder / HEAD)
    else:
        model.config.update(head_fields(task))
    if adapted(model):
        model_parts()["adapter"].write(body, folder)
    else:
        body.save_pretrained(folder)


def _write_pooled(model: AttentiveClassifier | ProbeClassifier, folder: Path, task: Task) -> None:
    """Write the weights, and the code of the class that reads them."""
    words = task.head == "token"
    reader = ProbeForTokenClassification if words else AttentiveForSequenceClassification
    auto = "AutoModelForTokenClassification" if words else "AutoModelForSequenceClassification"
    probe = None
    if isinstance(model, ProbeClassifier):
        components = None if model.basis is None else model.basis.shape[1]
        probe = {"components": components, "words": words}
    module = Path(attentive_pooling.__file__).stem
    inner = model.backbone.config.to_dict()
    AttentivePoolingConfig(
        backbone={name: value for name, value in inner.items() if name != "_name_or_path"},
        probe=probe,
        architectures=[reader.__name__],
        auto_map={
            "AutoConfig": f"{module}.{AttentivePoolingConfig.__name__}",
            auto: f"{module}.{reader.__name__}",
        },
        **head_fields(task),
    ).save_pretrained(folder)
    state = {f"model.{name}": v.contiguous().cpu() for name, v in model.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    for code in (attentive_pooling.__file__, heads.__file__):
        shutil.copy(code, folder)


def head_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a head that transformers does not have, without the backbone's."""
    state = model.state_dict()
    return {k: v.contiguous().cpu() for k, v in state.items() if not k.startswith("backbone.")}


def load_exported(
    folder: str | Path, *, attn_implementation: Attention = "sdpa"
) -> tuple[nn.Module, Any, Task]:
    """Model, tokenizer and task of a folder that `export` wrote."""
    folder = Path(folder)
    task, pooling = _read_card(folder)
    part, base = part_in(folder) or (None, None)
    if pooling == "attentive" and part is None:
        return *_read_attentive(folder, attn_implementation), task
    tokenizer = load_tokenizer(ModelSettings(name=str(folder)))
    model = load_model(
        ModelSettings(name=str(base or folder), freeze_embeddings=False),
        task,
        tokenizer,
        0,
        attn_implementation=attn_implementation,
        pooling=pooling,
        complete=part is None,
    )
    if part is not None:
        model = part.read(model, folder)
    if isinstance(model, AttentiveClassifier | ProbeClassifier | NewsRanker):
        try:
            state = load_file(folder / HEAD)
            if set(state) != set(head_state(model)):
                raise _incomplete(folder)
            model.load_state_dict(state, strict=False)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise _incomplete(folder) from error
    return model, tokenizer, task


def _incomplete(folder: Path) -> ModelError:
    return ModelError(
        "the folder does not hold a complete exported model",
        folder=folder,
        fix="give the folder that `export` wrote, unchanged",
    )


def _read_card(folder: Path) -> tuple[Task, Any]:
    """The task and the pooling of an exported model."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if card.pop("version") != 1:
            raise _incomplete(folder)
        pooling = card.pop("pooling")
        return task_from(card), pooling
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _incomplete(folder) from error


def _read_attentive(folder: Path, attention: Attention) -> tuple[Any, Any]:
    try:
        with quiet():
            loaded, info = AttentiveForSequenceClassification.from_pretrained(
                folder,
                attn_implementation=attention,
                output_loading_info=True,
                use_safetensors=True,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # each family checks its configuration with errors of its own
        raise _incomplete(folder) from error
    if info["missing_keys"] or info["mismatched_keys"]:
        raise _incomplete(folder)
    return loaded.eval().model, tokenizer


_savable: set[tuple[Any, ...]] = set()


def require_savable(model: nn.Module, tokenizer: Any) -> None:
    """Check before training that the model can be saved and read again, by its shapes alone.

    It writes the configuration and the tokenizer, reads them back, and compares all shapes. So an
    invalid configuration of a cut model is an error before the first round, not after the last.
    A process checks equal models once: a search trains many.
    """
    inner = unwrapped(model)
    saved: Any = inner if isinstance(inner, transformers.PreTrainedModel) else body_of(inner)
    attention = saved.config._attn_implementation
    shapes = {name: value.shape for name, value in base_state(saved).items()}
    checked = type(saved), saved.config.to_json_string(), repr(tokenizer), tuple(shapes.items())
    if checked in _savable:
        return
    try:
        with TemporaryDirectory() as folder, quiet():
            saved.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            config = transformers.AutoConfig.from_pretrained(folder, attn_implementation=attention)
            transformers.AutoTokenizer.from_pretrained(folder)
            with torch.device("meta"):  # shapes without memory
                again = type(saved)(config)
    except Exception as error:  # each family checks its configuration with errors of its own
        raise _unsavable(saved, str(error)) from error
    restored = {name: value.shape for name, value in again.state_dict().items()}
    lost = sorted(name for name, shape in shapes.items() if restored.get(name) != shape)
    if lost:
        raise _unsavable(saved, f"{lost[0]} would be missing or have another shape")
    _savable.add(checked)


def _unsavable(model: Any, reason: str) -> ModelError:
    first = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    return ModelError(
        f"the model could not be read again once it is saved: {first}",
        model=type(model).__name__,
        fix="use another depth (model.layers), or another model: docs/models.md names those that "
        "are tested",
    )
