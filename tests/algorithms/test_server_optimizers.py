"""The server's Adam: steps as long as the members' own, unless somebody says otherwise."""

from __future__ import annotations

import pytest
import torch

from secure_fl import FedAdam
from secure_fl.algorithms.server_optimizers import server_of


@pytest.mark.parametrize(
    ("cfg", "far"),
    [
        (FedAdam(), 15 * 2e-3),
        (FedAdam(server_learning_rate=0.5), 0.5),
        (FedAdam(server_learning_rate=0.5, tau=1e-9), 0.5),
    ],
)
def test_a_steady_move_takes_a_value_as_far_as_η(cfg: FedAdam, far: float) -> None:
    server, δ = server_of(cfg, 2e-3), {"w": torch.tensor([1e6, -1e6])}
    for _ in range(2000):  # until both moments have forgotten how they began
        moved = server.step(δ)["w"]
    assert moved.tolist() == pytest.approx([far, -far], rel=1e-3)


def test_a_small_move_is_taken_as_far_as_it_went() -> None:
    """τ follows η: far above it every value moves alike, far below it values move as by FedAvg."""
    server, δ = server_of(FedAdam(), 2e-3), {"w": torch.tensor([3e-4, 3e-5])}
    assert server.step(δ)["w"].tolist() == pytest.approx(δ["w"].tolist(), rel=1e-2)
