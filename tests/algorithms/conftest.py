"""Recorders of everything that parties add to sums and open from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from secure_fl.party.cohort import Cohort
from tests.support.exchanging import Sum


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sum]]:
    """Record each party's addends and opened sums; any other exchange fails."""
    seen: list[Sum] = []
    add = Cohort.sum

    async def recording(self: Cohort, values: Mapping[str, Any], **options: Any) -> Any:
        part = Sum(self.me, {n: np.array(v) for n, v in values.items()})
        seen.append(part)
        part.opened = await add(self, values, **options)
        return part.opened

    async def shut(self: Cohort, *values: Any) -> Any:
        raise AssertionError("an exchange that is not a sum")

    monkeypatch.setattr(Cohort, "sum", recording)
    for name in ("share", "broadcast", "agree"):
        monkeypatch.setattr(Cohort, name, shut)
    yield seen


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, set[str]]]:
    """Collect, by party, the names that it adds to sums or reads from them."""
    names: dict[str, set[str]] = defaultdict(set)
    add = Cohort.sum

    async def recording(self: Cohort, values: Mapping[str, Any], **options: Any) -> Any:
        names[self.me].update(values, options.get("read") or ())
        return await add(self, values, **options)

    monkeypatch.setattr(Cohort, "sum", recording)
    yield names
