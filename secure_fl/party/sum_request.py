"""A request for one sum, and the interface that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.protocol.ports import Rule

Arrays: TypeAlias = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class SumRequest:
    """The values of one sum at one party, and the conditions for opening it."""

    values: Mapping[str, Any]
    rule: Rule = field(default_factory=Rule)
    read: Mapping[str, Any] = field(default_factory=dict)  # of a partial sum: read, not contributed
    partial: bool = False  # each party contributes only the names that it has
    only: frozenset[str] | None = None  # open it over exactly these members, or not at all
    questions: tuple[str, ...] = ()  # digests of the questions that the sum answers
    ignore_hooks: bool = False  # sum over all parties, even if a hook selects some of them


class RoundSums(Protocol):
    """The sums of a round, for hooks that need one of their own."""

    @property
    def survivors(self) -> tuple[str, ...]:
        """Members whose values are in the last sum."""

    async def sum(self, request: SumRequest) -> Arrays:
        """Add the values over the parties; {} if the sum could not be opened."""
