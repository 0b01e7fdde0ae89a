"""A trace of one sum: the calls of the product's own code at one party and the coordinator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate

ROOT = Path(__file__).resolve().parents[2]
WATCHED, OTHERS = "east", ("north", "west")
HARNESS = "secure_fl/testing/harness.py"
OUTSIDE = (".venv", "tests", "benchmarks")


class Length(NamedTuple):
    """The size of a trace."""

    files: int
    functions: int
    changes: int  # calls whose file differs from that of the call before


@dataclass
class Trace:
    """A profiler that records calls in order, without the steps of the other parties."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    elsewhere: int = 0  # frames on the stack that belong to other parties

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record one call."""
        code = frame.f_code
        name = code.co_qualname
        other = name == "Session.step" and frame.f_locals["self"].party != WATCHED
        if other and event in ("call", "return"):
            self.elsewhere += 1 if event == "call" else -1
        path = Path(code.co_filename).resolve()  # "<string>" is what dataclasses generate
        ours = path.is_file() and path.is_relative_to(ROOT)
        ours = ours and path.relative_to(ROOT).parts[0] not in OUTSIDE
        if event == "call" and ours and not self.elsewhere and "<" not in name.split(".")[-1]:
            self.calls.append((str(path.relative_to(ROOT)), name))


def traced(mode: Protection) -> list[tuple[str, str]]:
    """Trace the second of two sums: the first one finds the scales."""
    trace = Trace()

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> None:
            values = {"w": np.full(300, 0.1, np.float32)}
            await cohort.sum(values, carry=True)
            before = sys.getprofile()
            if name == WATCHED:
                sys.setprofile(trace)
            await cohort.sum(values, carry=True)
            if name == WATCHED:
                sys.setprofile(before)

        return run

    federate({name: program(name) for name in (WATCHED, *OTHERS)}, mode=mode)
    return [call for call in trace.calls if call[0] != HARNESS]


def length(calls: Sequence[tuple[str, str]]) -> Length:
    """Measure a trace."""
    return Length(
        len({file for file, _ in calls}),
        len(set(calls)),
        sum(one != other for (one, _), (other, _) in pairwise(calls)),
    )
