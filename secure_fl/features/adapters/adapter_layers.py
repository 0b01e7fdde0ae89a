"""The two factors of one layer's adapter: drawn anew, or set to a product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.learning import builtin
from secure_fl.learning.anatomy import ADAPTER

ROUNDING = 1e-6  # of the largest singular value: smaller ones are rounding errors


@torch.no_grad()
def redraw(layer: Any, key: str) -> None:
    """Draw A with the spread of a new linear layer's weights, and set B to zero."""
    A, B = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    if A.device.type != "meta":
        A.copy_(builtin.bell(A.shape, f"{key}/A", (3 * A.shape[1]) ** -0.5))
        B.zero_()


@torch.no_grad()
def set_product(layer: Any, Δ: Tensor) -> None:
    """Replace a layer's adapter by the one, of any rank, that adds Δ to its weight."""
    U, S, V = torch.linalg.svd(Δ.T if layer.fan_in_fan_out else Δ, full_matrices=False)
    rank = max(1, int((S > ROUNDING * S[0]).sum()))
    roots = S[:rank].sqrt()
    layer.lora_A[ADAPTER].weight = nn.Parameter(roots[:, None] * V[:rank])
    layer.lora_B[ADAPTER].weight = nn.Parameter(U[:, :rank] * roots)
    layer.r[ADAPTER], layer.scaling[ADAPTER] = rank, 1.0
