"""Linear models from sums over all records, and what a hospital contributes to these sums.

Every party computes a model from the same opened sums, with arithmetic that gives the same bits on
all machines. A matrix of weights has a row for each feature, and a last row for the constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from numpy.typing import NDArray
from torch import Tensor

from secure_fl.algorithms.exact import Matrix, inner, solve
from secure_fl.algorithms.probe.features import CONSTANT, Rows
from secure_fl.errors import DataError

PENALTIES = [2.0**-k for k in range(4, 13, 2)]  # of ridge, for each row
MOMENTUM = 0.9
TAIL = 0.25  # last part of the steps, whose models are averaged
SOFT = 1e-3  # added to variances within classes, as a part of their mean
ABSENT = -30.0  # log-odds of a class without records


def moments(rows: Rows, classes: int) -> NDArray[np.float64]:
    """Compute the upper triangle of ZᵀZ, where a row of Z is a record's features and targets."""
    y = F.one_hot(rows.y, classes) if classes else rows.y[:, None]
    Z = torch.cat([rows.x, y.to(rows.x.dtype)], dim=1).double()
    ZZ: Matrix = (Z.T @ Z).numpy()
    return ZZ[np.triu_indices(len(ZZ))]


def ridge(triangle: NDArray[Any], d: int, classes: int, *, balanced: bool = False) -> Matrix:
    """Fit by least squares the sum of all hospitals' moments.

    The penalty has the least generalised cross-validation (Golub, Heath, Wahba, Technometrics 21,
    1979): the error of leave-one-out for equal leverages, which follows from the moments alone. The
    constant has no penalty. Scores of classes become logits.
    """
    M = np.zeros((d + max(classes, 1), d + max(classes, 1)))
    M[np.triu_indices(len(M))] = triangle
    M += np.triu(M, 1).T
    G, B, squares = M[:d, :d], M[:d, d:], np.diagonal(M)[d:]
    counts = require_classes(squares) if classes else np.ones(1)
    n = M[d - 1, d - 1] / CONSTANT**2
    best, least = None, math.inf
    for λ in (n * share for share in PENALTIES):
        penalty = np.diag([*[λ] * (d - 1), 0.0])
        X = solve(G + penalty, np.concatenate([B, np.eye(d)], axis=1))
        W, inverse = X[:, : B.shape[1]], X[:, B.shape[1] :]
        h = (d - λ * math.fsum(np.diagonal(inverse)[:-1])) / n  # mean leverage of a row
        shrunk = λ * inner(W[:-1], W[:-1])
        explained = inner(W, B) - shrunk  # WᵀGW
        error = math.fsum([*squares, *-np.diagonal(inner(W, B)), *-np.diagonal(shrunk)])
        if (score := error / (1 - h) ** 2) < least:
            best, least = (W, explained, h), score
    assert best is not None  # noqa: S101 - the first score is finite
    return logits_of(*best, B, counts, balanced=balanced) if classes else best[0]


def logits_of(
    W: Matrix, WGW: Matrix, h: float, B: Matrix, counts: Matrix, *, balanced: bool
) -> Matrix:
    """Turn weights of scores into weights of logits, by Bayes' rule for Gaussian scores.

    Means and covariance of each class's scores follow from the moments. They are those of
    leave-one-out: a row of class c counts itself in its score with its leverage h, so its score
    without itself is (s - h·e_c)/(1 - h). So probabilities are calibrated without other records.
    """
    n, classes = counts.sum(), len(counts)
    within, means = WGW.copy(), inner(B, W) / np.maximum(counts, 1)[:, None]
    for count, mean in zip(counts, means, strict=True):
        within -= count * mean[:, None] * mean
    within /= n * (1 - h) ** 2
    means = (means - h * np.eye(classes)) / (1 - h)
    center = sum(count * mean for count, mean in zip(counts, means, strict=True)) / n
    apart = np.where(counts[:, None] > 0, means - center, 0.0)
    within += np.eye(classes) * (SOFT * math.fsum(np.diagonal(within)) / classes)
    A = solve(within, apart.T.copy())
    bias = -0.5 * np.diagonal(inner(apart.T, A)) - inner(center[:, None], A)[0]
    V: Matrix = sum(W[:, k, None] * A[k] for k in range(classes))
    V[-1] += (bias + log_priors(counts, balanced=balanced)) / CONSTANT
    return V


def log_priors(counts: Matrix, *, balanced: bool) -> Matrix:
    """Return the log-share of each class; equal ones if classes count alike."""
    logs = [math.log(share) if share else ABSENT for share in (counts / counts.sum()).tolist()]
    return np.array([0.0 if balanced and log > ABSENT else log for log in logs])


def require_classes(counts: NDArray[Any]) -> Matrix:
    """Return the records of each class in all hospitals together; refuse a single class."""
    counts = np.rint(counts)
    if (counts > 0).sum() < 2:
        raise DataError(
            "all training records of all hospitals have the same label",
            fix="give records of at least two classes",
        )
    return counts


def curvature(rows: Rows) -> float:
    """Return the largest eigenvalue of xᵀx; its sum over hospitals bounds that of all records."""
    x = rows.x.double()
    return float(torch.linalg.eigvalsh(x.T @ x)[-1])


def errors(rows: Rows, W: Matrix, classes: int) -> Tensor:
    """Compute probabilities minus labels; a record's gradient is its features times its errors.

    Two classes have one column of weights, the difference of their logits.
    """
    z = both(rows.x @ torch.from_numpy(W).float(), classes)
    r: Tensor = z.softmax(-1) - F.one_hot(rows.y, classes)
    return r[:, -W.shape[1] :].double()


def gradient(rows: Rows, W: Matrix, classes: int) -> Tensor:
    """Sum the records' gradients of the cross-entropy."""
    total: Tensor = rows.x.double().T @ errors(rows, W, classes)
    return total


def both(z: Any, classes: int) -> Any:
    """Return a copy with a column of zeros before the only one of two classes."""
    if isinstance(z, Tensor):
        return F.pad(z, (int(classes == 2), 0))
    return np.pad(z, ((0, 0), (int(classes == 2), 0)))


def step(state: Mapping[str, Any], mean: Matrix, classes: int, *, average: bool) -> dict[str, Any]:
    """Make the next model from the opened mean gradient, with momentum; average the last models."""
    m = MOMENTUM * state["m"] + mean
    W = state["W"] - state["rate"] * m
    total, kept = (state["sum"] + W, state["kept"] + 1) if average else (state["sum"], 0)
    weights = both(total / kept if average else W, classes)
    return {"m": m, "W": W, "sum": total, "kept": kept, "weights": weights}


def start(d: int, classes: int) -> dict[str, Any]:
    """Return the state before the first step."""
    zeros = np.zeros((d, classes if classes > 2 else 1))
    return {"m": zeros, "W": zeros, "sum": zeros, "kept": 0}
