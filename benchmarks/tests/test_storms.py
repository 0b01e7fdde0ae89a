"""Who spoils a sum is found at a bounded cost, and storms of kills and lies end as they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.federations.storms import storm
from benchmarks.micro import inquiry


def test_an_inquiry_finds_the_liar_at_a_few_times_the_cost_of_a_sum() -> None:
    found = inquiry.measure(parties=4, values=20_000, repeats=1)
    assert found.results["wrong"] == 0 and found.results["ratio"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 4, 7, 9])  # another lie each; 4 once cost all their keys
def test_a_storm_ends_with_one_model_or_with_the_liar_named(tmp_path: Path, seed: int) -> None:
    found = storm(tmp_path, seed)
    assert found.told and found.end in ("finished", "named") and not found.rounds_lost
