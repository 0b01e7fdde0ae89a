"""Towns for one test, closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import PLAN
from tests.support.local_pilot import LocalPilot, local_pilot


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., LocalPilot]]:
    """Makes towns, and closes their folders."""
    towns: list[LocalPilot] = []

    def make(**options: Any) -> LocalPilot:
        towns.append(local_pilot(tmp_path / f"{len(towns)}", PLAN, **options))
        return towns[-1]

    yield make
    for made in towns:
        made.close()
