"""Spans of gradients: their numerical rank, and which (place, token) inputs lie in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import chi2

from secure_fl.audits.attacks.layer_inputs import Array, Inputs

CHANCE_HIT = 0.1  # expected false hits in all words and places together
MARGIN = 1.3  # on the largest singular value of noise
TINY = 1e-300
FEWEST = 4  # values that can be told to be noise
VOID = 1e-9  # of the largest singular value
BLOCK = 64  # places looked at together


def span_of(rows: dict[str, Array], weights: dict[str, Array], decay: float) -> Array:
    """An orthonormal basis of the moves' row space: as they are, or less one step's weight decay.

    The one whose spectrum has the lower floor is taken: initial weights fill all columns.
    """
    found = [_cut(np.concatenate(list(rows.values())))]
    if decay and rows.keys() <= weights.keys():
        found.append(_cut(np.concatenate([row + decay * weights[n] for n, row in rows.items()])))
    return min(found, key=lambda cut: cut[0])[1]


def _cut(G: Array) -> tuple[float, Array]:
    """The floor of the spectrum, and the right singular vectors that stand out of it.

    It ends where the rest looks like rounding: the singular values of noise in n of d columns,
    over m ≥ n rows, end at √m + √n of its deviation, and have a median of about √m for n ≪ m and
    0.81·√m for n = m (Marchenko and Pastur, 1967).
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
    return float(S[-1] / S[0]), (
        V.T if len(S) < d else np.eye(d)
    )  # fewer rows than columns: a factor, all of it


@dataclass(frozen=True, slots=True)
class InputSpan:
    """Directions that inputs had, as they are or through a lens: an adapter reads A·x of an x."""

    basis: Array  # orthonormal columns
    lens: Array | None = None  # d x r, Aᵀ; None: inputs are seen as they are

    @property
    def tells(self) -> bool:
        """Whether some inputs lie in it and others do not."""
        return bool(0 < self.basis.shape[1] < len(self.basis))

    def through(self, X: Array) -> Array:
        """What these rows look like here."""
        return X if self.lens is None else X @ self.lens

    def far(self, X: Array) -> Array:
        """The sine of the angle between each row and the span."""
        X = self.through(X)
        X = X / np.linalg.norm(X, axis=-1, keepdims=True)
        inside = X @ self.basis
        return np.asarray(np.sqrt(np.clip(1 - (inside * inside).sum(-1), 0, None)))


def in_span(
    inputs: Inputs, spans: Sequence[InputSpan], places: int
) -> list[tuple[float, int, int]]:
    """(log p, place, token) of inputs that lie nearer to all spans than words do by chance.

    At each place, squared distances of all words follow a Beta law if their directions are
    random; its parameters are fitted to them, and p is corrected for all words and places. The
    p of several spans are one by Fisher's method.
    """
    V, hits = len(inputs.words), []
    limit = np.log(CHANCE_HIT / (V * places))
    for start in range(0, places, BLOCK):
        block = range(start, min(start + BLOCK, places))
        each = [distances(inputs, span, block) for span in spans]
        for at, place in enumerate(block):
            p = _together([_chance(far[at]) for far in each])
            for token in np.flatnonzero(p < limit).tolist():
                hits.append((float(p[token]), place, token))
    return hits


def _together(logs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Fisher's method: −2·Σ log p of k independent p follows chi² with 2k degrees of freedom."""
    total = np.sum(logs, axis=0)
    if len(logs) > 1:
        near = total < 0
        total[near] = chi2.logsf(-2 * total[near], 2 * len(logs))
    return np.asarray(total)


def distances(inputs: Inputs, span: InputSpan, block: range) -> Array:
    """Squared sine of the angle between each (place, token) input and the span.

    Inputs are (x − mean)/s·γ + β with x = word + place, so all follows from products of tables:
    nothing of size places x words x columns is ever held.
    """
    W = inputs.words - inputs.words.mean(1, keepdims=True)
    P = inputs.places[block.start : block.stop]
    P = P - P.mean(1, keepdims=True)
    spread = _square(W, P) / W.shape[1] + inputs.ε
    s, basis = np.sqrt(spread), span.basis
    W, P, β = (span.through(part) for part in (W * inputs.γ, P * inputs.γ, inputs.β))
    whole = _norms(W, P, β, s)
    narrow = 2 * basis.shape[1] <= len(basis)  # the smaller side of the two is less work
    side = basis if narrow else np.linalg.qr(basis, mode="complete")[0][:, basis.shape[1] :]
    part = _norms(W @ side, P @ side, β @ side, s) / whole
    return np.asarray(np.clip(1 - part if narrow else part, 0.0, 1.0))


def _square(W: Array, P: Array) -> Array:
    """‖Wᵥ + Pᵢ‖² of all pairs, places first."""
    return np.asarray((P * P).sum(1)[:, None] + (W * W).sum(1)[None] + 2 * (P @ W.T))


def _norms(W: Array, P: Array, b: Array, s: Array) -> Array:
    """‖(Wᵥ + Pᵢ)/sᵢᵥ + b‖² of all pairs."""
    along = (P @ b)[:, None] + (W @ b)[None]
    return np.asarray(_square(W, P) / s**2 + 2 * along / s + b @ b)


def _chance(far: Array) -> NDArray[np.float64]:
    """Log of the chance that a random word's input comes so near, by this place's own words."""
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


def time_span_check(words: int = 30_000, places: int = 128, width: int = 384, tokens: int = 64,
                    seed: int = 0) -> tuple[float, float]:  # fmt: skip
    """Seconds and recall of the search over all (word, place) pairs, on synthetic tables."""
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=(n, width)) * 0.02 for n in (words, places)]
    inputs = Inputs(tables[0], tables[1], np.ones(width), np.zeros(width), 1e-12)
    truth = {(place % places, int(rng.integers(words))) for place in range(tokens)}
    at = np.array(sorted(truth))
    basis = np.linalg.qr(inputs.rows(at[:, 1], at[:, 0]).T)[0]
    started = time.perf_counter()
    hits = sorted(in_span(inputs, [InputSpan(basis)], places))[: len(truth)]
    seconds = time.perf_counter() - started
    return seconds, len({(place, token) for _, place, token in hits} & truth) / len(truth)
