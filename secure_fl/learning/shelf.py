"""What sites of one process would read alike: each model and tokenizer is made once.

The last of so many sites gets the original, so that no model is held beyond those at work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import deepcopy
from typing import TypeVar

T = TypeVar("T")


class Shelf:
    """Things that were made for one of so many sites, and wait for the others."""

    def __init__(self, sites: int = 1) -> None:
        self._sites = sites
        self._made: dict[Hashable, tuple[object, int]] = {}  # and how many have it

    def take(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes, which is equal for equal keys; nobody else has the same object."""
        made, had = self._made.pop(key) if key in self._made else (make(), 0)
        if had + 1 < self._sites:
            self._made[key] = (made, had + 1)
            made = deepcopy(made)
        return made  # type: ignore[return-value] # the key stands for what `make` returns
