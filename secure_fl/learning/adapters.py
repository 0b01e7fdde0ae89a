"""Adapters around a frozen transformer: small trained matrices, by `peft`, found by structure.

Hu et al.: LoRA, arXiv 2106.09685: W + (α/r)·B·A, with B = 0 at first. FFA (Sun et al., arXiv
2403.12313) freezes A; DoRA (Liu et al., arXiv 2402.09353) learns magnitudes apart. Beside adapters,
the output layer is trained whole, because no checkpoint holds it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.errors import ModelError
from secure_fl.learning import builtin
from secure_fl.learning.anatomy import body_of, encoder_layers, unwrapped, word_output
from secure_fl.learning.quantised import quantise
from secure_fl.settings import ModelSettings

ADAPTER = "default"  # peft's name of the only adapter there is
VOID = 1e-6  # of the largest singular value: directions below it are rounding


def peft() -> Any:
    """The library, which takes seconds to import and is an extra."""
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            "adapters need the library peft, which is not installed",
            field="model.adapter",
            fix="from a checkout: pip install --constraint constraints.txt '.[adapters]'; or leave "
            "out [model.adapter]",
        ) from error
    return peft


def adapt(model: nn.Module, spec: ModelSettings, seed: int, fresh: Iterable[str]) -> None:
    """Freeze the model in place, and put adapters of the settings around its linear layers.

    `fresh`: the parameters that no checkpoint gave. Equal seeds give equal adapters everywhere.
    """
    settings = spec.adapter
    if settings is None:
        return
    output, fresh = output_layer(model), set(fresh)
    named = targets(model, settings.targets, output, fresh)
    model.requires_grad_(False)
    config = peft().LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or 2 * settings.rank,
        lora_dropout=settings.dropout,
        use_dora=settings.kind == "dora",
        target_modules=named,
        fan_in_fan_out=not isinstance(model.get_submodule(named[0]), nn.Linear),
        base_model_name_or_path=spec.name if _reached(spec, output, fresh) else None,
    )
    peft().inject_adapter_in_model(config, model)
    for name, layer in adapted(model).items():
        redraw(layer, f"{seed}/{name}")
        layer.lora_A[ADAPTER].requires_grad_(settings.kind != "ffa")
    if settings.base == "bfloat16":
        _halve(model)
    if settings.base == "int8":
        quantise(body_of(model))
    if output:
        model.get_submodule(output).requires_grad_(True)


def _reached(spec: ModelSettings, output: str, fresh: Iterable[str]) -> bool:
    """Whether the frozen weights are those of a checkpoint, as everybody has it."""
    ours = spec.fresh or spec.layers is not None
    return not ours and all(output and name.startswith(f"{output}.") for name in fresh)


def output_layer(model: nn.Module) -> str:
    """The last linear layer behind the transformer; empty: there is no head, or one of words."""
    body, whole = body_of(model), unwrapped(model)
    if word_output(model) is not None:
        return ""
    inside = set(body.modules()) if body is not whole else set(whole.modules())
    behind = [n for n, m in whole.named_modules() if isinstance(m, nn.Linear) and m not in inside]
    return behind[-1] if behind else ""


def targets(model: nn.Module, kind: str, output: str, fresh: Container[str] = ()) -> list[str]:
    """The linear layers of all attentions; or all of them, those before the output layer too.

    What stands before the output layer, and no checkpoint gave, must learn in any case.
    """
    layers, body = encoder_layers(model), body_of(model)
    inner = {name for layer in layers for name, m in layer.named_modules() if _is_linear(m)}
    if kind == "attention":
        inner = {name for name in inner if "att" in name}  # attention.self.query, attn.Wqkv
    if not inner:
        raise ModelError(
            "no linear layer of an attention was found, so there is nothing to adapt",
            model=type(body).__name__,
            field="model.adapter.targets",
            fix='set targets = "linear", or use a transformer whose layers hold an attention',
        )
    pooler = getattr(body, "pooler", None)
    behind = set(unwrapped(model).modules()) - set(body.modules())
    behind |= set() if pooler is None else set(pooler.modules())
    words = word_output(model)
    return sorted(
        name
        for name, module in unwrapped(model).named_modules()
        if _is_linear(module)
        and name != output
        and module is not words
        and (
            (kind == "linear" or f"{name}.weight" in fresh)
            if module in behind
            else any(name.endswith(f".{n}") for n in inner)
        )
    )


def _is_linear(module: nn.Module) -> bool:
    """Whether it multiplies by a matrix: `nn.Linear`, or GPT-2's transposed kind of it."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def adapted(model: nn.Module) -> dict[str, Any]:
    """Name -> layer with an adapter, in the order of definition; empty: the model has none."""
    return {n: m for n, m in unwrapped(model).named_modules() if hasattr(m, "lora_A")}


def config_of(model: nn.Module) -> Any:
    """What `peft` must know of the model's adapters; None: it has none."""
    for module in (unwrapped(model), body_of(model)):
        found = getattr(module, "peft_config", None)
        if found is not None:
            return found[ADAPTER]
    return None


@torch.no_grad()
def redraw(layer: Any, key: str) -> None:
    """Draw A anew, with the spread of a new linear layer's weights, and set B to zero."""
    A, B = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    if A.device.type != "meta":
        A.copy_(builtin.bell(A.shape, f"{key}/A", (3 * A.shape[1]) ** -0.5))
        B.zero_()


@torch.no_grad()
def set_product(layer: Any, Δ: Tensor) -> None:
    """Give a layer the adapter, of whatever rank it takes, that adds Δ to its weight."""
    U, S, V = torch.linalg.svd(Δ.T if layer.fan_in_fan_out else Δ, full_matrices=False)
    rank = max(1, int((S > VOID * S[0]).sum()))
    roots = S[:rank].sqrt()
    layer.lora_A[ADAPTER].weight = nn.Parameter(roots[:, None] * V[:rank])
    layer.lora_B[ADAPTER].weight = nn.Parameter(U[:, :rank] * roots)
    layer.r[ADAPTER], layer.scaling[ADAPTER] = rank, 1.0


def _halve(model: nn.Module) -> None:
    """Hold the frozen transformer in bfloat16; what leaves it is float32 again, for the head."""
    body, words = body_of(model), word_output(model)
    for parameter in body.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    if words is not None:  # its table may be the one that words come in by
        words.bfloat16().register_forward_pre_hook(_narrowed)
        words.register_forward_hook(lambda *ends: ends[-1].float())
    for layer in adapted(body).values():  # a frozen A is not the base's
        layer.lora_A[ADAPTER].float()
    body.register_forward_hook(_widened)


def _narrowed(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs in bfloat16."""
    return tuple(value.bfloat16() for value in inputs)


def _widened(body: nn.Module, inputs: Any, output: Any) -> Any:
    """The transformer's output in float32."""
    for name, value in output.items():
        if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
            output[name] = value.float()
        elif isinstance(value, tuple):
            output[name] = tuple(v.float() if isinstance(v, Tensor) else v for v in value)
    return output
