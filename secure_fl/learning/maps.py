"""Attention maps as they are before dropout, which in training would add noise to their distances.

`transformers` returns maps after dropout. Its families look their attention up by name, so a name
of our own gives what eager attention computes, and the map that it dropped from. Families that do
not look it up (DeBERTa, MPNet) keep their own, after dropout.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

MAPS = "maps"


def attention_with_maps(
    module: nn.Module, *inputs: Any, dropout: float = 0.0, **options: Any
) -> tuple[Tensor, Tensor]:
    """The family's own eager attention, and its map before dropout."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, maps = eager(module, *inputs, dropout=0.0, **options)
    if module.training and dropout:
        output, _ = eager(module, *inputs, dropout=dropout, **options)
    return output, maps


def register() -> None:
    """Make the name known to transformers."""
    AttentionInterface.register(MAPS, attention_with_maps)
    AttentionMaskInterface.register(MAPS, eager_mask)
