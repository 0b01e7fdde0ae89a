"""Tests that `make test` leaves to `make long`, so that the others take less than seven minutes.

`tests/long_tests.txt` lists them with their CPU seconds on the machine that measured them. To
measure again:

    CPU_TIMES=build/times.txt python -m pytest -m "not slow" -n 2 tests
    python -m tests.support.long_tests build/times.txt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).parent.parent / "long_tests.txt"
BUDGET = 540.0  # CPU seconds of all other tests: seven minutes for two processes, with startup
TIMES = os.environ.get("CPU_TIMES")


def function_of(test: str) -> str:
    """Return a test's id without its parameters."""
    return test.partition("[")[0]


def listed() -> dict[str, float]:
    """Read the list: CPU seconds of each function, with all its parameters."""
    rows = (line.split(maxsplit=1) for line in LIST.read_text().splitlines())
    return {name: float(seconds) for seconds, name in rows}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed tests."""
    names = listed()
    for item in items:
        if function_of(item.nodeid) in names:
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write a test's CPU seconds, with those of its child processes, if this is asked for."""
    before = sum(os.times()[:4])
    result = yield
    if TIMES is not None:
        with Path(TIMES).open("a") as file:
            file.write(f"{sum(os.times()[:4]) - before:.2f} {item.nodeid}\n")
    return result


def longest(times: Path) -> list[tuple[str, float]]:
    """Choose the longest functions, until the others fit into the budget."""
    total: dict[str, float] = {}
    for line in times.read_text().splitlines():
        measured, _, test = line.partition(" ")
        name = function_of(test)
        total[name] = total.get(name, 0.0) + float(measured)
    chosen, left = [], sum(total.values())
    for name, seconds in sorted(total.items(), key=lambda row: -row[1]):
        if left <= BUDGET:
            break
        chosen.append((name, seconds))
        left -= seconds
    return chosen


if __name__ == "__main__":
    rows = longest(Path(sys.argv[1]))
    LIST.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in rows))
