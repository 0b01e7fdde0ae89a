"""Checks of an engine: frames arrive complete at their recipient, and answers come back.

    def test_my_engine() -> None:
        require_carries(lambda sessions: MyEngine(sessions))

How an engine treats who is late, or a stranger at its door, is for its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_fl.coordinator.machine import Engine
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import LocalEngine, Session
from secure_fl.protocol.frames import Frame
from secure_fl.settings import Protection
from secure_fl.testing.harness import federate

MakeEngine = Callable[[Mapping[str, Session]], Engine]
HOST, PARTIES = "hub", ("east", "north", "south")
LARGE = 300_000  # values: a frame of more than a megabyte in the clear


def require_carries(
    make: MakeEngine,
    mode: Protection = "he+secagg",
    *,
    parties: Sequence[str] = PARTIES,
    host: str = HOST,
) -> None:
    """Run a federation over an engine; an AssertionError says where it differs from one process.

    `parties`, `host`: names that the engine knows, if it does not take any.
    """

    def run(make: MakeEngine) -> Mapping[str, list[Any]]:
        programs = dict.fromkeys((*parties, host), _program)
        return federate(programs, host=host, mode=mode, engine=make).results

    here, there = run(LocalEngine), run(lambda sessions: Checked(make(sessions)))
    for name, results in here.items():
        for one, other in zip(results, there[name], strict=True):
            if not np.array_equal(one, other):
                raise AssertionError(f"{name} got another result than in one process")


@dataclass(frozen=True, slots=True)
class Checked:
    """An engine, and whether everybody who was asked is heard, and nobody else."""

    engine: Engine

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Pass on what the engine yields; it may yield an answer twice."""
        silent = set(frames)
        for party, answer in self.engine.exchange(frames, deadline):
            if party not in frames:
                raise AssertionError(f"the engine yielded {party}, which was not asked")
            silent.discard(party)
            yield party, answer
        if silent:
            raise AssertionError(f"the engine did not yield {', '.join(sorted(silent))}")


async def _program(cohort: Cohort) -> list[Any]:
    """Two sums, one of them large, with a broadcast between; what this party got."""
    small = {"x": np.full(5, len(cohort.me), np.float32)}
    large = {"x": np.linspace(0, 1, LARGE, dtype=np.float32)}
    first = await cohort.sum({} if cohort.is_host else small)
    news = {"y": np.arange(7, dtype=np.float32)}
    told = await cohort.broadcast(news if cohort.is_host else None)
    last = await cohort.sum({} if cohort.is_host else large, bound=1.0)
    return [array for found in (first, told, last) for array in found.values()]
