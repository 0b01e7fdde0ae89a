"""The parts of a transformer: embeddings, layers, their units, trained weights; cuts to a depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from secure_fl.errors import ModelError

ADAPTER = "default"  # peft's name of a model's only adapter


def body_of(model: nn.Module) -> Any:
    """The encoder inside a model with a head; a bare encoder itself."""
    model = unwrapped(model)
    return getattr(model, "backbone", None) or getattr(model, "base_model", model)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside Opacus' wrapper, whose prefix would change parameter names."""
    inner: nn.Module = getattr(model, "_module", model)
    return inner


def encoder_layers(model: nn.Module) -> nn.ModuleList:
    """The transformer's layers, from the embeddings up."""
    body = body_of(model)
    layers, repeated = _stack(body), repeats(body.config)
    if layers is None or repeated:
        reason = ": one layer's weights serve at all depths" if repeated else ""
        raise ModelError(
            f"the model's layers cannot be identified{reason}",
            model=type(body).__name__,
            fix="use a model that has a list of layers, each with its own weights: see "
            "docs/models.md",
        )
    return layers


def _stack(body: Any) -> nn.ModuleList | None:
    """The list of a body's layers."""
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and (
            repeats(body.config) or len(module) == body.config.num_hidden_layers
        ):
            return module
    return None


def repeats(config: Any) -> bool:
    """True if all depths share one layer's weights, as in ALBERT: a cut repeats the layer less."""
    return getattr(config, "num_hidden_groups", None) == 1


def depth(model: nn.Module) -> int:
    """The number of layers."""
    config = body_of(model).config
    return int(config.num_hidden_layers) if repeats(config) else len(encoder_layers(model))


def require_depth(layers: int, of: int) -> None:
    """Refuse to keep more layers than there are."""
    if not 1 <= layers <= of:
        raise ModelError(
            f"cannot keep {layers} of {of} encoder layers",
            field="model.layers",
            fix=f"choose 1 to {of}, or a deeper model",
        )


def embeddings(model: nn.Module) -> nn.Module:
    """The module that turns token ids into the first hidden states."""
    body = body_of(model)
    module: nn.Module = getattr(body, "embeddings", None) or body.get_input_embeddings()
    return module


def cut(model: nn.Module, layers: int) -> nn.Module:
    """Keep the first `layers` layers, in place; their names do not change."""
    body = body_of(model)
    require_depth(layers, depth(model))
    kept = None if repeats(body.config) else encoder_layers(model)
    for module in body.modules() if kept is not None else ():
        for name, child in module.named_children():
            if child is kept:
                setattr(module, name, kept[:layers])
    shorten(body.config, layers)
    return model


def begin_with(model: nn.Module, first: nn.Module) -> None:
    """Share a cut model's embeddings and layers with a model, in place of its first ones."""
    layers = zip(encoder_layers(model), encoder_layers(first), strict=False)
    shared = {id(old): new for old, new in [(embeddings(model), embeddings(first)), *layers]}
    for module in list(model.modules()):
        for name, child in module.named_children():
            if id(child) in shared:
                setattr(module, name, shared[id(child)])
    if word_output(model) is not None:  # it may be the table of word vectors
        unwrapped(model).tie_weights()  # type: ignore[operator]


def shorten(config: Any, layers: int) -> None:
    """Set a configuration's number of layers, and cut its lists with one entry per layer.

    These are lists of attention kinds (`layer_types`) or widths, but not of token ids.
    """
    before = config.num_hidden_layers
    for name, value in config.to_dict().items():
        listed = isinstance(value, list | tuple) and len(value) == before
        if listed and not name.endswith(("token_id", "architectures")):
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers


def freeze_embeddings(model: nn.Module) -> None:
    """Exclude the embeddings from training, and so from everything that is sent.

    This includes tables of positions (inside or outside the embeddings), their norms, and the
    output table of a model that generates words.
    """
    embeddings(model).requires_grad_(False)
    if (words := word_output(model)) is not None:
        words.requires_grad_(False)
    for owner, part in around_layers(model):
        if part == "embeddings":
            owner.requires_grad_(False)


def word_output(model: nn.Module) -> nn.Module | None:
    """The layer that scores every word as the next one; None: the model does not generate text."""
    get = getattr(unwrapped(model), "get_output_embeddings", None)
    layer: nn.Module | None = get() if get is not None else None
    return layer


def around_layers(model: nn.Module) -> Iterator[tuple[nn.Module, Literal["embeddings", "norm"]]]:
    """The body's tables and norms outside its layers, each as input ("embeddings") or final "norm".

    A norm that is defined after the layers is final, unless its module also holds tables other than
    the words': then it belongs to them (DeBERTa's relative positions).
    """
    body = body_of(model)
    order, layers, words = list(body.modules()), _stack(body), body.get_input_embeddings()
    ends = len(order) if layers is None else order.index(layers)
    inner = {id(m) for top in (layers, getattr(body, "pooler", None)) if top for m in top.modules()}
    for module in (module for module in order if id(module) not in inner):
        tables = [child for child in module.children() if isinstance(child, nn.Embedding)]
        of_tables = bool(tables) and words not in tables
        for child in module.children():
            if isinstance(child, nn.Embedding):
                yield child, "embeddings"
            elif is_norm(child) and id(child) not in inner:
                yield child, "norm" if order.index(child) > ends and not of_tables else "embeddings"


def is_norm(module: nn.Module) -> bool:
    """True for a module with one or two vectors and nothing else, whatever its class."""
    dims = [parameter.dim() for parameter in module.parameters(recurse=False)]
    return dims in ([1], [1, 1]) and not any(True for _ in module.children())


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Name -> trained parameter, in the order of definition."""
    named = unwrapped(model).named_parameters()
    return {name: value for name, value in named if value.requires_grad}


def adapted(model: nn.Module) -> dict[str, Any]:
    """Name -> layer with an adapter, in the order of definition."""
    return {n: m for n, m in unwrapped(model).named_modules() if hasattr(m, "lora_A")}


def base_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights without adapters, under the names that they have in a model without adapters."""
    return {
        name.replace(".base_layer.", "."): weight
        for name, weight in model.state_dict().items()
        if ".lora_" not in name
    }


@dataclass(frozen=True, slots=True)
class Block:
    """Names of the modules that make a layer's units, use them, and split them into heads."""

    makes: tuple[str, ...]
    uses: str
    heads: str | None = None


# BERT, RoBERTa and ELECTRA; DistilBERT
FAMILIES = (
    (
        Block(
            ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attention.output.dense",
            "attention.self",
        ),
        Block(("intermediate.dense",), "output.dense"),
    ),
    (
        Block(
            ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "attention.out_lin",
            "attention",
        ),
        Block(("ffn.lin1",), "ffn.lin2"),
    ),
)


def blocks(layer: nn.Module) -> tuple[Block, ...]:
    """The attention and feed-forward blocks of an encoder layer."""
    modules = dict(layer.named_modules())
    for family in FAMILIES:
        if all(name in modules for block in family for name in (*block.makes, block.uses)):
            return family
    raise ModelError(
        "heads and intermediate units cannot be identified",
        model=type(layer).__name__,
        fix="use a BERT-like encoder: BERT, RoBERTa, DistilBERT, ELECTRA",
    )
