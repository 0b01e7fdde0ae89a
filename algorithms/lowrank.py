"""Low rank under sums: the factors of an aggregate that nobody ever holds term by term.

FedKD (arXiv 2108.13323, Sec. 3.3) factorises each party's update, and products of sealed factors
would be dense matrices of ciphertexts. Here factors are additive: with a public test matrix Ω,

    Y = Σᵢ Gᵢ Ω  is a sum;   U = orth(Y)  follows from it;   B = Σᵢ Uᵀ Gᵢ  is a sum;   Σᵢ Gᵢ ≈ U B

(the randomised range finder of Halko, Martinsson, Tropp, SIAM Review 53, 2011, Algorithm 4.1, run
over sums). Ω begins with the last aggregate's right singular vectors, which makes it a step of
subspace iteration, and ends with random directions, which find what is new. How wide it is follows
from the mean of the ranks that Eq. 8 asks of the parties' own updates, a sum too. Where parties
learn much in common, the aggregate's own rank is lower, and one pass needs about that much more;
what it misses comes by error feedback.

U and the product are functions of opened sums, and equal bit for bit at all parties, whatever their
machines (`exact`). Ω need not be: Σᵢ Gᵢ Ωᵢ is opened, whatever rounding told two of them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import qr

VOID = 1e-12  # of the largest eigenvalue: directions below it are rounding
OVERSAMPLING = 4  # directions more than the rank
NEW = 0.15  # the share of random directions where others are known


class Factors(NamedTuple):
    """G ≈ U·diag(S)·V, singular values falling."""

    U: Tensor  # P x K
    S: Tensor  # K
    V: Tensor  # K x Q

    def product(self) -> Tensor:
        """The matrix they stand for."""
        return (self.U * self.S) @ self.V


def energy_rank(S: Tensor, T: float, total: float | None = None) -> int:
    """Eq. 8: the least K whose K largest singular values hold a share T of all energy.

    Never 0, and all of them where T is not reached. `total` counts energy that S does not show.
    """
    energy = S.double().square().cumsum(0)
    goal = T * (float(energy[-1]) if total is None else total)
    short = int((energy < goal * (1 - 1e-12)).sum())
    return min(short + 1, len(S))


def energy_threshold(start: float, end: float, t: float) -> float:
    """Eq. 9: T(t), coarse at the beginning, finer as training converges."""
    return start + (end - start) * t


def useful_rank(shape: torch.Size) -> int:
    """The largest rank whose factors are smaller than the matrix; 0: none, or no matrix."""
    if len(shape) != 2:
        return 0
    P, Q = shape
    return (P * Q - 1) // (P + Q)


def factorise(G: Tensor, T: float, most: int, generator: torch.Generator) -> Factors:
    """G's SVD, cut at a share T of its energy and at `most` values: Alg. 1, lines 8 and 17.

    Randomised, on G's device: ‖G‖² is all of the energy, so only `most` directions are computed.
    """
    Ω = torch.randn(G.shape[1], min(most + OVERSAMPLING, *G.shape), generator=generator).to(G)
    for _ in range(2):  # steps of subspace iteration: the spectra of updates are rather flat
        Ω = qr(G.T @ qr(G @ Ω)[0])[0]
    U, _ = qr(G @ Ω)
    W, S, V = torch.linalg.svd(U.T @ G, full_matrices=False)
    K = min(energy_rank(S, T, float(G.double().square().sum())), most)
    return Factors((U @ W)[:, :K], S[:K], V[:K])


class Subspace:
    """Where an aggregate's energy was: the right singular vectors that its next Ω begins with.

    What is kept is the B that was opened: vectors would differ in their last bits between machines.
    """

    def __init__(self, shape: torch.Size, max_rank: int | None = None) -> None:
        self.B = torch.zeros(1, shape[1])
        self.useful, self.max_rank = useful_rank(shape), max_rank

    def width(self, rank: float) -> int | None:
        """How many columns an aggregate of this rank needs; None: it is no larger whole."""
        width = ceil(rank) + OVERSAMPLING
        if self.max_rank is not None:
            return min(width, self.max_rank, self.useful)
        return width if width <= self.useful else None

    def probe(self, width: int, generator: torch.Generator) -> Tensor:
        """Draw Ω: Q x width, orthonormal, turned at random so that its columns weigh alike."""
        known = self.known()[:, : width - max(1, round(NEW * width))]
        Z = torch.randn(len(known), width - known.shape[1], generator=generator)
        N, _ = qr(Z - known @ (known.T @ Z))
        turn, _ = qr(torch.randn(width, width, generator=generator))
        Ω: Tensor = torch.cat([known, N], 1) @ turn
        return Ω

    def known(self) -> Tensor:
        """The directions of the last aggregate, most energy first; void ones are left out."""
        V = right_singular(self.B)
        return V[:, V.any(0)][:, : self.useful].float()

    def learn(self, B: Tensor) -> None:
        """Take the directions for the next aggregate from U·B."""
        if B.any():  # else nobody moved, and the last directions are as good as any
            self.B = B

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints, and for parties that join late: it is equal everywhere."""
        return {"B": self.B}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.B = state["B"].clone()  # aligned: products of what lies askew may round otherwise


def singular_values(G: Tensor) -> Tensor:
    """Singular values, falling; from the smaller Gram matrix, which is quicker than an SVD.

    Of what is not finite none is found: the door says so, and sends nothing.
    """
    largest = float(G.abs().max())
    if not 0 < largest < float("inf"):
        return torch.zeros(min(G.shape))
    G = G / largest  # squares neither overflow nor vanish
    Λ: Tensor = torch.linalg.eigvalsh(G @ G.T if G.shape[0] <= G.shape[1] else G.T @ G)
    return Λ.flip(0).clamp(min=0).sqrt() * largest


def right_singular(B: Tensor) -> Tensor:
    """A wide matrix' right singular vectors as columns, void ones zero; most energy first."""
    B = B.double()
    Λ, E = torch.linalg.eigh(B @ B.T)
    inverse = torch.where(Λ > VOID * Λ[-1], Λ.clamp(min=torch.finfo(Λ.dtype).tiny).rsqrt(), 0.0)
    V: Tensor = B.T @ (E * inverse)
    return V.flip(1)
