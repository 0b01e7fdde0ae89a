"""Towns for one test, closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import PLAN
from tests.support.town import Town, town


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Town]]:
    """Makes towns, and closes their folders."""
    towns: list[Town] = []

    def make(**options: Any) -> Town:
        towns.append(town(tmp_path / f"{len(towns)}", PLAN, **options))
        return towns[-1]

    yield make
    for made in towns:
        for seat in made.seats.values():
            seat.close()
