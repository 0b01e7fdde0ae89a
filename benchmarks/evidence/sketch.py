"""How far two runs' models are apart, without keeping the models.

A sketch adds the model's trained values, with random signs that are the same for every model, into
a few sums. The distance of two sketches is, in the mean over the signs, the distance of the models:
with 32 sums it is off by about an eighth (Charikar, Chen, Farach-Colton 2002).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SUMS = 32
SEED = 1729  # of the signs


def sketch(models: Mapping[str, torch.nn.Module]) -> dict[str, Any] | None:
    """Sketch the first model by name; of hospitals with models of their own it is one."""
    import torch

    if not models:
        return None
    name = min(models)
    trained = [p for p in models[name].parameters() if p.requires_grad]
    if not trained:
        return None
    values = torch.cat([p.detach().double().flatten().cpu() for p in trained])
    signs = torch.randint(2, (len(values),), generator=torch.Generator().manual_seed(SEED))
    signed = torch.nn.functional.pad(values * (2 * signs - 1), (0, -len(values) % SUMS))
    sums = signed.view(-1, SUMS).sum(0)
    shown = [float(f"{value:.6g}") for value in sums.tolist()]
    return {"model": name, "norm": float(f"{values.norm().item():.6g}"), "sums": shown}


def distance(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> float | None:
    """The distance of two models over the norm of the first; `None` where it is not known."""
    if not one or not other or one["model"] != other["model"] or not one["norm"]:
        return None
    apart: float = math.dist(one["sums"], other["sums"]) / one["norm"]
    return apart
