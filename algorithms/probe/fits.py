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

from secure_fl.algorithms.exact import Matrix, columns, inner, solve
from secure_fl.algorithms.probe.features import CONSTANT, Rows
from secure_fl.errors import DataError

PENALTIES = [2.0**-k for k in range(4, 13, 2)]  # of ridge, for each row
MOMENTUM = 0.9
TAIL = 0.25  # last part of the steps, whose models are averaged
SOFT = 1e-3  # added to variances within classes, as a part of their mean
ABSENT = -30.0  # log-odds of a class without records


def moments(rows: Rows, classes: int) -> NDArray[np.float64]:
    """Compute XᵀX (its upper triangle) and XᵀY, row by row, then the squares of each target."""
    y = F.one_hot(rows.y, classes) if classes and rows.y.dim() == 1 else rows.y
    x, y = rows.x.double(), y.double().reshape(len(y), -1)
    products: Matrix = torch.cat([x.T @ x, x.T @ y], dim=1).numpy()
    upper = np.triu_indices(len(products), m=products.shape[1])
    return np.concatenate([products[upper], (y * y).sum(0).numpy()])


def ridge(
    sums: NDArray[Any], d: int, classes: int, *, balanced: bool = False, exclusive: bool = True
) -> Matrix:
    """Fit by least squares the sum of all hospitals' moments.

    The penalty has the least generalised cross-validation (Golub, Heath, Wahba, Technometrics 21,
    1979): the error of leave-one-out for equal leverages, which follows from the moments alone. The
    constant has no penalty. Scores of classes become logits; `exclusive`: a row has one class.
    """
    targets = max(classes, 1)
    M, squares = np.zeros((d, d + targets)), sums[-targets:]
    M[np.triu_indices(d, m=d + targets)] = sums[:-targets]
    G, B = M[:, :d] + np.triu(M[:, :d], 1).T, M[:, d:]
    counts = require_classes(squares, exclusive=exclusive) if classes else np.ones(1)
    n = G[d - 1, d - 1] / CONSTANT**2
    best, least = None, math.inf
    for λ in (n * share for share in PENALTIES):
        penalty = np.diag([*[λ] * (d - 1), 0.0])
        X = solve(G + penalty, np.concatenate([B, np.eye(d)], axis=1))
        W, inverse = X[:, :targets], X[:, targets:]
        h = (d - λ * math.fsum(np.diagonal(inverse)[:-1])) / n  # mean leverage of a row
        error = math.fsum([*squares, *-columns(W, B), *-λ * columns(W[:-1], W[:-1])])
        if (score := error / (1 - h) ** 2) < least:
            best, least = (W, λ, h), score
    assert best is not None  # noqa: S101 - the first score is finite
    W, λ, h = best
    if not classes:
        return W
    if not exclusive:
        explained = columns(W, B) - λ * columns(W[:-1], W[:-1])
        return logits_of_labels(W, explained, h, B, counts, n)
    explained = inner(W, B) - λ * inner(W[:-1], W[:-1])  # WᵀGW
    return logits_of(W, explained, h, B, counts, balanced=balanced)


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


def logits_of_labels(
    W: Matrix, energy: Matrix, h: float, B: Matrix, counts: Matrix, n: float
) -> Matrix:
    """Turn weights of scores into weights of each label's logit, by Bayes' rule as above.

    Labels do not exclude each other, so a label's logit follows from its own score alone: from the
    means with and without the label, and the variance around them. `energy`: Σ s² of each score.
    """
    rest = n - counts
    has = columns(B, W) / np.maximum(counts, 1)
    lacks = counts * (1 - has) / np.maximum(rest, 1)  # the sum of all scores is the label's count
    within = (energy - counts * has**2 - rest * lacks**2) / (n * (1 - h) ** 2)
    has, lacks = (has - h) / (1 - h), lacks / (1 - h)
    within += SOFT * math.fsum(within) / len(within)
    known = (counts > 0) & (rest > 0.5)
    slope = np.where(known, (has - lacks) / within, 0.0)
    odds = [
        math.log(c / r) if k else (-ABSENT if c else ABSENT)
        for k, c, r in zip(known, counts.tolist(), rest.tolist(), strict=True)
    ]
    V: Matrix = W * slope
    V[-1] += (np.array(odds) - slope * (has + lacks) / 2) / CONSTANT
    return V


def log_priors(counts: Matrix, *, balanced: bool) -> Matrix:
    """Return the log-share of each class; equal ones if classes count alike."""
    logs = [math.log(share) if share else ABSENT for share in (counts / counts.sum()).tolist()]
    return np.array([0.0 if balanced and log > ABSENT else log for log in logs])


def require_classes(counts: NDArray[Any], *, exclusive: bool = True) -> Matrix:
    """Return the records of each class in all hospitals together; refuse a single class."""
    counts = np.rint(counts)
    if not exclusive and not counts.any():
        raise DataError(
            "no training record of any hospital has a label",
            fix="check that the export has the labels",
        )
    if exclusive and (counts > 0).sum() < 2:
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
    several = rows.y.dim() == 2  # labels of one row, each with a probability
    r: Tensor = z.sigmoid() - rows.y if several else z.softmax(-1) - F.one_hot(rows.y, classes)
    return r[:, -W.shape[1] :].double()


def gradient(rows: Rows, W: Matrix, classes: int) -> Tensor:
    """Sum the records' gradients of the cross-entropy."""
    total: Tensor = rows.x.double().T @ errors(rows, W, classes)
    return total


def both(z: Any, classes: int) -> Any:
    """Return a copy with a column of zeros before the only one of two classes."""
    lacking = int(z.shape[1] < classes)
    if isinstance(z, Tensor):
        return F.pad(z, (lacking, 0))
    return np.pad(z, ((0, 0), (lacking, 0)))


def step(state: Mapping[str, Any], mean: Matrix, classes: int, *, average: bool) -> dict[str, Any]:
    """Make the next model from the opened mean gradient, with momentum; average the last models."""
    m = MOMENTUM * state["m"] + mean
    W = state["W"] - state["rate"] * m
    total, kept = (state["sum"] + W, state["kept"] + 1) if average else (state["sum"], 0)
    weights = both(total / kept if average else W, classes)
    return {"m": m, "W": W, "sum": total, "kept": kept, "weights": weights}


def start(d: int, classes: int, *, exclusive: bool = True) -> dict[str, Any]:
    """Return the state before the first step."""
    zeros = np.zeros((d, 1 if exclusive and classes <= 2 else classes))
    return {"m": zeros, "W": zeros, "sum": zeros, "kept": 0}
