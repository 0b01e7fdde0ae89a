"""The server's Adam: steps as long as the members' own, unless somebody says otherwise."""

from __future__ import annotations

import pytest
import torch

from secure_fl.algorithms.fedadam import FedAdam, server_of


@pytest.mark.parametrize(
    ("cfg", "far"),
    [
        (FedAdam(), 15 * 2e-3),
        (FedAdam(server_learning_rate=0.5), 0.5),
        (FedAdam(server_learning_rate=0.5, tau=1e-9), 0.5),
    ],
)
def test_a_steady_move_takes_a_value_as_far_as_η(cfg: FedAdam, far: float) -> None:
    server, δ = server_of(cfg, 2e-3, fresh=True), {"w": torch.tensor([1e6, -1e6])}
    for _ in range(2000):  # until both moments have forgotten how they began
        moved = server.step(δ)["w"]
    assert moved.tolist() == pytest.approx([far, -far], rel=1e-3)


@pytest.mark.parametrize("fresh", [True, False])
def test_what_moves_a_tenth_of_it_hardly_counts_as_less(fresh: bool) -> None:
    """τ follows η: far above it every value moves alike, far below it values move as in FedAvg."""
    server, δ = server_of(FedAdam(), 2e-3, fresh=fresh), {"w": torch.tensor([3e-4, 3e-5])}
    for _ in range(2000):
        large, small = server.step(δ)["w"].tolist()
    assert large / small == pytest.approx(10, rel=0.1)


def test_a_checkpoint_is_moved_less_by_small_moves_than_fresh_weights() -> None:
    small = {"w": torch.tensor([1e-5])}
    fresh, checkpoint = (
        server_of(FedAdam(), 2e-4, fresh=fresh).step(small)["w"].item() for fresh in (True, False)
    )
    assert fresh == pytest.approx(3 * checkpoint, rel=0.05)
