"""Low-rank factors of an aggregate, computed by sums, so that nobody holds a single update.

FedKD (arXiv 2108.13323, Sec. 3.3) factorises each party's update, and products of sealed factors
would be dense matrices of ciphertexts. Here factors are additive: with a public test matrix Ω,

    Y = Σᵢ Gᵢ Ω  is a sum;   U = orth(Y)  follows from it;   B = Σᵢ Uᵀ Gᵢ  is a sum;   Σᵢ Gᵢ ≈ U B

This is the randomised range finder of Halko, Martinsson, Tropp, SIAM Review 53, 2011, Algorithm
4.1, run over sums. The first columns of Ω are the last aggregate's right singular vectors, so each
exchange is a step of subspace iteration; the other columns are random. The width of Ω follows from
the mean of the ranks that Eq. 8 gives for the parties' updates, which is a sum too. Error feedback
adds what a pass misses to the next one.

U and the product are functions of opened sums and equal bit for bit at all parties, on any machine
(`exact`). Ω may differ by rounding: the opened sum is then Σᵢ Gᵢ Ωᵢ.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import qr

VOID = 1e-12  # of the largest eigenvalue: smaller ones are rounding errors
OVERSAMPLING = 4  # columns beyond the rank
NEW = 0.15  # share of random columns once some directions are known


class Factors(NamedTuple):
    """A truncated SVD, G ≈ U·diag(S)·V, with falling singular values."""

    U: Tensor  # P x K
    S: Tensor  # K
    V: Tensor  # K x Q

    def product(self) -> Tensor:
        """Multiply the factors."""
        return (self.U * self.S) @ self.V


def energy_rank(S: Tensor, T: float, total: float | None = None) -> int:
    """Return Eq. 8's K: the fewest largest singular values with a share T of all energy.

    At least 1, and all of them if they do not reach T. `total` is the energy including values that
    S omits.
    """
    energy = S.double().square().cumsum(0)
    goal = T * (float(energy[-1]) if total is None else total)
    short = int((energy < goal * (1 - 1e-12)).sum())
    return min(short + 1, len(S))


def energy_threshold(start: float, end: float, t: float) -> float:
    """Compute Eq. 9: T(t) rises as training converges."""
    return start + (end - start) * t


def useful_rank(shape: torch.Size) -> int:
    """Return the largest rank whose factors are smaller than the matrix; 0 if there is none."""
    if len(shape) != 2:
        return 0
    P, Q = shape
    return (P * Q - 1) // (P + Q)


def factorise(G: Tensor, T: float, most: int, generator: torch.Generator) -> Factors:
    """Truncate G's SVD at a share T of its energy and at `most` values: Alg. 1, lines 8 and 17.

    The SVD is randomised. ‖G‖² is the total energy, so `most` directions are enough.
    """
    Ω = torch.randn(G.shape[1], min(most + OVERSAMPLING, *G.shape), generator=generator).to(G)
    for _ in range(2):  # subspace iteration, because updates have flat spectra
        Ω = qr(G.T @ qr(G @ Ω)[0])[0]
    U, _ = qr(G @ Ω)
    W, S, V = torch.linalg.svd(U.T @ G, full_matrices=False)
    K = min(energy_rank(S, T, float(G.double().square().sum())), most)
    return Factors((U @ W)[:, :K], S[:K], V[:K])


class Subspace:
    """The right singular vectors of the last aggregate, with which the next Ω starts.

    The state is the opened B. The vectors would differ in their last bits between machines.
    """

    def __init__(self, shape: torch.Size, max_rank: int | None = None) -> None:
        self.B = torch.zeros(1, shape[1])
        self.useful, self.max_rank = useful_rank(shape), max_rank

    def width(self, rank: float) -> int | None:
        """Return Ω's columns for an aggregate of this rank; None if factors are not smaller."""
        width = ceil(rank) + OVERSAMPLING
        if self.max_rank is not None:
            return min(width, self.max_rank, self.useful)
        return width if width <= self.useful else None

    def probe(self, width: int, generator: torch.Generator) -> Tensor:
        """Draw Ω: Q x width, orthonormal, rotated at random so that columns have like energy."""
        known = self.known()[:, : width - max(1, round(NEW * width))]
        Z = torch.randn(len(known), width - known.shape[1], generator=generator)
        N, _ = qr(Z - known @ (known.T @ Z))
        rotation, _ = qr(torch.randn(width, width, generator=generator))
        Ω: Tensor = torch.cat([known, N], 1) @ rotation
        return Ω

    def known(self) -> Tensor:
        """Return the last aggregate's directions with energy, largest first."""
        V = right_singular(self.B)
        return V[:, V.any(0)][:, : self.useful].float()

    def learn(self, B: Tensor) -> None:
        """Take the directions for the next aggregate from U·B."""
        if B.any():  # all updates were zero otherwise, so keep the old directions
            self.B = B

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for parties that join late."""
        return {"B": self.B}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.B = state["B"].clone()  # products of unaligned memory may round differently


def singular_values(G: Tensor) -> Tensor:
    """Compute falling singular values from the smaller Gram matrix, faster than by an SVD.

    They are zeros if G is not finite. The sum then refuses G with an error.
    """
    largest = float(G.abs().max())
    if not 0 < largest < float("inf"):
        return torch.zeros(min(G.shape))
    G = G / largest  # squares neither overflow nor vanish
    Λ: Tensor = torch.linalg.eigvalsh(G @ G.T if G.shape[0] <= G.shape[1] else G.T @ G)
    return Λ.flip(0).clamp(min=0).sqrt() * largest


def right_singular(B: Tensor) -> Tensor:
    """Compute a wide matrix' right singular vectors as columns, void ones zero, largest first."""
    B = B.double()
    Λ, E = torch.linalg.eigh(B @ B.T)
    inverse = torch.where(Λ > VOID * Λ[-1], Λ.clamp(min=torch.finfo(Λ.dtype).tiny).rsqrt(), 0.0)
    V: Tensor = B.T @ (E * inverse)
    return V.flip(1)
