"""The parts of a transformer: embeddings, layers, their units, what is trained; cuts to a depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and len(module) == body.config.num_hidden_layers:
            return module
    raise ModelError(
        "the encoder's layers cannot be told apart",
        model=type(body).__name__,
        fix="use a BERT-like encoder: BERT, RoBERTa, DistilBERT, ELECTRA",
    )


def depth(model: nn.Module) -> int:
    """How many encoder layers the model has."""
    return len(encoder_layers(model))


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
    """Keep the first `layers` encoder layers, in place; names of what stays do not change."""
    kept = encoder_layers(model)
    require_depth(layers, len(kept))
    body = body_of(model)
    for module in body.modules():
        for name, child in module.named_children():
            if child is kept:
                setattr(module, name, kept[:layers])
    body.config.num_hidden_layers = layers
    return model


def freeze_embeddings(model: nn.Module) -> None:
    """Take the embeddings out of training, and so out of everything that is sent."""
    embeddings(model).requires_grad_(False)


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
