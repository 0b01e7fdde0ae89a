"""Matrix arithmetic that gives the same bits on all machines.

Results that parties compute from opened sums must be equal everywhere. Floating-point products are
not: their rounding depends on the processor, the library and the number of threads. Here values are
first rounded to integers with so few bits that every sum of products is exact in float64, in any
order (Ozaki, Ogita, Oishi, Rump, Numerical Algorithms 59, 2012, Sec. 2). All other operations are
elementwise, and IEEE 754 rounds them alike everywhere.
"""

from __future__ import annotations

from math import frexp, fsum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXACT = 52  # bits: integers below 2^53 add without rounding
INTEGER = 62  # bits: sums of 64-bit integers below 2^62 are exact
VOID = 2.0**-36  # of the largest column's energy: columns below it are rounding errors

Matrix = NDArray[np.float64]


def product(A: Tensor, B: Tensor) -> Tensor:
    """Multiply A·B, each rounded to about 20 bits of its largest value."""
    return torch.from_numpy(_times(A.double().numpy(), B.double().numpy())).to(A.dtype)


def orthonormal(Y: Tensor) -> Tensor:
    """Compute an orthonormal basis of Y's range, with each direction spread over all columns.

    It follows from Cholesky's factor of YᵀY, so rounding cannot flip signs or the order. Void
    directions are omitted. Directions are spread because projections on the columns share a scale.
    """
    N, _ = _grid(Y.double().numpy(), _bits(len(Y)))  # a basis does not depend on the scale
    return torch.from_numpy(_spread(_twice(N, _inverse_root(N.T @ N)))).to(Y.dtype)


def root(values: Tensor) -> Tensor:
    """Return √ of each value as IEEE 754 rounds it; torch may use a less exact vector library."""
    return torch.from_numpy(np.sqrt(values.cpu().numpy())).to(values.device)


def total(values: Tensor) -> float:
    """Sum values, each rounded to about 62 - log₂(count) bits of the largest."""
    x = values.double().cpu().numpy().ravel()
    N, step = _grid(x, INTEGER - max(1, x.size).bit_length())
    return int(N.astype(np.int64).sum()) * step


def _times(A: Matrix, B: Matrix) -> Matrix:
    bits = _bits(A.shape[1])
    (M, a), (N, b) = _grid(A, bits), _grid(B, bits)
    product: Matrix = (M @ N) * a * b
    return product


def _twice(A: Matrix, B: Matrix) -> Matrix:
    """Multiply A·B with twice the bits of B, by a second product with B's rounding error."""
    bits = _bits(A.shape[1])
    N, b = _grid(B, bits)
    return _times(A, N * b) + _times(A, B - N * b)


def _bits(terms: int) -> int:
    """Return the bits per factor for which the sum of this many products is exact."""
    return (EXACT - max(1, terms).bit_length()) // 2


def _grid(A: Matrix, bits: int) -> tuple[Matrix, float]:
    """Write A as integers times a power of two, so that scaling is exact."""
    largest = float(np.abs(A).max(initial=0.0))
    step = 2.0 ** (frexp(largest)[1] - bits) if 0 < largest < float("inf") else 1.0
    return np.rint(A / step), step


def _inverse_root(G: Matrix) -> Matrix:
    """Compute the upper triangular Z with ZᵀGZ = 1: the inverse of Cholesky's factor."""
    G, Z = G.copy(), np.eye(len(G))
    void = VOID * float(np.diagonal(G).max(initial=0.0))
    for j in range(len(G)):
        if not G[j, j] > void:
            Z[:, j] = 0
            continue
        root = np.sqrt(G[j, j])
        row = G[j, j + 1 :] / root
        G[j + 1 :, j + 1 :] -= row[:, None] * row
        Z[:, j] /= root
        Z[:, j + 1 :] -= Z[:, j, None] * row
    return Z


def _spread(U: Matrix) -> Matrix:
    """Rotate the columns so that each is a signed mean of all, by shuffled butterflies."""
    columns = U.shape[1]
    half = columns // 2
    for _ in range((columns - 1).bit_length()):
        a, middle, b = U[:, :half], U[:, half : columns - half], U[:, columns - half :]
        rotated = np.stack([a + b, a - b], axis=2).reshape(len(U), 2 * half) * np.sqrt(0.5)
        U = np.concatenate([rotated, middle], axis=1)
    return U


def solve(A: Matrix, B: Matrix) -> Matrix:
    """Solve A·X = B for a positive definite A, by Gaussian elimination, elementwise."""
    A, X = A.copy(), B.copy()
    for j in range(len(A)):
        below = A[j + 1 :, j, None] / A[j, j]
        A[j + 1 :, j + 1 :] -= below * A[j, j + 1 :]
        X[j + 1 :] -= below * X[j]
    for j in reversed(range(len(A))):
        X[j] /= A[j, j]
        X[:j] -= A[:j, j, None] * X[j]
    return X


def columns(A: Matrix, B: Matrix) -> Matrix:
    """Compute the diagonal of AᵀB, each sum rounded once."""
    return np.array([fsum(a * b) for a, b in zip(A.T, B.T, strict=True)])


def inner(A: Matrix, B: Matrix) -> Matrix:
    """Compute AᵀB for few columns, each sum rounded once."""
    return np.array([[fsum(a * b) for b in B.T] for a in A.T])
