"""Errors by their kind, their place and the values they name, not by how they are worded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from secure_fl.errors import SecureFLError
from secure_fl.pilot.plan import RESTARTED

Kind = TypeVar("Kind", bound=SecureFLError)


@contextmanager
def raises(
    kind: type[Kind], *named: object, reason: object = "", **where: object
) -> Iterator[pytest.ExceptionInfo[Kind]]:
    """As pytest's; the error has this reason, stands at this place, and names these values."""
    with pytest.raises(kind) as caught:
        yield caught
    if reason:
        assert caught.value.reason == reason, f"{caught.value.reason}: {caught.value}"
    require(caught.value, *named, **where)


def require(error: SecureFLError, *named: object, **where: object) -> None:
    """An error stands at this place, and what it tells a person names these values."""
    places = {key: error.where.get(key) for key in where}
    assert places == where, f"elsewhere: {error}"
    told = f"{error.what}\n{error.fix}"
    missing = [str(value) for value in named if str(value) not in told]
    assert not missing, f"{missing} not named: {error}"


# --- what may be said of an error across the wire -----------------------------------------------


def error_codes(cls: type[SecureFLError] = SecureFLError) -> set[str]:
    """Every code of the error tree; no answer may say more."""
    return {cls.code, RESTARTED}.union(*(error_codes(child) for child in cls.__subclasses__()))
