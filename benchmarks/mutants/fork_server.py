"""A process that imports libraries once, and forks a pytest process for each request.

Its arguments are the libraries. It reads JSON lines, each with the tests to run in order, and
answers each with a JSON line: `failed` is the first test or file that failed, or None, and `ran`
the number of tests that passed. Tests that reach the limit of a request have not failed.
It runs as a script and imports nothing of the product, which each forked process imports afresh.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Any

import pytest

TEST_SECONDS = 100  # a test that takes longer fails


class First:
    """Keeps the chosen tests in their order, and notes the first failure."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: at for at, test in enumerate(tests)}
        self.failed: str | None = None
        self.ran = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and sort the tests."""
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails."""
        if report.failed:
            self.failed = self.failed or report.nodeid
        self.ran += report.passed and report.when == "call"


def run(tests: Sequence[str], log: str) -> dict[str, Any]:
    """Run tests in this process, until one fails."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    first = First(tests)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins among the libraries
    options = ["-o", "addopts=", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", *imported]
    code = pytest.main([*options, f"--timeout={TEST_SECONDS}", *files], plugins=[first])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        first.failed = first.failed or f"pytest: {code!r}"
    return {"failed": first.failed, "ran": first.ran}


def forked(request: dict[str, Any]) -> dict[str, Any]:
    """Run tests in a new process, and end it with its children at the limit."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reads)
        os.write(writes, json.dumps(run(request["tests"], request["log"])).encode())
        os._exit(0)
    os.close(writes)
    ready, _, _ = select.select([reads], [], [], request["limit"])
    data = os.read(reads, 2**16) if ready else b""
    os.close(reads)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    if data:
        answer: dict[str, Any] = json.loads(data)
        return answer
    if ready:
        return {"failed": "pytest: the process ended", "ran": 0}
    return {"failed": None, "ran": 0, "stopped": True}


def main() -> None:
    """Answer requests until the input ends."""
    sys.path[0] = os.getcwd()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
