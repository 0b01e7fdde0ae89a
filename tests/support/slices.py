"""A narrow model is a slice of the wide one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from secure_fl.algorithms.baselines.narrow_models import select


def require_slices(wide: nn.Module, narrow: nn.Module, at: Mapping[str, Any]) -> None:
    assert narrow.state_dict().keys() == wide.state_dict().keys()
    for name, parameter in narrow.named_parameters():
        assert torch.equal(parameter, select(wide.get_parameter(name), at[name])), name
