"""Inputs of an encoder's layers: embedding tables, and rows of updates that depend on inputs.

An adapter sees its layer's inputs x as A·x, so its updates depend on that view of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.audits.findings import Arrays
from secure_fl.learning.anatomy import (
    ADAPTER,
    adapted,
    body_of,
    embeddings,
    encoder_layers,
    unwrapped,
)

Array = NDArray[np.float64]
PROJECTIONS = ("query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tables of a BERT-like encoder that make the first layer's inputs."""

    words: Array  # V x d
    places: Array  # L x d: rows of positions, with the token type's row added
    γ: Array
    β: Array
    ε: float

    def rows(self, tokens: Any, places: Any) -> Array:
        """Compute the first layer's inputs for these tokens at these places."""
        x: Array = self.words[tokens] + self.places[places]
        x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.ε)
        return np.asarray(x / scale * self.γ + self.β)


def array(tensor: Tensor) -> Array:
    """Convert a tensor to an array in double precision."""
    return np.asarray(tensor.detach().cpu().numpy(), np.float64)


def word_table(model: nn.Module) -> tuple[str, Array]:
    """Find the word embedding: its name among the parameters, and its rows."""
    weight = body_of(model).get_input_embeddings().weight
    names = [name for name, value in unwrapped(model).named_parameters() if value is weight]
    return names[0], array(weight)


def inputs_of(model: nn.Module, kind: int = 0) -> Inputs | None:
    """Collect the tables for tokens of this type; None: the embedding is not like BERT's."""
    layer: Any = embeddings(model)
    parts = [getattr(layer, name, None) for name in ("word_embeddings", "position_embeddings")]
    norm = getattr(layer, "LayerNorm", None)
    width = getattr(getattr(body_of(model), "config", None), "hidden_size", None)
    if norm is None or norm.weight.shape[0] != width:
        return None
    word, place = parts
    if word is None or place is None:
        return None
    words, places = array(word.weight), array(place.weight)
    if (padding := getattr(place, "padding_idx", None)) is not None:
        places = places[padding + 1 :]  # RoBERTa's positions begin after the padding's
    types = getattr(layer, "token_type_embeddings", None)
    if types is not None:
        places = places + array(types.weight)[min(kind, len(types.weight) - 1)]
    return Inputs(words, places, array(norm.weight), array(norm.bias), float(norm.eps))


def attention_names(model: nn.Module, layer: int = 0) -> tuple[str, ...]:
    """List the names of one layer's query, key and value weights among the parameters."""
    inside = {id(parameter) for parameter in encoder_layers(model)[layer].parameters()}
    return tuple(
        name
        for name, value in unwrapped(model).named_parameters()
        if id(value) in inside and module_of(name) in PROJECTIONS and name.endswith("weight")
    )


def module_of(name: str) -> str:
    """Name the module of a weight; inside an adapter's layer, that layer."""
    return name.replace(".base_layer.", ".").split(".")[-2]


def row_values(values: Arrays, names: Sequence[str], width: int) -> dict[str, Array]:
    """Collect moves of these weights, or their right factors: one column for each input."""
    rows = {}
    for key in sorted(values):
        if key.split("|")[0] in names and values[key].ndim == 2 and values[key].shape[1] == width:
            rows[key] = np.asarray(values[key], np.float64)
    return rows


def adapter_views(model: nn.Module, names: Sequence[str]) -> dict[str, Array]:
    """Collect the A of each of these weights' adapters, which is public before the first step."""
    layers = adapted(model)
    stems = {name: name.removesuffix(".base_layer.weight") for name in names}
    return {n: array(layers[s].lora_A[ADAPTER].weight) for n, s in stems.items() if s in layers}


def adapter_rows(values: Arrays, name: str, A: Array) -> Array:
    """Collect the rows of B's move, or of right factors of a product B·A, along A."""
    stem = name.removesuffix(".base_layer.weight")
    B = [values[n] for n in (f"{stem}.lora_B.{ADAPTER}.weight",) if n in values]
    products = row_values(values, (name,), A.shape[1]).values()
    rows = [*B, *(product @ np.linalg.pinv(A) for product in products)]
    return np.concatenate([np.zeros((0, len(A))), *(np.asarray(r, np.float64) for r in rows)])


def with_factors(values: Arrays, model: nn.Module) -> Arrays:
    """Add the moves of each B whose product (α/r)·B·A was read, since A is public."""
    completed = dict(values)
    for name, layer in adapted(model).items():
        product = values.get(f"{name}.base_layer.weight")
        if product is not None and product.shape == tuple(layer.base_layer.weight.shape):
            A = array(layer.lora_A[ADAPTER].weight)
            B = product @ np.linalg.pinv(A) / layer.scaling[ADAPTER]
            completed[f"{name}.lora_B.{ADAPTER}.weight"] = B
    return completed
