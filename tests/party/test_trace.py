"""One sum can be followed: it enters few files and functions at a party and the coordinator."""

from __future__ import annotations

import pytest

from secure_fl.settings import Protection
from tests.support.sum_trace import Length, length, traced


@pytest.mark.parametrize(
    ("mode", "bound"), [("he+secagg", Length(30, 250, 400)), ("none", Length(17, 80, 120))]
)
def test_a_sum_can_be_followed(mode: Protection, bound: Length) -> None:
    measured = length(traced(mode))
    print(f"one sum, {mode}: {measured}")
    assert measured.functions > 50  # the trace saw the sum
    assert all(found <= most for found, most in zip(measured, bound, strict=True))
