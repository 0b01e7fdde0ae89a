"""A pytest plugin that records the lines of the trusted core that each test executes.

`MUTANTS_RECORD` names the file: a JSON line for each test that passes. Tests that are in the file
already are not run again. Lines that a shared fixture executes count for each test that uses it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

RECORD = Path(os.environ["MUTANTS_RECORD"])
CORE = tuple(os.environ["MUTANTS_CORE"].split(os.pathsep))
ROOT = Path.cwd()

_names: dict[
    str, str | None
] = {}  # file of a code object -> its path below the root, if of the core
_lines: set[tuple[str, int]] = set()
_of_fixtures: dict[object, set[tuple[str, int]]] = {}
_failed: set[str] = set()


def _name(file: str) -> str | None:
    if file not in _names:
        inside = file.startswith(f"{ROOT}/")
        name = file.removeprefix(f"{ROOT}/")
        _names[file] = name if inside and name.startswith(CORE) else None
    return _names[file]


def _enter(frame: FrameType, event: str, argument: Any) -> Any:
    return None if _name(frame.f_code.co_filename) is None else _line


def _line(frame: FrameType, event: str, argument: Any) -> Any:
    if event == "line":
        _lines.add((frame.f_code.co_filename, frame.f_lineno))
    return _line


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that are recorded."""
    if RECORD.exists():
        known = {json.loads(line)["test"] for line in RECORD.read_text().splitlines()}
        items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the tests that do not pass."""
    if not report.passed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """Keep the lines of fixtures that several tests share."""
    before = set(_lines)
    _lines.clear()
    result = yield
    if fixturedef.scope != "function":
        _of_fixtures[fixturedef] = set(_lines)
    _lines.update(before)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Iterator[Any]:
    """Trace one test and write its lines."""
    _lines.clear()
    began = sum(os.times()[:4])
    threading.settrace(_enter)
    sys.settrace(_enter)
    result = yield
    sys.settrace(None)
    threading.settrace(None)
    seconds = sum(os.times()[:4]) - began  # CPU time, with child processes
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            _lines.update(_of_fixtures.get(definition, ()))
    if item.nodeid not in _failed:
        lines: dict[str, list[int]] = {}
        for file, line in sorted(_lines):
            lines.setdefault(str(_name(file)), []).append(line)
        row = {"test": item.nodeid, "seconds": round(seconds, 3), "lines": lines}
        with RECORD.open("a") as output:
            output.write(json.dumps(row) + "\n")
    return result
