"""Adapters as a folder that `peft` loads, around their base; and read again, or merged into it.

`PeftModel.from_pretrained(base, folder)` gives the model. `base` is the checkpoint that the
folder's adapter_config.json names; where it names none (a built-in model, one cut to a depth, one
with other weights that no checkpoint holds), the base lies in the folder's base/.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from secure_fl.learning.adapters import ADAPTER, adapted, config_of, output_layer, peft
from secure_fl.learning.anatomy import word_output
from secure_fl.learning.quantised import restore

CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base"


def write(model: Any, folder: Path) -> None:
    """Write the adapters, the output layer, and the base where no checkpoint is it."""
    config, output, layers = config_of(model), output_layer(model), adapted(model)
    ranks = {name: int(layer.r[ADAPTER]) for name, layer in layers.items()}
    other = {name: rank for name, rank in ranks.items() if rank != config.r}
    saved = replace(
        config,
        inference_mode=True,
        modules_to_save=[_apart(output, model)] if output else None,
        task_type=None if word_output(model) is None else "CAUSAL_LM",
        rank_pattern=other,
        alpha_pattern={n: layers[n].scaling[ADAPTER] * rank for n, rank in other.items()},
    )
    weights = peft().get_peft_model_state_dict(model, adapter_name=ADAPTER)
    if output:
        head = model.get_submodule(output).state_dict()
        weights |= {f"{output}.{name}": value for name, value in head.items()}
    named = {f"base_model.model.{n}": w.detach().cpu().contiguous() for n, w in weights.items()}
    save_file(named, folder / WEIGHTS)
    saved.save_pretrained(folder)
    model.config.save_pretrained(folder)
    if config.base_model_name_or_path is None:
        model.save_pretrained(folder / BASE, state_dict=frozen(model))


def _apart(output: str, model: nn.Module) -> str:
    """The output layer's name as `peft` finds it, by its end: DistilBERT has a pre_classifier."""
    alike = [name for name, _ in model.named_modules() if name.endswith(output)]
    return output if len(alike) == 1 else f"model.{output}"


def frozen(model: nn.Module) -> dict[str, Tensor]:
    """The weights without adapters, under the names they have in a model without."""
    return {
        name.replace(".base_layer.", "."): weight
        for name, weight in model.state_dict().items()
        if ".lora_" not in name
    }


def base_of(folder: Path) -> str | None:
    """The name or folder of the base of these adapters; None: the folder holds no adapters."""
    if not (folder / CONFIG).exists():
        return None
    named = peft().PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    return named or str(folder / BASE)


def read(model: Any, folder: Path) -> nn.Module:
    """The model with the adapters of a folder merged into it."""
    holder = getattr(model, "backbone", model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`")  # peft asks transformers
        whole: nn.Module = peft().PeftModel.from_pretrained(holder, str(folder)).merge_and_unload()
    if holder is not model:
        model.backbone, whole = whole, model
    return whole.eval()


def merged(model: nn.Module) -> nn.Module:
    """A copy of a model whose adapters are part of its weights, in float32."""
    copy = deepcopy(model).float()
    restore(copy)
    for name, layer in adapted(copy).items():
        layer.merge()
        copy.set_submodule(name, layer.get_base_layer())
    return copy
