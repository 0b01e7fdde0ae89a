"""Combinations of answers that are about few patients, by linear algebra.

Each row of a matrix is a block, each column an atom with its number of patients. A combination of
rows that is 0 but on columns of too few patients together tells about those.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TOLERANCE = 1e-7
MOST_VECTORS = 500  # that are looked at; more are refused


def spans(rows: NDArray[np.int8], vector: NDArray[np.bool_]) -> bool:
    """Whether a vector is a combination of these rows."""
    if not len(rows):
        return False
    basis, wanted = rows.astype(float), vector.astype(float)
    found, *_ = np.linalg.lstsq(basis.T, wanted, rcond=None)
    return bool(np.abs(found @ basis - wanted).max() < TOLERANCE)


def few_alone(matrix: Floats, sizes: Integers, bar: int) -> bool:
    """Whether some combination of rows is about fewer patients than `bar`.

    Small columns have fewer. Combinations that vanish on all others are looked at one by one.
    """
    small = sizes < bar
    if not small.any():
        return False
    free = _null(matrix[:, ~small].T)
    rest = _reduced(free.T @ matrix[:, small])
    return any(_few(part, sizes[small], bar) for part in _parts(rest))


def _few(vectors: Floats, sizes: Integers, bar: int) -> bool:
    used = np.flatnonzero(np.abs(vectors).max(0) > TOLERANCE)
    free = len(vectors) - 1
    if comb(used.size, free) > MOST_VECTORS:
        return True
    for zeros in combinations(used.tolist(), free):  # so many may be 0, at least
        mix = _null(vectors[:, zeros].T) if free else np.ones((1, 1))
        vector = mix[:, 0] @ vectors
        if sizes[np.abs(vector) > TOLERANCE].sum() < bar:
            return True
    return False


def _null(matrix: Floats) -> Floats:
    """A basis (columns) of what this matrix maps to 0."""
    if not matrix.size:
        return np.eye(matrix.shape[1])
    _, values, right = np.linalg.svd(matrix, full_matrices=True)
    rank = int((values > TOLERANCE * max(1.0, values.max(initial=0))).sum())
    return np.asarray(right[rank:].T)


def _reduced(matrix: Floats) -> Floats:
    """Gauss and Jordan: a basis of the rows, each with a column that no other has."""
    rows, matrix = list[Floats](), matrix.copy()
    while matrix.size and np.abs(matrix).max() > TOLERANCE:
        at, pivot = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
        row = matrix[at] / matrix[at, pivot]
        matrix = matrix - np.outer(matrix[:, pivot], row)
        rows = [*(one - one[pivot] * row for one in rows), row]
    return np.stack(rows) if rows else np.zeros((0, matrix.shape[1]))


def _parts(basis: Floats) -> list[Floats]:
    """Vectors that share columns, together; what shares none can be looked at apart."""
    left, parts = list(range(len(basis))), list[Floats]()
    touches = np.abs(basis) > TOLERANCE
    while left:
        part = [left.pop(0)]
        support = touches[part[0]].copy()
        while more := [row for row in left if (touches[row] & support).any()]:
            part += more
            left = [row for row in left if row not in more]
            support |= touches[more].any(0)
        parts.append(basis[part])
    return parts
