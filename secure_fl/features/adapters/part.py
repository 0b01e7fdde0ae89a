"""Adapters as a part of models: added to linear layers, written, read again, and merged.

Hu et al.: LoRA, arXiv 2106.09685: W + (α/r)·B·A, with B = 0 at first. FFA (Sun et al., arXiv
2403.12313) freezes A; DoRA (Liu et al., arXiv 2402.09353) trains magnitudes separately. Besides the
adapters, the output layer is trained, because no checkpoint holds it.

A written folder is one for `peft`: `PeftModel.from_pretrained(base, folder)` gives the model. Its
adapter_config.json names the checkpoint that is the base. Where it names none (a built-in model, a
cut one, or one with weights that no checkpoint holds), the base is the folder's base/.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from secure_fl.errors import ModelError
from secure_fl.features.adapters.adapter_layers import redraw
from secure_fl.learning.anatomy import (
    ADAPTER,
    adapted,
    base_state,
    body_of,
    encoder_layers,
    unwrapped,
    word_output,
)
from secure_fl.settings import ModelSettings

field = "adapter"  # of [model]: this module is a `learning.models.ModelPart`
CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base"


def peft() -> Any:
    """Import `peft`, an extra that takes seconds to import."""
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            "adapters need the library peft, which is not installed",
            field="model.adapter",
            fix="from a checkout: pip install --constraint constraints.txt '.[adapters]'; or "
            "remove [model.adapter]",
        ) from error
    return peft


def add(model: nn.Module, spec: ModelSettings, seed: int, fresh: Iterable[str]) -> None:
    """Freeze the model in place, and add the settings' adapters to its linear layers.

    `fresh`: the parameters that no checkpoint gave. Equal seeds give equal adapters everywhere.
    """
    settings = spec.adapter
    if settings is None:
        return
    output, fresh = output_layer(model), set(fresh)
    names = targets(model, settings.targets, output, fresh, settings.last)
    model.requires_grad_(False)
    config = peft().LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or 2 * settings.rank,
        lora_dropout=settings.dropout,
        use_dora=settings.kind == "dora",
        target_modules=names,
        fan_in_fan_out=not isinstance(model.get_submodule(names[0]), nn.Linear),
        base_model_name_or_path=spec.name if _has_checkpoint(spec, output, fresh) else None,
    )
    peft().inject_adapter_in_model(config, model)
    for name, layer in adapted(model).items():
        redraw(layer, f"{seed}/{name}")
        layer.lora_A[ADAPTER].requires_grad_(settings.kind != "ffa")
    if settings.base == "bfloat16":
        _halve(model)
    if output:
        model.get_submodule(output).requires_grad_(True)


def _has_checkpoint(spec: ModelSettings, output: str, fresh: Iterable[str]) -> bool:
    """Check that the frozen weights are those of a published checkpoint."""
    changed = spec.fresh or spec.layers is not None
    return not changed and all(output and name.startswith(f"{output}.") for name in fresh)


def output_layer(model: nn.Module) -> str:
    """The last linear layer after the transformer; empty: no head, or one that scores words."""
    body, inner = body_of(model), unwrapped(model)
    if word_output(model) is not None:
        return ""
    inside = set(body.modules()) if body is not inner else set(inner.modules())
    after = [n for n, m in inner.named_modules() if isinstance(m, nn.Linear) and m not in inside]
    return after[-1] if after else ""


def targets(
    model: nn.Module, kind: str, output: str, fresh: Container[str] = (), last: int | None = None
) -> list[str]:
    """The linear layers of all attentions; "linear": all layers, also between body and output.

    A layer before the output that no checkpoint gave is always a target, because it must learn.
    `last`: only so many layers of the encoder, from its end; None: all.
    """
    layers, body = encoder_layers(model), body_of(model)
    early = {m for layer in layers[: -last if last else 0] for m in layer.modules()}
    inner = {name for layer in layers for name, m in layer.named_modules() if _is_linear(m)}
    if kind == "attention":
        inner = {name for name in inner if "att" in name}  # attention.self.query, attn.Wqkv
    if not inner:
        raise _no_attention(body)
    pooler = getattr(body, "pooler", None)
    outside = set(unwrapped(model).modules()) - set(body.modules())
    outside |= set() if pooler is None else set(pooler.modules())
    words = word_output(model)
    return sorted(
        name
        for name, module in unwrapped(model).named_modules()
        if _is_linear(module)
        and name != output
        and module is not words
        and module not in early
        and (
            (kind == "linear" or f"{name}.weight" in fresh)
            if module in outside
            else any(name.endswith(f".{n}") for n in inner)
        )
    )


def _no_attention(body: nn.Module) -> ModelError:
    return ModelError(
        "no linear layer of an attention was found, so there is nothing to adapt",
        model=type(body).__name__,
        field="model.adapter.targets",
        fix='set targets = "linear", or use a transformer whose layers hold an attention',
    )


def _is_linear(module: nn.Module) -> bool:
    """Check for a matrix product: `nn.Linear`, or GPT-2's transposed kind of it."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def config_of(model: nn.Module) -> Any:
    """The `peft` configuration of the model's adapters."""
    for module in (unwrapped(model), body_of(model)):
        configs = getattr(module, "peft_config", None)
        if configs is not None:
            return configs[ADAPTER]
    return None


def _halve(model: nn.Module) -> None:
    """Keep the frozen transformer in bfloat16; its output is float32 again, for the head."""
    body, words = body_of(model), word_output(model)
    for parameter in body.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    if words is not None:  # its table may also be the word embeddings
        words.bfloat16().register_forward_pre_hook(_narrowed)
        words.register_forward_hook(lambda *ends: ends[-1].float())
    for layer in adapted(body).values():  # a frozen A is not part of the base
        layer.lora_A[ADAPTER].float()
    body.register_forward_hook(_widened)


def _narrowed(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Convert the inputs to bfloat16."""
    return tuple(value.bfloat16() for value in inputs)


def _widened(body: nn.Module, inputs: Any, output: Any) -> Any:
    """Convert the transformer's output to float32."""
    for name, value in output.items():
        if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
            output[name] = value.float()
        elif isinstance(value, tuple):
            output[name] = tuple(v.float() if isinstance(v, Tensor) else v for v in value)
    return output


def write(model: Any, folder: Path) -> None:
    """Write the adapters and the output layer, and the base where no checkpoint holds it."""
    config, output, layers = config_of(model), output_layer(model), adapted(model)
    writes = word_output(model) is not None and model.can_generate()
    ranks = {name: int(layer.r[ADAPTER]) for name, layer in layers.items()}
    other = {name: rank for name, rank in ranks.items() if rank != config.r}
    saved = replace(
        config,
        inference_mode=True,
        modules_to_save=[_unambiguous(output, model)] if output else None,
        task_type="CAUSAL_LM" if writes else None,
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
        model.save_pretrained(folder / BASE, state_dict=base_state(model))


def _unambiguous(output: str, model: nn.Module) -> str:
    """The output layer's name for `peft`, which compares ends: DistilBERT has a pre_classifier."""
    alike = [name for name, _ in model.named_modules() if name.endswith(output)]
    return output if len(alike) == 1 else f"model.{output}"


def base_of(folder: Path) -> str | None:
    """The name or folder of the base of a folder's adapters; None: the folder holds none."""
    if not (folder / CONFIG).exists():
        return None
    named = peft().PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    return named or str(folder / BASE)


def read(model: Any, folder: Path) -> nn.Module:
    """Merge a folder's adapters into a model; without safetensors `peft` would unpickle them."""
    if not (folder / WEIGHTS).exists():
        raise ModelError(
            f"the folder of adapters has no {WEIGHTS}",
            model=str(folder),
            fix="save the adapters again with save_pretrained of peft, which writes this file",
        )
    holder = getattr(model, "backbone", model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`")  # peft asks transformers
        merged: nn.Module = peft().PeftModel.from_pretrained(holder, str(folder)).merge_and_unload()
    if holder is not model:
        model.backbone, merged = merged, model
    return merged.eval()


def merged(model: nn.Module) -> nn.Module:
    """A copy of a model in float32 with its adapters merged into its weights."""
    copy = deepcopy(model).float()
    for name, layer in adapted(copy).items():
        layer.merge()
        copy.set_submodule(name, layer.get_base_layer())
    for module in (unwrapped(copy), body_of(copy)):
        vars(module).pop("peft_config", None)  # other adapters can then be added
    return copy


def averaging(spec: ModelSettings) -> Any:
    """The party program of FedAvg for exact sums of adapters; None: their weights are averaged."""
    if spec.adapter is None or spec.adapter.kind != "exact":
        return None
    from secure_fl.features.adapters.exact_average import average

    return average
