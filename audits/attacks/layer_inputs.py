"""What enters a BERT-like encoder's first layer: words, positions, and their norm, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.learning.anatomy import body_of, embeddings, encoder_layers, unwrapped

Array = NDArray[np.float64]
PROJECTIONS = ("query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tables that are added and normalised to the first layer's inputs."""

    words: Array  # V x d
    places: Array  # L x d: position i's row, with the token type's already added
    γ: Array
    β: Array
    ε: float

    def rows(self, tokens: Any, places: Any) -> Array:
        """The first layer's inputs for these tokens at these places."""
        x: Array = self.words[tokens] + self.places[places]
        x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.ε)
        return np.asarray(x / scale * self.γ + self.β)


def array(tensor: Tensor) -> Array:
    """A tensor's values in double precision."""
    return np.asarray(tensor.detach().cpu().numpy(), np.float64)


def word_table(model: nn.Module) -> tuple[str, Array]:
    """The word embedding's name among the parameters, and its rows."""
    weight = body_of(model).get_input_embeddings().weight
    names = [name for name, value in unwrapped(model).named_parameters() if value is weight]
    return names[0], array(weight)


def inputs_of(model: nn.Module, kind: int = 0) -> Inputs | None:
    """The tables of tokens of this type; None: an embedding of another shape than BERT's."""
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
        places = places[padding + 1 :]  # RoBERTa's positions begin behind the padding's
    types = getattr(layer, "token_type_embeddings", None)
    if types is not None:
        places = places + array(types.weight)[min(kind, len(types.weight) - 1)]
    return Inputs(words, places, array(norm.weight), array(norm.bias), float(norm.eps))


def attention_names(model: nn.Module, layer: int = 0) -> tuple[str, ...]:
    """The query, key and value weights of one layer, by their names among the parameters."""
    inside = {id(parameter) for parameter in encoder_layers(model)[layer].parameters()}
    return tuple(
        name
        for name, value in unwrapped(model).named_parameters()
        if id(value) in inside and module_of(name) in PROJECTIONS and name.endswith("weight")
    )


def module_of(name: str) -> str:
    """What the module of a weight is called; inside an adapter's layer, that layer."""
    return name.replace(".base_layer.", ".").split(".")[-2]
