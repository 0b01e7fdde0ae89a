"""The records and the training of a site."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEATURES = 20
Array = NDArray[Any]


def initial_model() -> list[Array]:
    """Return the weights and the bias before training."""
    return [np.zeros(FEATURES, np.float32), np.zeros(1, np.float32)]


def load_records(site: int) -> tuple[Array, Array]:
    """Return the records of a site: here they are made up, and each site has more."""
    random = np.random.default_rng(site)
    x = random.normal(site / 4, 1, (100 * (site + 1), FEATURES))
    truth = np.linspace(-1, 1, FEATURES)
    return x, (x @ truth + random.normal(0, 0.5, len(x)) > 0).astype(float)


def train_model(model: list[Array], x: Array, y: Array) -> float:
    """Train in place by 20 steps of gradient descent; return the loss."""
    weights, bias = model
    for _ in range(20):
        p = 1 / (1 + np.exp(-(x @ weights + bias)))
        weights -= 0.5 * (x.T @ (p - y) / len(y)).astype(np.float32)
        bias -= 0.5 * np.float32((p - y).mean())
    p = 1 / (1 + np.exp(-(x @ weights + bias)))
    return float(-np.log(np.where(y == 1, p, 1 - p) + 1e-9).mean())
