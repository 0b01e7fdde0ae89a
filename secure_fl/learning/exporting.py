"""Models as folders that others load, by transformers or by `load_exported` with their task.

Where transformers has the head, so have its Auto classes the whole model. Attentive pooling is a
class whose code lies beside the weights; the news ranker is ours alone, around a backbone that
`AutoModel` loads. A model with adapters becomes a folder for `peft`: see `adapter_files`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from secure_fl.errors import ModelError
from secure_fl.learning import adapter_files
from secure_fl.learning.adapters import adapted
from secure_fl.learning.anatomy import unwrapped
from secure_fl.learning.fetching import Attention, quiet
from secure_fl.learning.models import head_fields, load_model, load_tokenizer
from secure_fl.learning.tasks import KINDS, Task, attentive_pooling, heads
from secure_fl.learning.tasks.attentive_pooling import (
    AttentiveForSequenceClassification,
    AttentivePoolingConfig,
)
from secure_fl.learning.tasks.completion import open_ended
from secure_fl.learning.tasks.heads import AttentiveClassifier, NewsRanker
from secure_fl.settings import ModelSettings

CARD = "secure_fl.json"  # the task of an exported model
HEAD = "head.safetensors"  # weights of a head that transformers does not know
WEIGHTS = "model.safetensors"


def export(model: Any, tokenizer: Any, folder: str | Path, task: Task) -> Path:
    """Write a model's folder."""
    folder, model = Path(folder), unwrapped(model)
    card = {
        "version": 1,
        "kind": task.kind,
        "labels": list(task.labels),
        "max_length": task.max_length,
        "positive": task.positive,
        "pooling": "attentive" if isinstance(model, AttentiveClassifier) else "cls",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            _write(model, folder, task)
            (open_ended(tokenizer) if task.head == "causal" else tokenizer).save_pretrained(folder)
        (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ModelError(
            "the model cannot be written",
            folder=folder,
            fix="choose a writable folder with space",
        ) from error
    return folder


def _write(model: Any, folder: Path, task: Task) -> None:
    own = isinstance(model, AttentiveClassifier | NewsRanker)
    body = model.backbone if own else model
    if isinstance(model, AttentiveClassifier) and not adapted(model):
        _write_attentive(model, folder, task)
        return
    if own:
        save_file(head_state(model), folder / HEAD)
    else:
        model.config.update(head_fields(task))
    if adapted(model):
        adapter_files.write(body, folder)
    else:
        body.save_pretrained(folder)


def _write_attentive(model: AttentiveClassifier, folder: Path, task: Task) -> None:
    """Write the weights, and the code of the class that reads them."""
    here = Path(attentive_pooling.__file__).stem
    inside = model.backbone.config.to_dict()
    AttentivePoolingConfig(
        backbone={name: value for name, value in inside.items() if name != "_name_or_path"},
        architectures=[AttentiveForSequenceClassification.__name__],
        auto_map={
            "AutoConfig": f"{here}.{AttentivePoolingConfig.__name__}",
            "AutoModelForSequenceClassification": (
                f"{here}.{AttentiveForSequenceClassification.__name__}"
            ),
        },
        **head_fields(task),
    ).save_pretrained(folder)
    state = {f"model.{name}": v.contiguous().cpu() for name, v in model.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    for code in (attentive_pooling.__file__, heads.__file__):
        shutil.copy(code, folder)


def head_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of our own head, without the backbone's."""
    state = model.state_dict()
    return {k: v.contiguous().cpu() for k, v in state.items() if not k.startswith("backbone.")}


def load_exported(
    folder: str | Path, *, attn_implementation: Attention = "sdpa"
) -> tuple[nn.Module, Any, Task]:
    """Model, tokenizer and task of a folder that `export` wrote."""
    folder = Path(folder)
    unusable = ModelError(
        "the folder does not hold a complete exported model",
        folder=folder,
        fix="give the folder that `export` wrote, unchanged",
    )
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if card.pop("version") != 1:
            raise unusable
        pooling = card.pop("pooling")
        task = KINDS[card["kind"]](**card | {"labels": tuple(card["labels"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unusable from error
    base = adapter_files.base_of(folder)
    if pooling == "attentive" and base is None:
        return *_read_attentive(folder, attn_implementation, unusable), task
    tokenizer = load_tokenizer(ModelSettings(name=str(folder)))
    model = load_model(
        ModelSettings(name=str(base or folder), freeze_embeddings=False),
        task,
        tokenizer,
        0,
        attn_implementation=attn_implementation,
        pooling=pooling,
        complete=base is None,
    )
    if base is not None:
        model = adapter_files.read(model, folder)
    if isinstance(model, AttentiveClassifier | NewsRanker):
        try:
            state = load_file(folder / HEAD)
            if set(state) != set(head_state(model)):
                raise unusable
            model.load_state_dict(state, strict=False)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise unusable from error
    return model, tokenizer, task


def _read_attentive(folder: Path, attention: Attention, unusable: ModelError) -> tuple[Any, Any]:
    try:
        with quiet():
            whole, info = AttentiveForSequenceClassification.from_pretrained(
                folder, attn_implementation=attention, output_loading_info=True
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise unusable from error
    if info["missing_keys"] or info["mismatched_keys"]:
        raise unusable
    return whole.eval().model, tokenizer
