"""Inputs of an encoder's layers, and the spans of updates in which such inputs lie.

An adapter sees its layer's inputs x as A·x, so its updates depend on that view of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import chi2
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
CHANCE_HIT = 0.1  # expected false hits in all words and places together
MARGIN = 1.3  # on the largest singular value of noise
TINY = 1e-300
FEWEST = 4  # values that can be recognised as noise
VOID = 1e-9  # of the largest singular value
BLOCK = 64  # places computed together


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


# --- spans of gradients: their numerical rank, and the (place, token) inputs that lie in them -----


def span_of(rows: dict[str, Array], weights: dict[str, Array], decay: float) -> Array:
    """Compute an orthonormal basis of the moves' row space, with or without weight decay.

    The decay is that of one step. The spectrum with the lower floor decides, since initial weights
    fill all columns.
    """
    bases = [_cut(np.concatenate(list(rows.values())))]
    if decay and rows.keys() <= weights.keys():
        bases.append(_cut(np.concatenate([row + decay * weights[n] for n, row in rows.items()])))
    return min(bases, key=lambda cut: cut[0])[1]


def _cut(G: Array) -> tuple[float, Array]:
    """Compute the floor of the spectrum, and the right singular vectors above it.

    The signal ends where the rest looks like rounding. The singular values of noise in n of d
    columns, over m ≥ n rows, end at √m + √n of its deviation. Their median is about √m for n ≪ m
    and 0.81·√m for n = m (Marchenko and Pastur, 1967).
    """
    _, S, V = np.linalg.svd(G, full_matrices=False)
    m, d = G.shape
    if not S.size or S[0] == 0:
        return 1.0, np.zeros((d, 0))
    S = np.maximum(S, VOID * S[0])
    for r in range(len(S) - FEWEST + 1):
        few, many = sorted((m, d - r))
        most, middle = sqrt(m) + sqrt(d - r), sqrt(many) * (1 - 0.19 * few / many)
        if S[r] <= MARGIN * float(np.median(S[r:])) * most / middle:
            return float(np.median(S[r:]) / S[0]), V[:r].T
    factor = len(S) < d  # fewer rows than columns: all of it is signal
    return float(S[-1] / S[0]), V.T if factor else np.eye(d)


@dataclass(frozen=True, slots=True)
class InputSpan:
    """The directions of inputs, or of what an adapter sees of them: A·x of an x."""

    basis: Array  # orthonormal columns
    view: Array | None = None  # d x r, Aᵀ; None: no adapter

    @property
    def is_proper(self) -> bool:
        """True if some inputs lie in the span and others do not."""
        return bool(0 < self.basis.shape[1] < len(self.basis))

    def seen(self, X: Array) -> Array:
        """Project rows to what an adapter sees of them."""
        return X if self.view is None else X @ self.view

    def sine(self, X: Array) -> Array:
        """Compute the sine of the angle between each row and the span."""
        X = self.seen(X)
        X = X / np.linalg.norm(X, axis=-1, keepdims=True)
        inside = X @ self.basis
        return np.asarray(np.sqrt(np.clip(1 - (inside * inside).sum(-1), 0, None)))


class Hit(NamedTuple):
    """A token at a place, whose input is nearer to all spans than words are by chance."""

    log_chance: float  # of so small a distance: the smallest is the likeliest hit
    place: int
    token: int


def in_span(inputs: Inputs, spans: Sequence[InputSpan], places: int) -> list[Hit]:
    """Find inputs nearer to all spans than words are by chance.

    At each place, squared distances of all words follow a Beta law if their directions are random.
    Its parameters are fitted to them, and p is corrected for all words and places. Fisher's method
    combines the p of several spans.
    """
    V, hits = len(inputs.words), list[Hit]()
    limit = np.log(CHANCE_HIT / (V * places))
    for start in range(0, places, BLOCK):
        block = range(start, min(start + BLOCK, places))
        per_span = [distances(inputs, span, block) for span in spans]
        for at, place in enumerate(block):
            p = _combined([_chance(far[at]) for far in per_span])
            for token in np.flatnonzero(p < limit).tolist():
                hits.append(Hit(float(p[token]), place, token))
    return hits


def _combined(logs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Combine p by Fisher's method: −2·Σ log p of k independent p follows chi² with 2k degrees."""
    total = np.sum(logs, axis=0)
    if len(logs) > 1:
        near = total < 0
        total[near] = chi2.logsf(-2 * total[near], 2 * len(logs))
    return np.asarray(total)


def distances(inputs: Inputs, span: InputSpan, block: range) -> Array:
    """Compute the squared sine of the angle between each (place, token) input and the span.

    Inputs are (x − mean)/s·γ + β with x = word + place. So products of the tables suffice, and no
    array of size places x words x columns is needed.
    """
    W = inputs.words - inputs.words.mean(1, keepdims=True)
    P = inputs.places[block.start : block.stop]
    P = P - P.mean(1, keepdims=True)
    spread = _square(W, P) / W.shape[1] + inputs.ε
    s, basis = np.sqrt(spread), span.basis
    W, P, β = (span.seen(part) for part in (W * inputs.γ, P * inputs.γ, inputs.β))
    total = _norms(W, P, β, s)
    narrow = 2 * basis.shape[1] <= len(basis)  # compute on the smaller side
    side = basis if narrow else np.linalg.qr(basis, mode="complete")[0][:, basis.shape[1] :]
    part = _norms(W @ side, P @ side, β @ side, s) / total
    return np.asarray(np.clip(1 - part if narrow else part, 0.0, 1.0))


def _square(W: Array, P: Array) -> Array:
    """Compute ‖Wᵥ + Pᵢ‖² of all pairs, places first."""
    return np.asarray((P * P).sum(1)[:, None] + (W * W).sum(1)[None] + 2 * (P @ W.T))


def _norms(W: Array, P: Array, b: Array, s: Array) -> Array:
    """Compute ‖(Wᵥ + Pᵢ)/sᵢᵥ + b‖² of all pairs."""
    along = (P @ b)[:, None] + (W @ b)[None]
    return np.asarray(_square(W, P) / s**2 + 2 * along / s + b @ b)


def _chance(far: Array) -> NDArray[np.float64]:
    """Compute the log chance that a random word's input is so near, from this place's words."""
    m = float(np.median(far))
    deviation = 1.4826 * float(np.median(np.abs(far - m)))
    if not 0 < m < 1 or deviation == 0:
        return np.zeros_like(far)
    n = max(m * (1 - m) / deviation**2 - 1, 2.0)
    log_p = np.zeros_like(far)
    near = far < max(m - 3 * deviation, m / 2)  # the law is slow to compute, and most are far
    p = betainc(m * n, (1 - m) * n, far[near])
    still_ordered = np.log(TINY) - 1 + far[near]
    log_p[near] = np.where(p > TINY, np.log(np.maximum(p, TINY)), still_ordered)
    return log_p
