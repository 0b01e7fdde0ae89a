"""Which part of a transformer each of its trained parameters belongs to.

InclusiveFL shares embeddings and lower encoder layers over models of different depth, HeteroFL
cuts widths by part, and parties with label sets of their own keep their output layers at home.
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

# Modules around the body, by the names that transformers and `tasks.heads` give them.
_OUTPUT = ("classifier", "out_proj", "score")
_THEIRS = ("dense", "head", "pooler", "pre_classifier")
_POOLER = (*_THEIRS, "pooling", "title_pooling", "user_pooling", "newcomer")


def part_of(model: nn.Module) -> dict[str, Part]:
    """Name -> part of every trained parameter.

    The norm ends the last layer, and is as isolated as that one; the pooler is all that turns
    hidden states into one vector, the head what turns that vector into scores: the size of the
    head alone depends on the labels.
    """
    inside = _inside(model)
    return {
        name: inside[id(value)] if id(value) in inside else _around(model, name)
        for name, value in trainable(model).items()
    }


def head_names(model: nn.Module) -> set[str]:
    """The output layer's parameters: all that depends on the labels (ranking has none)."""
    inside = {id(parameter) for parameter in body_of(model).parameters()}
    outside = {name for name, value in trainable(model).items() if id(value) not in inside}
    return {name for name in outside if _around(model, name) == "head"}


def _inside(model: nn.Module) -> dict[int, Part]:
    """The part of each parameter of the body, by the parameter's identity."""
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
    """The part of a parameter outside of the body, by the names of its modules."""
    body, whole = body_of(model), unwrapped(model)
    own = {id(parameter) for parameter in body.parameters()} if body is not whole else set()
    path = name.split(".")[:-1]
    parameter, words = whole.get_parameter(name), word_output(whole)
    if words is not None and id(parameter) not in own:
        return "head" if any(parameter is one for one in words.parameters()) else "pooler"
    if id(parameter) not in own and path:
        if path[-1] in _OUTPUT:
            return "head"
        if path[-1] in _POOLER or path[0] in _POOLER:
            return "pooler"
    raise ModelError(
        "this parameter is neither of the embeddings, nor of one layer, nor of the norm behind "
        "them, nor of a known head, so it is not clear with whom it can be shared",
        model=type(whole).__name__,
        parameter=name,
        fix="use a model that docs/models.md names, or an algorithm that shares whole models",
    )
