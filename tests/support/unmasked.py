"""Sums without their masks: a control that attacks on single uploads have to succeed against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from secure_fl.crypto.sealing.masking import RemainingMasks, Slots
from secure_fl.crypto.sealing.step_keys import StepKeys


def remove_masks(change: Callable[[Any, str, Any], None] = setattr) -> None:
    """Plant the defect in this process: parties add no masks, and the coordinator removes none."""

    def none(self: Any, owners: Any, *given: Any, **rest: Any) -> Slots:
        length = given[-2]  # before the modulus
        return np.zeros(length, np.uint64)

    change(StepKeys, "mask", none)
    change(StepKeys, "add_self_mask", lambda *given: None)
    change(RemainingMasks, "own", none)
    change(RemainingMasks, "shared", none)


@contextmanager
def without_masks() -> Iterator[None]:
    """Plant the defect for a while."""
    with pytest.MonkeyPatch.context() as patch:
        remove_masks(patch.setattr)
        yield
