"""The parts of a transformer: embeddings, layers, their units, what is trained; cuts to a depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from secure_fl.errors import ModelError


def body_of(model: nn.Module) -> Any:
    """Return the encoder inside a model with a head; a bare encoder is its own."""
    model = unwrapped(model)
    return getattr(model, "backbone", None) or getattr(model, "base_model", model)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside Opacus' wrapper, whose prefix would change parameter names."""
    inner: nn.Module = getattr(model, "_module", model)
    return inner


def encoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the transformer's layers, from the embeddings up."""
    body = body_of(model)
    found, one = _stack(body), repeats(body.config)
    if found is None or one:
        reason = ": one layer's weights serve at all depths" if one else ""
        raise ModelError(
            f"the model's layers cannot be told apart{reason}",
            model=type(body).__name__,
            fix="use a model that has a list of layers, each with its own weights: see "
            "docs/models.md",
        )
    return found


def _stack(body: Any) -> nn.ModuleList | None:
    """The list of a body's layers."""
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and (
            repeats(body.config) or len(module) == body.config.num_hidden_layers
        ):
            return module
    return None


def repeats(config: Any) -> bool:
    """Whether one layer's weights serve at every depth (ALBERT's do): a cut repeats it less."""
    return getattr(config, "num_hidden_groups", None) == 1


def depth(model: nn.Module) -> int:
    """How many layers the model has."""
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
    """Return the module that turns token ids into the first hidden states."""
    body = body_of(model)
    module: nn.Module = getattr(body, "embeddings", None) or body.get_input_embeddings()
    return module


def cut(model: nn.Module, layers: int) -> nn.Module:
    """Keep the first `layers` layers, in place; names of what stays do not change."""
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
    """Give a model the embeddings and layers of a cut of it: from now on both are made of them."""
    layers = zip(encoder_layers(model), encoder_layers(first), strict=False)
    given = {id(old): new for old, new in [(embeddings(model), embeddings(first)), *layers]}
    for module in list(model.modules()):
        for name, child in module.named_children():
            if id(child) in given:
                setattr(module, name, given[id(child)])


def shorten(config: Any, layers: int) -> None:
    """Make a configuration say that so many layers are left: one entry each, where it lists them.

    Such lists are the kinds of attention (`layer_types`) or its widths; token ids are none.
    """
    before = config.num_hidden_layers
    for name, value in config.to_dict().items():
        listed = isinstance(value, list | tuple) and len(value) == before
        if listed and not name.endswith(("token_id", "architectures")):
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers


def freeze_embeddings(model: nn.Module) -> None:
    """Take the embeddings out of training, and so out of everything that is sent.

    With words go the tables of positions, which BERT has among its embeddings and others beside
    them, their norms, and in a model that writes the table by which it chooses words.
    """
    embeddings(model).requires_grad_(False)
    if (words := word_output(model)) is not None:
        words.requires_grad_(False)
    for owner, part in around_layers(model):
        if part == "embeddings":
            owner.requires_grad_(False)


def word_output(model: nn.Module) -> nn.Module | None:
    """The layer that scores every word as the next; None: the model does not write."""
    ask = getattr(unwrapped(model), "get_output_embeddings", None)
    found: nn.Module | None = ask() if ask is not None else None
    return found


def around_layers(model: nn.Module) -> Iterator[tuple[nn.Module, Literal["embeddings", "norm"]]]:
    """Tables and norms of the body that are in no layer: what feeds the layers, and what ends them.

    A norm ends the layers if it is defined behind them, unless tables stand beside it without the
    words' among them: then it is theirs (DeBERTa's relative positions).
    """
    body = body_of(model)
    order, layers, words = list(body.modules()), _stack(body), body.get_input_embeddings()
    ends = len(order) if layers is None else order.index(layers)
    inner = {id(m) for top in (layers, getattr(body, "pooler", None)) if top for m in top.modules()}
    for module in (module for module in order if id(module) not in inner):
        tables = [child for child in module.children() if isinstance(child, nn.Embedding)]
        theirs = bool(tables) and words not in tables
        for child in module.children():
            if isinstance(child, nn.Embedding):
                yield child, "embeddings"
            elif is_norm(child) and id(child) not in inner:
                yield child, "norm" if order.index(child) > ends and not theirs else "embeddings"


def is_norm(module: nn.Module) -> bool:
    """Whether all that a module has is one vector or two, whatever its class is called."""
    own = [parameter.dim() for parameter in module.parameters(recurse=False)]
    return own in ([1], [1, 1]) and not any(True for _ in module.children())


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Name -> parameter of all that is trained, in the order of definition."""
    named = unwrapped(model).named_parameters()
    return {name: value for name, value in named if value.requires_grad}


@dataclass(frozen=True, slots=True)
class Block:
    """Where a layer makes units and uses them; `heads` names the module that cuts into heads."""

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
        "heads and intermediate units cannot be told apart",
        model=type(layer).__name__,
        fix="use a BERT-like encoder: BERT, RoBERTa, DistilBERT, ELECTRA",
    )
