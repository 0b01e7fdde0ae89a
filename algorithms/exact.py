"""Matrix arithmetic that gives all machines the same bits.

What parties compute from what was opened must be equal everywhere, and a floating-point product is
not: its rounding depends on the processor, on the library, even on the number of threads. Here
values are first rounded to integers of so few bits that every sum of their products is exact in
float64, in any order (Ozaki, Ogita, Oishi, Rump, Numerical Algorithms 59, 2012, Sec. 2). What is
left are single operations on each value, which IEEE 754 rounds alike everywhere.
"""

from __future__ import annotations

from math import frexp

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXACT = 52  # bits: integers below 2^53 add without rounding
VOID = 2.0**-36  # of the largest column's energy: what is below it is rounding

Matrix = NDArray[np.float64]


def product(A: Tensor, B: Tensor) -> Tensor:
    """A·B, each rounded to about 20 bits of its largest value."""
    found = _times(A.double().numpy(), B.double().numpy())
    return torch.from_numpy(found).to(A.dtype)


def orthonormal(Y: Tensor) -> Tensor:
    """An orthonormal basis of Y's range, in which a direction's energy is spread over all columns.

    By Cholesky's factor of YᵀY, so there are no signs and no order that rounding could flip.
    Numerically void directions are left out. Spread, because what is projected on the columns
    shares one scale.
    """
    N, _ = _grid(Y.double().numpy(), _bits(len(Y)))  # a basis does not know its vectors' scale
    return torch.from_numpy(_spread(_twice(N, _inverse_root(N.T @ N)))).to(Y.dtype)


def root(values: Tensor) -> Tensor:
    """√ of each value as IEEE 754 rounds it; torch may take a vector library's, which is not."""
    return torch.from_numpy(np.sqrt(values.cpu().numpy())).to(values.device)


def _times(A: Matrix, B: Matrix) -> Matrix:
    bits = _bits(A.shape[1])
    (M, a), (N, b) = _grid(A, bits), _grid(B, bits)
    found: Matrix = (M @ N) * a * b
    return found


def _twice(A: Matrix, B: Matrix) -> Matrix:
    """A·B, B to twice the bits: the rest of its rounding is a matrix like itself."""
    bits = _bits(A.shape[1])
    N, b = _grid(B, bits)
    return _times(A, N * b) + _times(A, B - N * b)


def _bits(terms: int) -> int:
    """The bits of each factor with which so many products add exactly."""
    return (EXACT - max(1, terms).bit_length()) // 2


def _grid(A: Matrix, bits: int) -> tuple[Matrix, float]:
    """A as integers times a power of two: scaling is exact, and rounding is by value."""
    largest = float(np.abs(A).max(initial=0.0))
    step = 2.0 ** (frexp(largest)[1] - bits) if 0 < largest < float("inf") else 1.0
    return np.rint(A / step), step


def _inverse_root(G: Matrix) -> Matrix:
    """Z with ZᵀGZ = 1, upper triangular: Cholesky's factor, inverted while it is found."""
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
    """Turn the columns so that each is a signed mean of all: butterflies, shuffled in between."""
    columns = U.shape[1]
    half = columns // 2
    for _ in range((columns - 1).bit_length()):
        a, middle, b = U[:, :half], U[:, half : columns - half], U[:, columns - half :]
        turned = np.stack([a + b, a - b], axis=2).reshape(len(U), 2 * half) * np.sqrt(0.5)
        U = np.concatenate([turned, middle], axis=1)
    return U
