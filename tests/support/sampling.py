"""Parametrisations of which a few cases are in the fast suite, and all in `make slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """Mark all cases as slow but the fast ones."""
    known = list(cases)
    assert all(case in known for case in fast), "a fast case is none of the cases"
    return [
        case
        if case in fast
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in known
    ]
