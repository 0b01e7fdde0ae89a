"""One sum can be followed: the files and functions it enters at a party and the coordinator."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import Program, federate

ROOT = Path(__file__).resolve().parents[2]
WATCHED, OTHERS = "east", ("north", "west")


@dataclass
class Trace:
    """The calls of our own code, in order, but for what the other parties do."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    elsewhere: int = 0  # frames on the stack that belong to other parties

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        name = code.co_qualname
        other = name == "Session.step" and frame.f_locals["self"].party != WATCHED
        if other and event in ("call", "return"):
            self.elsewhere += 1 if event == "call" else -1
        path = Path(code.co_filename).resolve()  # "<string>" is what dataclasses generate
        ours = path.is_file() and path.is_relative_to(ROOT)
        ours = ours and path.relative_to(ROOT).parts[0] not in _OUTSIDE
        if event == "call" and ours and not self.elsewhere and "<" not in name.split(".")[-1]:
            self.calls.append((str(path.relative_to(ROOT)), name))


_OUTSIDE = (".venv", "tests")
HARNESS = "secure_fl/testing/harness.py"


def traced(mode: Protection) -> list[tuple[str, str]]:
    """What the second of two sums calls; the first one finds the scales."""
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


@pytest.mark.parametrize(
    ("mode", "files", "functions", "changes"), [("he+secagg", 30, 200, 350), ("none", 17, 80, 120)]
)
def test_a_sum_can_be_followed(mode: Protection, files: int, functions: int, changes: int) -> None:
    calls = traced(mode)
    entered = len({file for file, _ in calls})
    hops = sum(one != other for (one, _), (other, _) in pairwise(calls))
    print(f"{mode}: {entered} files, {len(set(calls))} functions, {hops} changes of file")
    assert len(calls) > 50  # the trace saw the sum
    assert entered <= files
    assert len(set(calls)) <= functions
    assert hops <= changes
