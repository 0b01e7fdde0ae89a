"""How far single records move a metric is what leaving them out does, to first order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secure_fl.features.evaluation.examine import pulls
from secure_fl.learning.tasks.classification import Classification
from secure_fl.learning.tasks.regression import Regression
from secure_fl.learning.tasks.task import Task


def left_out(task: Task, z: torch.Tensor, gold: torch.Tensor) -> dict[str, np.ndarray]:
    """What each record adds to metrics, by counting without it."""
    whole = task.pooled([task.counts([z], [{"labels": gold}])])
    found: dict[str, list[float]] = {name: [] for name in whole}
    for record in range(len(gold)):
        rest = torch.arange(len(gold)) != record
        without = task.pooled([task.counts([z[rest]], [{"labels": gold[rest]}])])
        for name in found:
            found[name].append(whole[name] - without[name])
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("spread", [1.0, 1e-3])  # the last: guesses that hardly differ
def test_of_scores(spread: float) -> None:
    gold = torch.linspace(0, 5, 200)
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0))
    z = (3 + spread * (gold + noise))[:, None]
    require_same(Regression("regression"), z, gold, ("pearson", "mse", "loss"))


def test_of_classes() -> None:
    draw = torch.Generator().manual_seed(0)
    gold = torch.randint(0, 2, (200,), generator=draw)
    z = torch.randn(200, 2, generator=draw) + torch.eye(2)[gold]
    names = ("accuracy", "f1", "macro_f1", "mcc", "auroc", "average_precision", "loss")
    require_same(Classification("classification", ("no", "yes")), z, gold, names)


def require_same(task: Task, z: torch.Tensor, gold: torch.Tensor, names: tuple[str, ...]) -> None:
    pairs = [z], [{"labels": gold}]
    found = pulls(task, task.rows(*pairs), task.counts(*pairs))
    expected = left_out(task, z, gold)
    for name in names:
        assert found[name].sum() == pytest.approx(0, abs=1e-3), name
        apart = np.abs(found[name] - expected[name]).max()
        assert apart < 0.05 * np.abs(expected[name]).max(), name
