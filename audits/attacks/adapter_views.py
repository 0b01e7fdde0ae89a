"""What moves say of a layer's inputs: rows as wide as those, or as what an adapter sees of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from secure_fl.audits.attacks.layer_inputs import Array, array
from secure_fl.audits.findings import Arrays
from secure_fl.learning.anatomy import ADAPTER, adapted


def row_values(values: Arrays, names: Sequence[str], width: int) -> dict[str, Array]:
    """The moves of these weights, or right factors of them: what has a column for each input."""
    found = {}
    for key in sorted(values):
        if key.split("|")[0] in names and values[key].ndim == 2 and values[key].shape[1] == width:
            found[key] = np.asarray(values[key], np.float64)
    return found


def lenses_of(model: nn.Module, names: Sequence[str]) -> dict[str, Array]:
    """The A of each of these weights' adapters, as everybody knows it before the first step."""
    layers = adapted(model)
    stems = {name: name.removesuffix(".base_layer.weight") for name in names}
    return {n: array(layers[s].lora_A[ADAPTER].weight) for n, s in stems.items() if s in layers}


def adapter_rows(values: Arrays, name: str, A: Array) -> Array:
    """Rows that a move of B has, or that right factors of a product B·A have along A."""
    stem = name.removesuffix(".base_layer.weight")
    B = [values[n] for n in (f"{stem}.lora_B.{ADAPTER}.weight",) if n in values]
    products = row_values(values, (name,), A.shape[1]).values()
    found = [*B, *(rows @ np.linalg.pinv(A) for rows in products)]
    return np.concatenate([np.zeros((0, len(A))), *(np.asarray(b, np.float64) for b in found)])


def with_factors(values: Arrays, model: nn.Module) -> Arrays:
    """The moves of each B as well, where its product (α/r)·B·A was read: A is public."""
    found = dict(values)
    for name, layer in adapted(model).items():
        whole = values.get(f"{name}.base_layer.weight")
        if whole is not None and whole.shape == tuple(layer.base_layer.weight.shape):
            A = array(layer.lora_A[ADAPTER].weight)
            B = whole @ np.linalg.pinv(A) / layer.scaling[ADAPTER]
            found[f"{name}.lora_B.{ADAPTER}.weight"] = B
    return found
