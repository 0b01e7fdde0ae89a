"""Parts of a transformer: embeddings, encoder layers, norm, pooler and head.

InclusiveFL shares embeddings and lower encoder layers between models of different depth. Parties
with label sets of their own do not send their output layers.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from torch import nn

from secure_fl.errors import ModelError
from secure_fl.learning.anatomy import (
    around_layers,
    body_of,
    embeddings,
    encoder_layers,
    trainable,
    unwrapped,
    word_output,
)

Part: TypeAlias = int | Literal["embeddings", "norm", "pooler", "head"]  # int: layer, from 0

# Names of modules around the body, in transformers and `tasks.heads`.
_OUTPUT = ("classifier", "out_proj", "score")
_THEIRS = ("dense", "head", "pooler", "pre_classifier")
_POOLER = (*_THEIRS, "pooling", "title_pooling", "user_pooling", "newcomer")


def part_of(model: nn.Module) -> dict[str, Part]:
    """Map the name of every trained parameter to its part.

    The norm follows the last layer and is isolated like it. The pooler turns hidden states into
    one vector, the head turns that vector into scores. Only the head's size depends on the labels.
    """
    inside = _inside(model)
    return {
        name: inside[id(value)] if id(value) in inside else _around(model, name)
        for name, value in trainable(model).items()
    }


def head_names(model: nn.Module) -> set[str]:
    """Return the output layer's parameters, which depend on the labels (ranking has none)."""
    inside = {id(parameter) for parameter in body_of(model).parameters()}
    outside = {name for name, value in trainable(model).items() if id(value) not in inside}
    return {name for name in outside if _around(model, name) == "head"}


def _inside(model: nn.Module) -> dict[int, Part]:
    """Map each parameter of the body, by its identity, to its part."""
    body: Any = body_of(model)
    modules: list[tuple[nn.Module | None, Part]] = [
        (embeddings(model), "embeddings"),
        *around_layers(model),
        (getattr(body, "embeddings_project", None), "embeddings"),  # ELECTRA's, to layer width
        (getattr(body, "pooler", None), "pooler"),
        *((layer, index) for index, layer in enumerate(encoder_layers(model))),
    ]
    return {id(p): part for module, part in modules if module for p in module.parameters()}


def _around(model: nn.Module, name: str) -> Part:
    """Return the part of a parameter outside the body, by the names of its modules."""
    body, full = body_of(model), unwrapped(model)
    inside = {id(parameter) for parameter in body.parameters()} if body is not full else set()
    path = name.split(".")[:-1]
    parameter, words = full.get_parameter(name), word_output(full)
    if words is not None and id(parameter) not in inside:
        return "head" if any(parameter is p for p in words.parameters()) else "pooler"
    if id(parameter) not in inside and path:
        if path[-1] in _OUTPUT:
            return "head"
        if path[-1] in _POOLER or path[0] in _POOLER:
            return "pooler"
    raise ModelError(
        "this parameter belongs to no known part (embeddings, layer, norm, pooler or head), so it "
        "is unclear which parties can share it",
        model=type(full).__name__,
        parameter=name,
        fix="use a model from docs/models.md, or an algorithm that shares whole models",
    )
