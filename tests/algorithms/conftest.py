"""What all sums of a run are made of, for tests of who sees what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from secure_fl.party.cohort import Cohort
from tests.support.exchanging import Sum


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sum]]:
    """What every party gives to sums and takes out of them; nothing else may cross."""
    seen: list[Sum] = []
    add = Cohort.sum

    async def listening(self: Cohort, values: Mapping[str, Any], **options: Any) -> Any:
        part = Sum(self.me, {n: np.array(v) for n, v in values.items()})
        seen.append(part)
        part.opened = await add(self, values, **options)
        return part.opened

    async def shut(self: Cohort, *values: Any) -> Any:
        raise AssertionError("something crosses the door that is no sum")

    monkeypatch.setattr(Cohort, "sum", listening)
    for name in ("share", "broadcast", "agree"):
        monkeypatch.setattr(Cohort, name, shut)
    yield seen
