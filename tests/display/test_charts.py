"""Charts: their scales are those that readers count by."""

from __future__ import annotations

import re

import pytest

from secure_fl.display.charts import STEPS, Curve, chart
from secure_fl.display.figures import number


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ((0.733, 0.867), [0.70, 0.75, 0.80, 0.85, 0.90]),
        ((0.05, 0.877), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((0.5, 0.5), [0.44, 0.46, 0.48, 0.50, 0.52, 0.54, 0.56]),
        ((-3.0, 4.0), [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0]),
    ],
)
def test_lines_stand_at_round_numbers(values: tuple[float, float], marks: list[float]) -> None:
    drawn = chart("c", [Curve("a", [(1, values[0]), (2, values[1])])], "round", "Score", number)
    found = [float(x) for x in re.findall(r'text-anchor="end">(-?[\d.]+)<', drawn)]
    assert set(found) <= set(marks) and 3 <= len(found) <= STEPS + 2
    assert found[0] <= min(values) <= max(values) <= found[-1]
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', drawn)]
    assert all(0 < y < 260 for y in heights)
